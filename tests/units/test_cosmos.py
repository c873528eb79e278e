# SPDX-License-Identifier: Apache-2.0
"""Native Cosmos: the published sizes and names, agreement with an independent implementation, state, tiles, files."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from inlay.backbones import load_backbone
from inlay.backbones.cosmos import Cosmos, CosmosConfig, cosmos_01, cosmos_360p, tiny_cosmos
from inlay.backbones.cosmos_files import load_cosmos, load_cosmos_script
from inlay.backbones.cosmos_layers import FrameNorm, Haar, Memory, Up
from inlay.errors import ConfigError, MissingError, UsageError
from inlay.kernels.tiles import starts
from inlay.tokenizer import Tokenizer
from tests.conftest import still
from tests.contracts.test_backbones import lively

CONFIGS: dict[str, Callable[[], CosmosConfig]] = {"360p": cosmos_360p, "0.1": cosmos_01}


def tiny(name: str = "360p") -> Cosmos:
    network = lively(Cosmos(tiny_cosmos(CONFIGS[name]())))
    assert isinstance(network, Cosmos)
    return network


def clip(frames: int = 9, height: int = 32, width: int = 48) -> Tensor:
    return torch.rand(1, 3, frames, height, width) * 2 - 1


@pytest.mark.parametrize(("name", "sizes"), [("360p", (45.34, 64.86, 110.21)), ("0.1", (42.72, 43.06, 85.78))])
def test_published_parameter_counts(name: str, sizes: tuple[float, float, float]) -> None:
    with torch.device("meta"):
        network = Cosmos(CONFIGS[name]())
    parts = [sum(p.numel() for p in m.parameters()) / 1e6 for m in (network.encoder, network.decoder, network)]
    assert parts == pytest.approx(sizes, abs=0.006)


def test_published_tensor_names() -> None:
    with torch.device("meta"):
        names = set(Cosmos().state_dict())
    for name in (
        "encoder.conv_in.0.conv3d.weight", "encoder.conv_in.1.conv3d.bias", "encoder.down.0.block.0.norm1.norm.weight",
        "encoder.down.1.block.0.nin_shortcut.conv3d.weight", "encoder.down.0.downsample.conv2.conv3d.weight",
        "encoder.mid.attn_1.1.proj_out.conv3d.weight", "encoder.mid.attn_1.0.norm.norm.bias",
        "decoder.up.2.upsample.conv3.conv3d.weight", "decoder.up.0.block.2.conv2.1.conv3d.weight",
        "quant_conv.conv3d.weight", "post_quant_conv.conv3d.bias", "encoder.norm_out.norm.weight",
    ):  # fmt: skip
        assert name in names
    assert not [n for n in names if "patcher" in n]


@pytest.mark.parametrize("patch", [2, 4])
def test_haar_is_the_published_transform(patch: int) -> None:
    x = torch.rand(2, 3, 2 * patch, 2 * patch, 3 * patch)
    haar = Haar(patch)
    y = haar.split(x)
    want = x
    for _ in range(patch.bit_length() - 1):
        want = plain_level(want)
    torch.testing.assert_close(y.unflatten(0, (2, -1)).transpose(1, 2), want)
    torch.testing.assert_close(haar.join(y, 2), x)


def plain_level(x: Tensor) -> Tensor:
    """One level as it is published: along time, height, width in turn, the low band first, all divided by sqrt(8)."""
    bands = [x]
    for axis in (2, 3, 4):
        a = [b.unfold(axis, 2, 2)[..., 0] for b in bands]
        b = [b.unfold(axis, 2, 2)[..., 1] for b in bands]
        bands = [half for p, q in zip(a, b, strict=True) for half in ((p + q) / 2**0.5, (p - q) / 2**0.5)]
    return torch.cat(bands, dim=1) / 8**0.5


def independent(c: CosmosConfig) -> Any:
    """The implementation of diffusers, which shares no line with ours, at the same shape."""
    diffusers = pytest.importorskip("diffusers")
    widths = [c.width * m for m in c.decoder_levels]
    return diffusers.AutoencoderKLCosmos(
        patch_size=c.patch, latent_channels=c.channels, num_layers=c.blocks, attention_resolutions=(),
        encoder_block_out_channels=(c.width, *(c.width * m for m in c.encoder_levels)),
        decode_block_out_channels=(*widths, widths[-1]), spatial_compression_ratio=c.space_stride,
        temporal_compression_ratio=c.time_stride,
    ).eval()  # fmt: skip


def renamed(name: str, levels: int) -> str:
    """The published name of a tensor -> the name diffusers gives it."""
    for pattern, there in [
        (r"\.conv3d\.", "."), (r"(conv_in|conv_out|conv1|conv2)\.0\.", r"\1.conv_s."),
        (r"(conv_in|conv_out|conv1|conv2)\.1\.", r"\1.conv_t."), (r"down\.(\d)\.block\.", r"down_blocks.\1.resnets."),
        (r"down\.(\d)\.downsample\.", r"down_blocks.\1.downsamplers.0."), (r"mid\.block_1", "mid_block.resnets.0"),
        (r"mid\.block_2", "mid_block.resnets.1"), (r"mid\.attn_1\.0", "mid_block.attentions.0"),
        (r"mid\.attn_1\.1", "mid_block.temp_attentions.0"), (r"nin_shortcut", "conv_shortcut"),
        (r"\.([qkv])\.(weight|bias)", r".to_\1.\2"), (r"proj_out", "to_out.0"),
    ]:  # fmt: skip
        name = re.sub(pattern, there, name)
    name = re.sub(r"up\.(\d)\.block\.", lambda m: f"up_blocks.{levels - 1 - int(m[1])}.resnets.", name)
    return re.sub(r"up\.(\d)\.upsample\.", lambda m: f"up_blocks.{levels - 1 - int(m[1])}.upsamplers.0.", name)


@pytest.mark.parametrize("name", list(CONFIGS))
@torch.no_grad()
def test_agrees_with_an_independent_implementation(name: str) -> None:
    ours = tiny(name)
    theirs = independent(ours.config)
    levels = len(ours.config.decoder_levels)
    theirs.load_state_dict({renamed(n, levels): t for n, t in ours.state_dict().items()})
    x = clip()
    z = theirs.encode(x).latent_dist.mode()
    assert float((ours.encode(x) - z).norm() / z.norm()) < 1e-5
    y = theirs.decode(z).sample
    assert float((ours.decode(z) - y).norm() / y.norm()) < 1e-5


@torch.no_grad()
def test_doubling_in_one_convolution_is_the_published_doubling() -> None:
    up = Up(6, space=True, time=False)
    y = torch.randn(2, 6, 5, 7).contiguous(memory_format=torch.channels_last)
    u = F.interpolate(y, scale_factor=2.0, mode="nearest")
    want = up.conv3(up.conv2(u) + u)  # type: ignore[misc]
    torch.testing.assert_close(up(y, 2, Memory(None, keep=False))[0], want, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_norm_in_memory_order_is_the_plain_norm() -> None:
    norm = FrameNorm(8)
    for parameter in norm.parameters():
        parameter.normal_()
    y = (torch.randn(3, 8, 5, 7) * 3 + 20).contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(norm.in_memory_order(y), norm(y), rtol=1e-5, atol=1e-5)
    assert norm.in_memory_order(y).is_contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def test_attention_window_bounds_the_state_and_changes_nothing_within_it() -> None:
    network = tiny()
    bounded = Cosmos(network.config, attention_window=3).eval()
    bounded.load_state_dict(network.state_dict())
    x = clip(25, 16, 16)
    torch.testing.assert_close(bounded.encode(x[:, :, :9]), network.encode(x[:, :, :9]), rtol=1e-5, atol=1e-5)
    whole = bounded.encode(x)
    parts, state, sizes = [], None, []
    for part in (x[:, :, :1], *x[:, :, 1:].split(8, dim=2)):
        z, state = bounded.encode_next(part, state)
        parts.append(z)
        sizes.append(sum(t.numel() for t in state[0]))
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=1e-5, atol=1e-5)
    assert sizes[-1] == sizes[-2]
    with pytest.raises(ConfigError, match="attention_window"):
        Cosmos(network.config, attention_window=0)


@torch.no_grad()
def test_tiles_cover_the_frame_and_carry_their_own_state() -> None:
    network = tiny()
    network.tile, network.overlap = 48, 2
    x = clip(9, 80, 56)
    z = network.encode(x)
    assert z.shape == (1, 16, 3, 10, 7)
    y = network.decode(z)
    assert y.shape == x.shape and bool(torch.isfinite(y).all())
    first = network.encode(x[..., :48, :48])
    torch.testing.assert_close(z[..., :4, :1], first[..., :4, :1], rtol=1e-4, atol=1e-4)  # where no other tile reaches
    a, state = network.encode_next(x[:, :, :5], None)
    b, _ = network.encode_next(x[:, :, 5:], state)
    assert len(state) == len(starts(80, 48, 16)) * len(starts(56, 48, 16)) == 4
    torch.testing.assert_close(torch.cat([a, b], 2), z, rtol=1e-4, atol=1e-4)
    with pytest.raises(ConfigError, match="tile is a multiple"):
        Cosmos(network.config, tile=100)


def test_a_static_video_keeps_its_first_slot_only() -> None:
    tokenizer = Tokenizer(tiny())
    assert tokenizer.encode(still(17, 32, 48), tau=0.01).keep_rate == 1 / 5


@pytest.mark.slow
@torch.no_grad()
def test_compiles_as_one_graph() -> None:
    network = tiny()
    x = clip(5, 16, 16)
    z = network.encode(x)
    y = network.decode(z)
    for half in (network.encoder, network.decoder):
        half.compile(fullgraph=True, backend="aot_eager", dynamic=False)
    torch.testing.assert_close(network.encode(x), z)
    torch.testing.assert_close(network.decode(z), y)


@torch.no_grad()
def test_runs_in_bfloat16_with_channels_last() -> None:
    network = tiny()
    x = clip(5, 16, 16)
    z = network.encode(x)
    weight = network.encoder.down[0].block[0].conv1[0].conv3d.weight
    assert weight.is_contiguous(memory_format=torch.channels_last_3d)
    half = network.to(torch.bfloat16).encode(x.to(torch.bfloat16))
    assert half.dtype == torch.bfloat16
    assert float((half.float() - z).norm() / z.norm()) < 0.1


# --- files ------------------------------------------------------------------------------------------------------------


class Published(nn.Module):
    """One half as NVIDIA exports it: parts under their names; the encoder returns placeholders beside the latent."""

    def __init__(self, network: Cosmos, half: str) -> None:
        super().__init__()
        self.half = half
        names = ("encoder", "quant_conv") if half == "encoder" else ("post_quant_conv", "decoder")
        for name in names:
            self.add_module(name, getattr(network, name))
        self.whole = [network]  # in a list, so that it is no part of this module

    def forward(self, x: Tensor) -> Any:
        if self.half == "encoder":
            return self.whole[0].encode_tile(x, None, False)[0], (torch.zeros(1), torch.zeros(1))
        return self.whole[0].decode_tile(x, None, False)[0]


def publish(network: Cosmos, folder: Path) -> Path:
    """`encoder.jit` and `decoder.jit`, by torch's own tracer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = clip(5, 16, 24)
        for half, example in (("encoder", x), ("decoder", network.encode(x))):
            torch.jit.save(
                torch.jit.trace(Published(network, half), example, check_trace=False), str(folder / f"{half}.jit")
            )
    return folder


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish(tiny(), tmp_path_factory.mktemp("cosmos"))


