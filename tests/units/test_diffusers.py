# SPDX-License-Identifier: Apache-2.0
"""The diffusers adapter beyond the contract: normalisation as configured, damage told by name; TAEF2 end to end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from inlay.backbones import load_backbone
from inlay.backbones.taef2 import Taef2
from inlay.errors import MissingError, UsageError
from inlay.tokenizer import Tokenizer
from tests.conftest import moving_square
from tests.contracts.tiny_diffusers import TINY, saved

WEIGHTS = "diffusion_pytorch_model.safetensors"


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers).view(1, -1, 1, 1, 1)


WAN_MEAN = (-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517, -0.3632,
            -0.1922, -0.9497, 0.2503, -0.2921)  # fmt: skip
WAN_STD = (2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579, 1.6382,
           1.1253, 2.8251, 1.9160)  # fmt: skip
SLOTS = 2  # the table of the tiny Cosmos has two columns; later slots have the last one
COSMOS_MEAN = torch.tensor([0.1 * i for i in range(8)]).view(1, 4, SLOTS, 1, 1)[:, :, [0, 1, 1]]
COSMOS_STD = torch.tensor([1.0 + i for i in range(8)]).view(1, 4, SLOTS, 1, 1)[:, :, [0, 1, 1]]
# class -> what its pipelines do to a latent, written out
NORMALISED: dict[str, Callable[[Tensor], Tensor]] = {
    "AutoencoderKLWan": lambda z: (z - column(*WAN_MEAN)) / column(*WAN_STD),
    "AutoencoderKLCogVideoX": lambda z: z * 1.15258426,
    "AutoencoderKLLTXVideo": lambda z: z,
    "AutoencoderKLHunyuanVideo": lambda z: z * 0.476986,
    "AutoencoderKLMochi": lambda z: (z - column(0.1, 0.2, 0.3, 0.4)) / column(1, 2, 0.5, 1),
    "AutoencoderKLCosmos": lambda z: (z - COSMOS_MEAN) / COSMOS_STD,
    "AutoencoderVidTok": lambda z: z,
    "AutoencoderTiny": lambda z: (z - 0.25) * 2,
    "AutoencoderKL": lambda z: (z - 0.1) * 0.5,
}


def test_every_class_is_covered() -> None:
    from inlay.backbones.diffusers import KINDS

    assert set(KINDS) == set(TINY) == set(NORMALISED)


@pytest.mark.parametrize("name", list(TINY))
@torch.no_grad()
def test_latents_are_normalised_as_configured_and_decoded_back(name: str, tmp_path: Path) -> None:
    backbone = load_backbone(str(saved(name, tmp_path)))
    s = backbone.spec
    x = torch.rand(1, 3, s.frames(3), s.space_stride, 2 * s.space_stride) * 2 - 1
    raw = backbone.model  # type: ignore[attr-defined]
    shown = torch.cat([x[:, :, :1]] * (s.time_stride - 1) + [x], dim=2) if name == "AutoencoderVidTok" else x
    if s.time_stride == 1:
        frames = [raw.encode(f) for f in x.unbind(2)]
        z = torch.stack([f.latents if name == "AutoencoderTiny" else f.latent_dist.mode() for f in frames], dim=2)
        y = torch.stack([raw.decode(f).sample for f in z.unbind(2)], dim=2)
    else:
        z = raw.encode(shown).latent_dist.mode()
        y = raw.decode(z)
        y = y if isinstance(y, Tensor) else y.sample
    got = backbone.encode(x)
    torch.testing.assert_close(got, NORMALISED[name](z), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(backbone.decode(got), y, rtol=1e-3, atol=1e-4)


def test_a_wrong_tensor_is_named(tmp_path: Path) -> None:
    folder = saved("AutoencoderTiny", tmp_path)
    state, name = load_file(folder / WEIGHTS), "decoder.layers.0.bias"

    def load(tensors: dict[str, Tensor]) -> None:
        save_file(tensors, folder / WEIGHTS)
        load_backbone(str(folder))

    with pytest.raises(UsageError, match=f"tensor {name} is missing"):
        load({n: t for n, t in state.items() if n != name})
    with pytest.raises(UsageError, match=name):
        load(state | {name: torch.ones(3)})
    with pytest.raises(UsageError, match="tensor strange has no place"):
        load(state | {"strange": torch.ones(3)})
    save_file(state, folder / WEIGHTS)
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-8])
    with pytest.raises(UsageError, match=r"tensor [\w.]+ is cut off"):
        load_backbone(str(folder))
    (folder / WEIGHTS).unlink()
    with pytest.raises(MissingError, match=r"has no diffusion_pytorch_model"):
        load_backbone(str(folder))
    torch.save(state, folder / "diffusion_pytorch_model.bin")
    with pytest.raises(UsageError, match=r"is a pickle.*trust=True"):
        load_backbone(str(folder))
    assert load_backbone(str(folder), trust=True).spec.channels == 4


def test_classes_that_it_does_not_know_are_refused(tmp_path: Path) -> None:
    folder = saved("AutoencoderTiny", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"_class_name": "UNet2DModel"}))
    with pytest.raises(UsageError, match="unknown diffusers class 'UNet2DModel'"):
        load_backbone(str(folder))


def test_a_saved_model_through_the_tokenizer(tmp_path: Path) -> None:
    folder = saved("AutoencoderTiny", tmp_path)
    tokenizer = Tokenizer.from_pretrained(folder, device="cpu")
    clip = moving_square(5, 20, 24)
    tokens = tokenizer.encode(clip, tau=0.05)
    assert tokens.mask.shape == (5, 3, 3)  # a slot a frame
    assert tokens.recipe.backbone == str(folder)
    assert tokenizer.decode(tokens, fill="linear").frames.shape == clip.frames.shape
    other = Tokenizer.from_pretrained("mini-untrained", device="cpu")
    with pytest.raises(MissingError, match="these tokens were made with") as caught:
        other.decode(tokens)
    assert caught.value.about == ("weights",), "the command line names the flag"


# --- TAEF2 ------------------------------------------------------------------------------------------------------------


def psnr(a: Tensor, b: Tensor) -> float:
    return float(10 * torch.log10(255**2 / (a.float() - b.float()).square().mean()))


def test_taef2_on_its_real_weights_with_hold_and_linear(shared: Path) -> None:
    tokenizer = Tokenizer.from_pretrained("taef2", weights=shared / "weights", trust=True, device="cpu")
    clip = moving_square(5, 64, 64, speed=4)
    full = tokenizer.encode(clip, tau=0.0, precision="fp32")
    assert full.keep_rate == 1.0 and full.channels == 32
    best = psnr(clip.frames, tokenizer.decode(full).frames)
    assert best > 26
    tokens = tokenizer.encode(clip, tau=0.3, precision="fp32")
    assert 1 / 5 < tokens.keep_rate < 0.8
    for fill in ("hold", "linear"):
        assert best - 6 < psnr(clip.frames, tokenizer.decode(tokens, fill=fill).frames) <= best + 0.5


def test_taef2_says_which_half_or_tensor_is_wrong(tmp_path: Path) -> None:
    network = Taef2()
    with pytest.raises(MissingError, match="has no taef2_encoder"):
        load_backbone("taef2", weights=tmp_path)
    save_file(network.encoder.state_dict(), tmp_path / "taef2_encoder.safetensors")
    wrong = network.decoder.state_dict() | {"1.bias": torch.ones(3)}
    save_file(wrong, tmp_path / "taef2_decoder.safetensors")
    with pytest.raises(UsageError, match=r"tensor decoder\.1\.bias has shape \(3,\)"):
        load_backbone("taef2", weights=tmp_path)
    save_file(network.decoder.state_dict(), tmp_path / "taef2_decoder.safetensors")
    assert load_backbone("taef2", weights=tmp_path).spec.weight_hash == network.spec.weight_hash
