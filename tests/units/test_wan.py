# SPDX-License-Identifier: Apache-2.0
"""Wan 2.1 and 2.2: the numbers of diffusers' own calls, a state that can be cut, kept and joined, and every command."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import inlay
from inlay.backbones import BACKBONES, load_backbone, resolve
from inlay.backbones.diffusers import KINDS
from inlay.cli.main import main
from inlay.codec.calls import join_states, shape_of, split_state
from inlay.errors import UsageError
from inlay.kernels import compile_halves
from inlay.kernels.rule import PATHS
from inlay.tokenizer import Tokenizer
from inlay.train.presets import LIT_PRESETS
from inlay.video import read_video, write_video
from tests.conftest import moving_square
from tests.contracts.tiny_diffusers import WAN_22, saved
from tests.guard.tree import ROOT

FULL_22 = {"base_dim": 160, "decoder_base_dim": 256, "z_dim": 48, "is_residual": True, "patch_size": 2,
           "in_channels": 12, "out_channels": 12, "scale_factor_spatial": 16}  # fmt: skip


@pytest.fixture(scope="module", params=["wan-2.1", "wan-2.2"])
def named(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A name of the table, and a folder with a tiny network of that kind."""
    changes: dict[str, Any] = WAN_22 if request.param == "wan-2.2" else {}
    return request.param, saved("AutoencoderKLWan", tmp_path_factory.mktemp("wan"), **changes)


@pytest.fixture(scope="module")
def network(named: tuple[str, Path]) -> Any:
    name, folder = named
    return load_backbone(name, weights=folder)


def noise(network: Any, slots: int, seed: int = 0, batch: int = 1) -> Tensor:
    s = network.spec
    shape = batch, 3, s.frames(slots), s.space_stride, 2 * s.space_stride
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def column(numbers: list[float]) -> Tensor:
    return torch.tensor(numbers).view(1, -1, 1, 1, 1)