@torch.no_grad()
def test_torchscript_and_native_agree_and_share_their_hash(published: Path) -> None:
    config = tiny_cosmos()
    script = load_cosmos_script(published, config, name="cosmos-cv4x8x8-360p", trust=True)
    native = load_cosmos(published, config, name="cosmos-cv4x8x8-360p", trust=True)
    x = clip(5, 16, 24)
    z = native.encode(x)
    torch.testing.assert_close(script.encode(x), z, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(script.decode(z), native.decode(z), rtol=1e-5, atol=1e-5)
    assert script.spec.weight_hash == native.spec.weight_hash == tiny().spec.weight_hash
    assert (script.spec.name, script.spec.stateful) == (native.spec.name, False)


def forms(network: Cosmos) -> dict[str, Callable[[Path], Path]]:
    """Ways in which the weights of one network lie on a disk."""
    state = {n: t.contiguous() for n, t in network.state_dict().items()}
    extra = {"encoder.patcher3d.wavelets": torch.ones(2), "decoder.up.0.upsample.conv1.conv3d.bias": torch.ones(3)}
    wrapped = {"model": {f"network.{n}": t for n, t in (state | extra).items()} | {"loss.scale": torch.ones(1)}}
    return {
        "model.safetensors": lambda p: save_file(state, p) or p,  # type: ignore[func-returns-value]
        "model.pt": lambda p: torch.save(state | extra, p) or p,  # type: ignore[func-returns-value]
        "wrapped.pt": lambda p: torch.save(wrapped, p) or p,  # type: ignore[func-returns-value]
    }


@pytest.mark.parametrize("form", ["model.safetensors", "model.pt", "wrapped.pt"])
def test_fills_from_every_published_form(form: str, tmp_path: Path) -> None:
    network = tiny()
    path = forms(network)[form](tmp_path / form)
    loaded = load_cosmos(path, network.config, name="x", trust=True)
    assert loaded.spec.weight_hash == network.spec.weight_hash
    for name, tensor in network.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


def test_pickles_and_programs_need_trust(published: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({"a": torch.ones(1)}, path)
    with pytest.raises(UsageError, match=r"is a pickle.*trust=True"):
        load_backbone("cosmos-cv4x8x8-360p", weights=path)
    with pytest.raises(UsageError, match=r"is TorchScript.*trust=True"):
        load_backbone("cosmos-cv4x8x8-360p-jit", weights=published)
    with pytest.raises(MissingError, match=r"model\.safetensors, model\.pt"):
        load_backbone("cosmos-cv4x8x8-360p", weights=tmp_path / "..", trust=True)
    with pytest.raises(MissingError, match=r"has no encoder\.jit"):
        load_backbone("cosmos-cv4x8x8-360p-jit", weights=tmp_path, trust=True)


def test_a_wrong_tensor_is_named(published: Path, tmp_path: Path) -> None:
    state = {n: t.contiguous() for n, t in tiny().state_dict().items()}
    name, path = "decoder.mid.block_1.norm1.norm.bias", tmp_path / "model.safetensors"

    def load(tensors: dict[str, Tensor]) -> None:
        save_file(tensors, path)
        load_cosmos(path, tiny_cosmos(), name="x", trust=False)

    with pytest.raises(UsageError, match=f"tensor {name} is missing"):
        load({n: t for n, t in state.items() if n != name})
    with pytest.raises(UsageError, match=rf"tensor {name} has shape \(3,\)"):
        load(state | {name: torch.ones(3)})
    with pytest.raises(UsageError, match=f"tensor {name} has numbers that are not finite"):
        load(state | {name: state[name] * float("nan")})
    with pytest.raises(UsageError, match=r"tensor quant_conv\.strange has no place"):
        load(state | {"quant_conv.strange": torch.ones(1)})
    save_file(state, path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UsageError, match=r"tensor [\w.]+ is cut off"):
        load_cosmos(path, tiny_cosmos(), name="x", trust=False)
    for half in ("encoder", "decoder"):
        (tmp_path / f"{half}.jit").write_bytes((published / f"{half}.jit").read_bytes()[:5000])
    with pytest.raises(UsageError, match="not a readable TorchScript"):
        load_cosmos_script(tmp_path, tiny_cosmos(), name="x", trust=True)
