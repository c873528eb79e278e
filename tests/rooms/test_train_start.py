# SPDX-License-Identifier: Apache-2.0
"""A trained network grows and still gives what it gave; files that do not fit are refused by the tensor's name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inlay.backbones import Mini, tiny
from inlay.errors import UsageError
from inlay.train.start import start_from
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