@torch.no_grad()
def test_its_numbers_are_those_of_diffusers(network: Any) -> None:
    x = noise(network, 4, batch=2)
    raw, config = network.model, network.model.config
    mode = raw.encode(x).latent_dist.mode()
    z = network.encode(x)
    torch.testing.assert_close(z, (mode - column(config.latents_mean)) / column(config.latents_std))
    loud = copy.deepcopy(network)
    loud.model.decoder.conv_out.weight.mul_(20)  # some pixels leave [-1, 1]: diffusers clamps, a backbone does not
    theirs, ours = loud.model.decode(mode).sample, loud.decode(z)
    assert ours.abs().max() > 1.1
    torch.testing.assert_close(ours.clamp(-1, 1), theirs, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_slot_by_slot_is_the_whole_to_the_bit(network: Any) -> None:
    s, x = network.spec, noise(network, 5)
    whole = network.encode(x)
    video, state, back, parts, frames = network.decode(whole), None, None, [], []
    for slot in range(5):
        z, state = network.encode_next(x[:, :, 0 if slot == 0 else s.frames(slot) : s.frames(slot + 1)], state)
        y, back = network.decode_next(z, back)
        parts.append(z)
        frames.append(y)
    assert torch.equal(torch.cat(parts, 2), whole)
    assert torch.equal(torch.cat(frames, 2), video)


@torch.no_grad()
def test_states_of_all_ages_have_one_shape_and_stay_as_they_are(network: Any) -> None:
    x = noise(network, 3)
    z = network.encode(x)
    for states in (
        [network.encode_next(x[:, :, : network.spec.frames(n)], None)[1] for n in (1, 2, 3)],
        [network.decode_next(z[:, :, :n], None)[1] for n in (1, 2, 3)],
    ):
        shapes = {shape_of(state) for state in states}
        assert len(shapes) == 1 and None not in shapes  # None: it cannot be joined
    state = network.decode_next(z[:, :, :1], None)[1]
    copies = [part.clone() for part in state]
    first, second = (network.decode_next(z[:, :, 1:], state)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert all(torch.equal(a, b) for a, b in zip(state, copies, strict=True))


@torch.no_grad()
def test_streams_of_different_ages_go_on_together(network: Any) -> None:
    s = network.spec
    young, old = noise(network, 2, seed=1), noise(network, 4, seed=2)
    z_young, z_old = network.encode(young), network.encode(old)
    cuts = s.frames(1), s.frames(3)
    states = [network.encode_next(x[:, :, :cut], None)[1] for x, cut in zip((young, old), cuts, strict=True)]
    rest = torch.cat([young[:, :, cuts[0] :], old[:, :, cuts[1] :]])
    z, after = network.encode_next(rest, join_states(states))
    torch.testing.assert_close(z, torch.cat([z_young[:, :, 1:], z_old[:, :, 3:]]), rtol=1e-4, atol=1e-5)
    alone = network.encode_next(rest[1:], states[1])[1]
    for a, b in zip(split_state(after, 2)[1], alone, strict=True):  # type: ignore[arg-type]
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    states = [network.decode_next(z[:, :, :n], None)[1] for z, n in ((z_young, 1), (z_old, 3))]
    y, _ = network.decode_next(torch.cat([z_young[:, :, 1:], z_old[:, :, 3:]]), join_states(states))
    want = torch.cat([network.decode(z_young)[:, :, cuts[0] :], network.decode(z_old)[:, :, cuts[1] :]])
    torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-5)


def test_a_long_video_has_one_first_slot(named: tuple[str, Path]) -> None:
    name, folder = named
    tokenizer = Tokenizer.from_pretrained(name, weights=folder, device="cpu")
    clip = moving_square(45, 32, 48)
    tokens = tokenizer.encode(clip, tau=0.0, precision="fp32")
    assert tokens.recipe.streaming == "stateful"
    with torch.inference_mode():
        x = tokenizer.pixels([clip])
        video = tokenizer.backbone.decode(tokenizer.backbone.encode(x))
    shown = ((video[0].permute(1, 2, 3, 0).clamp(-1, 1) + 1) * 127.5).round()
    assert (tokenizer.decode(tokens).frames.float() - shown).abs().max() <= 1  # of 255, in chunks and at once


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """INLAY_FAST=compile, on a CPU too."""
    monkeypatch.setenv("INLAY_FAST", "compile")
    monkeypatch.setitem(PATHS, "compiled", replace(PATHS["compiled"], device="cpu", needs=("compile",)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, by its own compiler
def test_compile_reaches_both_halves(named: tuple[str, Path], compiling: None) -> None:
    name, folder = named
    model = Tokenizer.from_pretrained(name, weights=folder, device="cpu").backbone.model
    assert model.encoder._compiled_call_impl is not None and model.decoder._compiled_call_impl is not None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, by its own compiler
@torch.no_grad()
def test_compiled_halves_give_the_same_numbers_and_soon_need_no_more_graphs(
    named: tuple[str, Path], compiling: None
) -> None:
    """No state, a young one and an old one: what follows is compiled no more. The backend needs no compiler."""
    name, folder = named
    plain, fast = (load_backbone(name, weights=folder) for _ in "12")
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    assert compile_halves(fast, torch.device("cpu"), backend="eager")
    x, ends = noise(fast, 5), [0, *map(fast.spec.frames, (3, 4, 5))]
    parts, state, graphs = [], None, []
    for start, end in pairwise(ends):
        z, state = fast.encode_next(x[:, :, start:end], state)
        parts.append(z)
        graphs.append(counters["stats"]["unique_graphs"])
    z = torch.cat(parts, dim=2)
    torch.testing.assert_close(z, plain.encode(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fast.decode(z), plain.decode(z), rtol=1e-4, atol=1e-4)
    assert graphs[0] == 3 and graphs[1] == graphs[2] <= 4, graphs
    assert not counters["graph_break"]


def test_the_table_is_true_of_the_published_shapes() -> None:
    diffusers = pytest.importorskip("diffusers")
    for name, config in (("wan-2.1", {}), ("wan-2.2", FULL_22)):
        with torch.device("meta"):
            model = diffusers.AutoencoderKLWan(**config)
        entry = BACKBONES[name]
        time, space = KINDS["AutoencoderKLWan"].strides(model)
        assert (time, space, space) == entry.strides and model.config.z_dim == entry.channels
        assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(entry.million, abs=0.05)
    assert resolve("Wan-AI/Wan2.2-TI2V-5B-Diffusers") == "wan-2.2"
    assert resolve("Wan-AI/Wan2.2-T2V-A14B-Diffusers") == "wan-2.1"  # the large ones kept the first autoencoder


def test_the_page_has_the_numbers_of_its_records() -> None:
    page = (ROOT / "docs" / "backbones.md").read_text(encoding="utf-8")
    models = json.loads((ROOT / "benchmarks" / "wan_h200_2026-11-18.json").read_text())["models"]
    forms = {
        "diffusers_eager": "diffusers, eager", "ours_eager": "ours, eager",
        "ours_channels_last": "ours, weights channels-last", "ours_replayed": "ours, replayed from CUDA graphs",
    }  # fmt: skip
    assert {key for rows in models.values() for key in rows} == {"parameters", *(f"{form}_batch1" for form in forms)}
    for form, name in forms.items():
        line = f"| {name} |"
        for row in (models[model][f"{form}_batch1"] for model in ("wan-2.1", "wan-2.2")):
            off = max(row["encode_difference"], row["decode_difference"])
            line += f" {row['encode_ms']:.0f} | {row['decode_ms']:.0f} | {100 * off:.1f} % |"
        assert line in page, line
    rows = json.loads((ROOT / "benchmarks" / "train_wan_h200_2026-11-18.json").read_text())["rows"]
    for row in rows:
        cost = rf"{row['seconds_a_step']:.1f} s and\s{row['peak_gb']:.1f} GB with `--accumulate {row['accumulate']}`"
        assert re.search(cost, page), cost
    steps = LIT_PRESETS["plus"]().steps
    assert f"{steps:,} steps of the preset are {steps * rows[0]['seconds_a_step'] / 3600:.0f} hours" in page


def test_a_model_under_the_name_of_another_is_refused(named: tuple[str, Path]) -> None:
    name, folder = named
    other = {"wan-2.1": "wan-2.2", "wan-2.2": "wan-2.1"}[name]
    with pytest.raises(UsageError, match=rf"holds a model with strides .* channels, and {other} has"):
        load_backbone(other, weights=folder)


def test_every_command_from_calibration_to_a_trained_fill(
    named: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, published = named
    folder = tmp_path / "model"  # weights, with all that is made for them beside
    folder.mkdir()
    for file in published.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    videos = tmp_path / "videos"
    videos.mkdir()
    for seed in range(3):
        write_video(moving_square(41, 48, 64, seed=seed), videos / f"{seed}.mp4")
    model = ("--backbone", name, "--weights", str(folder), "--device", "cpu")
    profile, out = folder / f"{name}.profile.json", tmp_path / "out.inlay"

    assert main(["encode", str(videos / "0.mp4"), str(out), *model]) == 2  # no threshold yet
    assert main(["calibrate", str(videos), *model, "--out", str(profile), "--frames", "17", "--side", "32"]) == 0
    run = ["train", "lit", str(videos), "--run", str(tmp_path / "run"), "--preset", "smoke", "--steps", "2", *model]
    assert main(run) == 0
    (folder / f"{name}.lit.safetensors").write_bytes((tmp_path / "run" / "weights.safetensors").read_bytes())
    assert main(["encode", str(videos / "0.mp4"), str(out), *model]) == 0

    recipe = inlay.open(out).recipe
    assert (recipe.backbone, recipe.streaming) == (name, "stateful")
    assert recipe.tau == pytest.approx(json.loads(profile.read_text())["tau"])
    capsys.readouterr()
    assert main(["decode", str(out), str(tmp_path / "out.mp4"), "--weights", str(folder), "--device", "cpu"]) == 0
    assert "lit" in capsys.readouterr().out
    assert read_video(tmp_path / "out.mp4").frames.shape == (41, 48, 64, 3)
