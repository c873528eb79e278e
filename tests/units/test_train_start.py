# SPDX-License-Identifier: Apache-2.0
"""A trained network grows and still gives what it gave; files that do not fit are refused by the tensor's name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inlay.backbones import Mini, tiny
from inlay.errors import UsageError
from inlay.train.checkpoint import start_from
from inlay.weightfile import load_weights, save_weights


def lively(config) -> Mini:
    """A network whose blocks are not the identity."""
    torch.manual_seed(0)
    network = Mini(config).eval()
    for p in network.parameters():
        p.data += 0.02 * torch.randn_like(p)
    return network


def test_a_grown_network_gives_what_it_gave(tmp_path: Path) -> None:
    small = lively(tiny())
    save_weights(tmp_path / "small.safetensors", small.state_dict(), {}, stored="fp32")
    large = Mini(replace(tiny(), encoder_blocks=(1, 3), decoder_blocks=(4, 1))).eval()
    new = start_from(large, tmp_path / "small.safetensors")
    assert new == ("decoder.coarse.2", "decoder.coarse.3", "encoder.coarse.2")
    x = torch.rand(1, 3, 9, 32, 32) * 2 - 1
    with torch.no_grad():
        assert torch.equal(large.decode(large.encode(x)), small.decode(small.encode(x)))


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    small = lively(tiny())
    path = tmp_path / "w.safetensors"
    state = small.state_dict()
    save_weights(path, state, {}, stored="fp32")
    with pytest.raises(UsageError, match=r"encoder\.coarse\.1\S* has no place"):
        start_from(Mini(replace(tiny(), encoder_blocks=(1, 1))), path)
    with pytest.raises(UsageError, match="has shape"):
        start_from(Mini(replace(tiny(), decoder_fine=24)), path)
    save_weights(path, {k: v for k, v in state.items() if k != "decoder.up.weight"}, {}, stored="fp32")
    with pytest.raises(UsageError, match=r"decoder\.up\.weight are missing"):
        start_from(Mini(tiny()), path)
    save_weights(path, {k: v for k, v in state.items() if k != "decoder.coarse.0.conv1.weight"}, {}, stored="fp32")
    with pytest.raises(UsageError, match=r"decoder\.coarse\.0 are missing"):
        start_from(Mini(tiny()), path)


def test_eight_bits_keep_a_weak_tap_exact_enough(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weight = torch.randn(8, 64, 3, 3)
    weight[:, :, 0, 0] /= 100
    save_weights(tmp_path / "w.safetensors", {"w": weight}, {}, stored="int8")
    back = load_weights(tmp_path / "w.safetensors").tensors["w"]
    relative = (back - weight).square().mean((1,)).sqrt() / weight.square().mean((1,)).sqrt()
    assert relative.max() < 0.012


@pytest.mark.parametrize("shape", [(3, 5, 3, 3), (7, 1), (2, 9)])
def test_ten_bits_are_four_times_finer_than_eight(tmp_path: Path, shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    errors = {}
    for stored in ("int8", "int10"):
        save_weights(tmp_path / f"{stored}.safetensors", {"w": weight, "bias": weight[0]}, {}, stored=stored)
        back = load_weights(tmp_path / f"{stored}.safetensors").tensors
        assert set(back) == {"w", "bias"}
        errors[stored] = (back["w"] - weight).abs().max().item()
    step = weight.abs().amax(1, keepdim=True).max().item() / 511
    assert errors["int10"] <= step / 2 * 1.01
    assert shape[1] == 1 or errors["int10"] < errors["int8"]


def test_parts_that_do_not_fit_together_are_an_error(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    w = torch.zeros(4, 4, dtype=torch.int8)
    for low in (torch.zeros(3, dtype=torch.uint8), torch.zeros(4)):
        save_file({"w": w, "w::scale": torch.ones(4, 1), "w::low": low}, tmp_path / "bad.safetensors")
        with pytest.raises(UsageError, match="do not fit together"):
            load_weights(tmp_path / "bad.safetensors")
