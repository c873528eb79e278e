# SPDX-License-Identifier: Apache-2.0
"""OmniTokenizer-VAE: against a plain reading of the published code, published names and sizes, Lightning pickles."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.backbones import load_backbone
from inlay.backbones.omni import Omni, OmniConfig, load_omni, tiny_omni
from inlay.errors import UsageError
from inlay.tokenizer import Tokenizer
from tests.conftest import moving_square
from tests.contracts.test_backbones import lively

State = dict[str, Tensor]
ARGS: dict[str, Any] = {
    "use_vae": True, "patch_embed": "linear", "patch_size": 8, "temporal_patch_size": 4, "embedding_dim": 32,
    "heads": 2, "dim_head": 16, "ff_mult": 4.0, "enc_block": "tw", "dec_block": "t", "spatial_depth": 2,
    "temporal_depth": 1, "twod_window_size": 2, "spatial_pos": "rope",
    "casual_in_temporal_transformer": True, "casual_in_peg": True, "codebook_dim": 8, "n_codes": 8192,
    "resolution": 256, "sequence_length": 17,
}  # fmt: skip


def tiny() -> Omni:
    network = lively(Omni(tiny_omni()))
    assert isinstance(network, Omni)
    return network


# --- the published computation, step by step from its tensors ---------------------------------------------------------


def norm(s: State, name: str, x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt() * s[name + ".gamma"]


def position(s: State, name: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    v = x.reshape(*shape, -1).permute(0, 4, 1, 2, 3)
    v = F.conv3d(F.pad(v, (1, 1, 1, 1, 2, 0)), s[name + ".weight"], s[name + ".bias"], groups=v.shape[1])
    return v.permute(0, 2, 3, 4, 1).reshape(x.shape)


def turned(t: Tensor) -> Tensor:
    """[b, n, heads, e]: pairs of features as complex numbers, turned by column and by row in turn."""
    n, e = t.shape[1], t.shape[3]
    side = int(n**0.5)
    out = torch.view_as_complex(t.unflatten(-1, (-1, 2)).contiguous()).clone()
    for i in range(e // 2):
        speed = 10000.0 ** (-4 * (i // 2) / e)
        place = torch.arange(n) % side if i % 2 == 0 else torch.arange(n) // side
        out[..., i] *= torch.polar(torch.ones(n), place * speed)[None, :, None]
    return torch.view_as_real(out).flatten(-2)


def attention(s: State, name: str, x: Tensor, *, heads: int, space: bool) -> Tensor:
    q = norm(s, name + ".norm", x) @ s[name + ".to_q.weight"].T
    k, v = (x @ s[name + ".to_kv.weight"].T).chunk(2, dim=-1)  # of tokens that are not normalised
    q, k, v = (t.unflatten(-1, (heads, -1)) for t in (q, k, v))
    if space:
        q, k = turned(q), turned(k)
    q = q / q.norm(dim=-1, keepdim=True) * s[name + ".q_scale"]
    k = k / k.norm(dim=-1, keepdim=True) * s[name + ".k_scale"]
    scores = torch.einsum("bihe,bjhe->bhij", q, k) * 8
    if not space:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
    out = torch.einsum("bhij,bjhe->bihe", scores.softmax(-1), v)
    return out.flatten(2) @ s[name + ".to_out.weight"].T


def windows(s: State, name: str, x: Tensor, *, heads: int, window: int) -> Tensor:
    side, width = int(x.shape[1] ** 0.5), x.shape[2]
    grid, out = norm(s, name + ".norm", x).unflatten(1, (side, side)), torch.zeros_like(x).unflatten(1, (side, side))
    table = s[name + ".relative_position_bias_table"]
    places = [(i, j) for i in range(window) for j in range(window)]
    bias = torch.stack(
        [torch.stack([table[(a - c + window - 1) * (2 * window - 1) + b - d + window - 1] for c, d in places])
         for a, b in places]
    )  # fmt: skip
    for i in range(0, side, window):
        for j in range(0, side, window):
            tile = grid[:, i : i + window, j : j + window].flatten(1, 2)
            qkv = (tile @ s[name + ".qkv.weight"].T).unflatten(-1, (3, heads, width // heads))
            q, k, v = qkv.unbind(2)
            scores = torch.einsum("bihe,bjhe->bhij", q, k) * (width // heads) ** -0.5 + bias.permute(2, 0, 1)
            h = torch.einsum("bhij,bjhe->bihe", scores.softmax(-1), v).flatten(2)
            h = h @ s[name + ".proj.weight"].T + s[name + ".proj.bias"]
            out[:, i : i + window, j : j + window] = h.unflatten(1, (window, window))
    return out.flatten(1, 2)


def feed(s: State, name: str, x: Tensor) -> Tensor:
    h = F.layer_norm(x, x.shape[-1:], s[name + ".0.weight"], s[name + ".0.bias"]) @ s[name + ".1.weight"].T
    value, gate = h.chunk(2, dim=-1)
    return (F.gelu(gate) * value) @ s[name + ".4.weight"].T


def transformer(
    s: State, name: str, blocks: str, x: Tensor, shape: tuple[int, ...], c: OmniConfig, space: bool
) -> Tensor:
    for i, block in enumerate(blocks):
        layer = f"{name}.layers.{i}"
        if block == "t":
            x = position(s, f"{layer}.0.dsconv", x, shape) + x
            x = attention(s, f"{layer}.1", x, heads=c.heads, space=space) + x
        else:
            x = windows(s, f"{layer}.1", x, heads=c.heads, window=c.window) + x
        x = feed(s, f"{layer}.3", x) + x
    return norm(s, f"{name}.norm_out", x)


def embed(s: State, name: str, x: Tensor) -> Tensor:
    x = F.layer_norm(x, x.shape[-1:], s[name + ".1.weight"], s[name + ".1.bias"])
    x = x @ s[name + ".2.weight"].T + s[name + ".2.bias"]
    return F.layer_norm(x, x.shape[-1:], s[name + ".3.weight"], s[name + ".3.bias"])


def cut(x: Tensor, t: int, p: int = 8) -> Tensor:
    b, c, T, H, W = x.shape
    return x.reshape(b, c, T // t, t, H // p, p, W // p, p).permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4)


def paste(h: Tensor, t: int, p: int = 8) -> Tensor:
    b, T, H, W, _ = h.shape
    return h.reshape(b, T, H, W, 3, t, p, p).permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(b, 3, T * t, H * p, W * p)


def reference_encode(s: State, x: Tensor, c: OmniConfig) -> Tensor:
    """Posterior mean of pixels in [-0.5, 0.5]."""
    h = torch.cat([embed(s, "encoder.to_patch_emb_first_frame", cut(x[:, :, :1], 1)),
                   embed(s, "encoder.to_patch_emb", cut(x[:, :, 1:], 4))], dim=1)  # fmt: skip
    b, t, y, w, _ = shape = h.shape
    h = transformer(
        s, "encoder.enc_spatial_transformer", c.encoder_blocks, h.reshape(b * t, y * w, -1), shape[:4], c, True
    )
    h = h.reshape(shape).permute(0, 2, 3, 1, 4).reshape(b * y * w, t, -1)
    h = transformer(s, "encoder.enc_temporal_transformer", "t" * c.temporal_depth, h, shape[:4], c, False)
    h = h.reshape(b, y, w, t, -1) @ s["pre_vq_conv.1.weight"].T + s["pre_vq_conv.1.bias"]
    return h.permute(0, 4, 3, 1, 2)[:, : c.channels]


def reference_decode(s: State, z: Tensor, c: OmniConfig) -> Tensor:
    h = z.permute(0, 2, 3, 4, 1) @ s["post_vq_conv.1.weight"].T + s["post_vq_conv.1.bias"]
    b, t, y, w, _ = shape = h.shape
    h = h.permute(0, 2, 3, 1, 4).reshape(b * y * w, t, -1)
    h = transformer(s, "decoder.dec_temporal_transformer", "t" * c.temporal_depth, h, shape[:4], c, False)
    h = h.reshape(b, y, w, t, -1).permute(0, 3, 1, 2, 4).reshape(b * t, y * w, -1)
    h = transformer(s, "decoder.dec_spatial_transformer", c.decoder_blocks, h, shape[:4], c, True).reshape(shape)
    first = h[:, :1] @ s["decoder.to_pixels_first_frame.0.weight"].T + s["decoder.to_pixels_first_frame.0.bias"]
    rest = h[:, 1:] @ s["decoder.to_pixels.0.weight"].T + s["decoder.to_pixels.0.bias"]
    return torch.cat([paste(first, 1), paste(rest, 4)], dim=2)


@torch.no_grad()
def test_agrees_with_the_published_computation() -> None:
    network = tiny()
    s, c = network.state_dict(), network.config
    x = torch.rand(2, 3, 9, 32, 32) - 0.5
    z = reference_encode(s, x, c)
    assert float((network.encode(x * 2) - z).norm() / z.norm()) < 1e-5
    y = reference_decode(s, z, c)
    assert float((network.decode(z) / 2 - y).norm() / y.norm()) < 1e-5


# --- shapes and files -------------------------------------------------------------------------------------------------


def test_published_size() -> None:
    with torch.device("meta"):
        network = Omni()
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(51.6, abs=0.05)
    assert network.config.side == 64


@torch.no_grad()
def test_frames_that_are_no_squares_are_padded_and_cut() -> None:
    network = tiny()
    x = torch.rand(1, 3, 5, 24, 40) * 2 - 1
    z = network.encode(x)
    assert z.shape == (1, 8, 2, 3, 5)
    padded = F.pad(x, (0, 8, 0, 24, 0, 0), mode="replicate")
    assert torch.equal(z, network.encode(padded)[..., :3, :5])
    assert network.decode(z).shape == x.shape


def lightning(network: Omni, path: Path, args: dict[str, Any] | None = None) -> Path:
    """A training checkpoint as Lightning writes it, with the parts that the autoencoder does not need."""
    layer = "encoder.enc_temporal_transformer.layers.0.1"
    foreign = {
        "codebook.embeddings": torch.ones(4, 8), "image_discriminator.model0.0.weight": torch.ones(2),
        "video_discriminator.model0.0.weight": torch.ones(2), "perceptual_model.lin0.model.1.weight": torch.ones(2),
        f"{layer}.context_norm.gamma": torch.ones(32),
        f"{layer}.spatial_rel_pos_bias.net.0.0.weight": torch.ones(32, 2),
        "encoder.enc_spatial_transformer.layers.1.1.relative_position_index": torch.zeros(4, 4, dtype=torch.long),
    }  # fmt: skip
    checkpoint = {
        "state_dict": {**network.state_dict(), **foreign}, "epoch": 3, "pytorch-lightning_version": "1.9.0",
        "hyper_parameters": {"args": argparse.Namespace(**(ARGS if args is None else args))}, "optimizer_states": [],
    }  # fmt: skip
    torch.save(checkpoint, path)
    return path


@torch.no_grad()
def test_loads_a_lightning_pickle_with_its_own_settings(tmp_path: Path) -> None:
    network = tiny()
    path = lightning(network, tmp_path / "imagenet_ucf_vae.ckpt")
    for place in (path, tmp_path):  # the file, or the folder that has it
        loaded = load_backbone("omnitokenizer-ucf", weights=place, trust=True)
        x = torch.rand(1, 3, 5, 32, 32) * 2 - 1
        assert torch.equal(loaded.encode(x), network.encode(x))
        assert loaded.spec.weight_hash == network.spec.weight_hash
    assert load_omni(path, name="x", trust=True).config == tiny_omni()


def test_by_the_name_of_the_hub_with_the_tau_of_the_paper(tmp_path: Path) -> None:
    path = lightning(tiny(), tmp_path / "imagenet_ucf_vae.ckpt")
    tokenizer = Tokenizer.from_pretrained("Daniel0724/OmniTokenizer", weights=path, trust=True, device="cpu")
    assert (tokenizer.spec.name, tokenizer.default_tau("latent-l1")) == ("omnitokenizer-ucf", 1.2)
    clip = moving_square(6, 30, 50)
    tokens = tokenizer.encode(clip)
    assert tokens.channels == 8 and tokens.mask.shape == (3, 4, 7)
    assert tokenizer.decode(tokens).frames.shape == clip.frames.shape


def test_refuses_what_is_not_the_vae(tmp_path: Path) -> None:
    network = tiny()
    path = tmp_path / "a.ckpt"
    with pytest.raises(UsageError, match=r"pickle.*trust=True"):
        load_omni(lightning(network, path), name="x", trust=False)
    with pytest.raises(UsageError, match="VQ model"):
        load_omni(lightning(network, path, ARGS | {"use_vae": False}), name="x", trust=True)
    with pytest.raises(UsageError, match="patch embedding"):
        load_omni(lightning(network, path, ARGS | {"patch_embed": "cnn"}), name="x", trust=True)
    with pytest.raises(UsageError, match=r"tensor decoder\.dec_temporal_transformer\.layers\.1"):
        load_omni(lightning(network, path, ARGS | {"temporal_depth": 2}), name="x", trust=True)


class Intruder:
    def __reduce__(self) -> Any:
        return print, ("this must never run",)


def test_a_pickle_that_asks_for_more_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.ckpt"
    torch.save({"state_dict": {"a": torch.ones(1)}, "x": Intruder()}, path)
    with pytest.raises(UsageError, match="asks for more than tensors"):
        load_omni(path, name="x", trust=True)
    assert "never run" not in capsys.readouterr().out


def test_damage_is_told_by_the_name_of_the_tensor(tmp_path: Path) -> None:
    path = lightning(tiny(), tmp_path / "a.ckpt")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match=r"tensor [\w.]+ is cut off"):
        load_omni(path, name="x", trust=True)
    spot = len(whole) // 2
    path.write_bytes(whole[:spot] + bytes([whole[spot] ^ 255]) + whole[spot + 1 :])
    with pytest.raises(UsageError, match=r"tensor [\w.]+ is damaged"):
        load_omni(path, name="x", trust=True)
