# SPDX-License-Identifier: Apache-2.0
"""The contract over every kind of backbone: ours, Cosmos, OmniTokenizer, TAEF2, and what diffusers saves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inlay.backbones import BACKBONES, WEIGHTS, Backbone, load_backbone
from inlay.backbones.contract import BackboneContract
from inlay.backbones.cosmos import Cosmos, cosmos_01, tiny_cosmos
from inlay.backbones.omni import Omni, tiny_omni
from inlay.backbones.taef2 import Taef2
from inlay.errors import MissingError, UsageError
from tests.contracts.tiny_diffusers import TINY, WAN_22, saved


def lively(network: torch.nn.Module) -> torch.nn.Module:
    """Random weights of a size that keeps every path visible, frozen."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for p in network.parameters():
            p.normal_(std=0.2 if p.ndim == 1 else 1.3 / p[0].numel() ** 0.5)
    return network.eval().requires_grad_(False)


class TestMini(BackboneContract):
    tolerance = 0.0
    still = 0.0

    @pytest.fixture(scope="class", params=["mini", "mini-untrained"])
    @classmethod
    def backbone(cls, request: pytest.FixtureRequest) -> Backbone:
        if request.param == "mini" and not (WEIGHTS / "mini.safetensors").is_file():
            pytest.skip("the trained weights of mini are not in this checkout")
        return load_backbone(request.param)


class TestCosmos(BackboneContract):
    still = 1e-5
    cells = (2, 3)

    @pytest.fixture(scope="class", params=["360p", "0.1"])
    @classmethod
    def backbone(cls, request: pytest.FixtureRequest) -> torch.nn.Module:
        return lively(Cosmos(tiny_cosmos() if request.param == "360p" else tiny_cosmos(cosmos_01())))


class TestOmni(BackboneContract):
    @pytest.fixture(scope="class")
    @classmethod
    def backbone(cls) -> torch.nn.Module:
        return lively(Omni(tiny_omni()))


class TestTaef2(BackboneContract):
    still = 1e-5
    cells = (2, 3)

    @pytest.fixture(scope="class")
    @classmethod
    def backbone(cls) -> torch.nn.Module:
        return Taef2().eval().requires_grad_(False)


class TestDiffusers(BackboneContract):
    cells = (2, 3)

    @pytest.fixture(scope="class", params=list(TINY))
    @classmethod
    def backbone(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backbone:
        return load_backbone(str(saved(request.param, tmp_path_factory.mktemp("saved"))))


class TestWan(BackboneContract):
    """State and all; however a video is cut, the same bits come out."""

    tolerance = 0.0
    cells = (2, 3)

    @pytest.fixture(scope="class", params=["2.1", "2.2"])
    @classmethod
    def backbone(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backbone:
        changes = WAN_22 if request.param == "2.2" else {}
        network = load_backbone(str(saved("AutoencoderKLWan", tmp_path_factory.mktemp("saved"), **changes)))
        assert isinstance(network, torch.nn.Module)
        lively(network)
        return network


def test_unknown_name_and_missing_weights(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown backbone 'minni'; did you mean 'mini'"):
        load_backbone("minni")
    with pytest.raises(MissingError, match="no weights at"):
        load_backbone("mini", weights=tmp_path / "none.safetensors")


def test_the_table_knows_the_size_of_what_ships() -> None:
    assert load_backbone("mini").spec.parameters / 1e6 == pytest.approx(BACKBONES["mini"].million, abs=0.05)


@pytest.mark.parametrize("name", ["mini", "mini-untrained"])
def test_the_table_tells_the_truth_of_what_ships(name: str) -> None:
    """Files are held against the table before a network is loaded."""
    entry, spec = BACKBONES[name], load_backbone(name).spec
    assert (spec.time_stride, spec.space_stride, spec.space_stride) == entry.strides
    assert (spec.channels, spec.stateful) == (entry.channels, entry.stateful)


def test_the_table_says_which_backbones_carry_state() -> None:
    carrying = {name for name, entry in BACKBONES.items() if entry.stateful}
    ours = {"mini", "mini-untrained", "cosmos-cv4x8x8-360p", "cosmos-0.1-cv4x8x8"}
    assert carrying == ours | {"wan-2.1", "wan-2.2"}
    assert Cosmos(tiny_cosmos()).spec.stateful and not Omni(tiny_omni()).spec.stateful
