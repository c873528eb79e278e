# SPDX-License-Identifier: Apache-2.0
"""Allocation rules on the same latents: what each keeps, and how often it calls a network, as counted."""

from __future__ import annotations

import math

import pytest
import torch

from inlay.errors import ConfigError, UsageError
from inlay.masking import MaskConfig, keep_mask
from inlay.research.studies.evaluate import Bench, Scene
from inlay.research.studies.rules import RULES, Setting, mask_of_count, router_ratios
from inlay.research.studies.workspace import Signal, match_tau
from inlay.video.frames import Video
from tests.conftest import moving_square, still

TAU = 0.3


@pytest.fixture(scope="module")
def bench(tiny_tokenizer) -> Bench:
    return Bench(tiny_tokenizer, tau=TAU)


@pytest.fixture(scope="module")
def scene(bench: Bench) -> Scene:
    clip = moving_square(17, 48, 48).frames
    grain = torch.randint(0, 6, clip.shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return Scene(bench, "square", Video(frames=clip.clamp_max(249) + grain))  # no two pixels change alike


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_keeps_slot_0_and_rebuilds_the_clip(bench: Bench, scene: Scene, rule: str) -> None:
    outcome = bench.run(scene, Setting(rule=rule))
    assert outcome.tokens.mask[0].all()
    assert outcome.video.frames.shape == scene.video.frames.shape
    again = bench.run(scene, Setting(rule=rule))
    assert torch.equal(again.tokens.mask, outcome.tokens.mask)
    assert torch.equal(again.video.frames, outcome.video.frames)


def test_ours_is_the_tokenizers_own_mask(bench: Bench, scene: Scene) -> None:
    want = keep_mask(scene.z_BCTHW, MaskConfig(tau=TAU))[0]
    assert 0.1 < want.float().mean() < 0.9, "the clip tells rules apart"
    assert torch.equal(bench.run(scene, Setting()).tokens.mask, want)


@pytest.mark.parametrize("rule", ["random", "pixel-l1", "router"])
def test_rules_without_a_rate_keep_as_many_cells_as_ours(bench: Bench, scene: Scene, rule: str) -> None:
    ours = len(bench.run(scene, Setting()).tokens)
    got = len(bench.run(scene, Setting(rule=rule)).tokens)
    assert abs(got - ours) <= 3


def test_frame_skip_keeps_whole_slots(bench: Bench, scene: Scene) -> None:
    mask = bench.run(scene, Setting(rule="frame-skip", rate=0.5)).tokens.mask
    shares = mask.flatten(1).float().mean(1)
    assert set(shares.tolist()) <= {0.0, 1.0} and shares.sum() == 2


def test_evaluations_are_counted_not_assumed(bench: Bench, scene: Scene) -> None:
    nfe = {rule: bench.run(scene, Setting(rule=rule)).nfe for rule in RULES}
    assert [nfe[r] for r in ("full", "ours", "hold", "linear", "random", "frame-skip", "pixel-l1")] == [0] * 7
    assert nfe["router"] == 1
    cells, slot = scene.z_BCTHW[:, 0].numel(), scene.z_BCTHW[0, 0, 0].numel()
    assert abs(nfe["search"] - math.log2(cells - slot)) <= 1.5
    assert nfe["search-blocks"] >= (scene.z_BCTHW.shape[2] - 1) * (math.log2(slot) - 1)


def test_a_second_decode_in_a_rule_would_show(bench: Bench, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def spendthrift(scene: Scene, setting: Setting) -> torch.Tensor:
        scene.decode_full()
        bench.tokenizer.encode_pixels(scene.x_BCTHW)
        return RULES["full"](scene, setting)

    monkeypatch.setitem(RULES, "router", spendthrift)
    outcome = bench.run(scene, Setting(rule="router"))
    assert outcome.evaluations["allocate"] == {"encode": 1, "decode": 1, "fill": 0}
    assert outcome.evaluations["rebuild"]["decode"] == 1
    assert outcome.nfe == 2


def test_calls_of_the_filling_network_are_counted(tiny_mini) -> None:
    from inlay.fill import Filler, Lit, LitConfig
    from inlay.tokenizer import Tokenizer

    lit = Lit.build(LitConfig(width=32, heads=1, blocks=1, channels=tiny_mini.spec.channels)).eval()
    bench = Bench(Tokenizer(tiny_mini, filler=Filler({"lit": lit})), tau=TAU)
    scene = Scene(bench, "square", moving_square(9, 32, 32))
    outcome = bench.run(scene, Setting(rule="search"))
    spent = outcome.evaluations["allocate"]
    assert spent["fill"] == spent["decode"] == outcome.nfe > 3
    assert outcome.evaluations["rebuild"] == {"encode": 0, "decode": 1, "fill": 1}
    assert bench.run(scene, Setting(rule="hold")).evaluations["rebuild"]["fill"] == 0


def test_search_finds_the_smallest_budget_that_is_good_enough(bench: Bench) -> None:
    scene = Scene(bench, "still", still(9, 32, 32))
    loose = bench.run(scene, Setting(rule="search", mse=10.0)).tokens
    assert loose.keep_rate == pytest.approx(1 / 3), "slot 0 alone is enough"
    assert bench.run(scene, Setting(rule="search", mse=1e-12)).tokens.keep_rate == 1.0
    moving = Scene(bench, "square", moving_square(17, 48, 48))
    errors = {}
    for mse in (0.2, 0.24):
        outcome = bench.run(moving, Setting(rule="search", mse=mse))
        errors[mse] = outcome.tokens.keep_rate
    assert errors[0.24] <= errors[0.2]


def test_router_formula() -> None:
    even = router_ratios(torch.ones(4), 0.5)
    assert torch.allclose(even, torch.full((4,), 0.5, dtype=torch.float64))
    loss = torch.tensor([1.0, 1.0, 1.0, 5.0])  # w = -0.5, -0.5, -0.5, 1.5; s = min(1.5, 1/b - 1) / 1.5
    assert torch.allclose(router_ratios(loss, 0.25), torch.tensor([0.125, 0.125, 0.125, 0.625], dtype=torch.float64))
    tight = router_ratios(loss, 0.5)
    assert tight[3] == pytest.approx(1.0) and float(tight.mean()) == pytest.approx(0.5)
    assert router_ratios(torch.tensor([0.0, 1.0]), 0.1).min() == pytest.approx(1 / 16)


def test_mask_of_count_is_as_large_as_a_threshold_allows() -> None:
    z = torch.randn(1, 4, 5, 6, 6)
    for count in (36, 60, 100, 180):
        mask = mask_of_count(z, count)
        assert mask[:, 0].all() and count - 2 <= int(mask.sum()) <= count


@pytest.mark.parametrize("criterion", ["latent-l1", "latent-l2", "latent-cosine", "pixel-l1"])
@pytest.mark.parametrize("target", [0.4, 0.62, 0.9])
def test_matching_meets_a_keep_rate_by_bisection(criterion: str, target: float) -> None:
    clips = tuple(torch.randn(1, 4, 9, 8, 8) * (i + 1) for i in range(3))
    signal = Signal(latents=clips, pooled=clips)
    tau = match_tau(signal, target, criterion=criterion)
    assert signal.keep_rate(tau, criterion, "last-kept") == pytest.approx(target, abs=0.01)


def test_settings_check_themselves(tiny_mini) -> None:
    from inlay.tokenizer import Tokenizer

    with pytest.raises(UsageError, match="unknown rule 'routr'; did you mean 'router'"):
        Setting(rule="routr")
    with pytest.raises(ConfigError, match=r"in \(0, 1\]"):
        Setting(rate=0)
    with pytest.raises(ConfigError, match="inlay calibrate"):
        Bench(Tokenizer(tiny_mini))


@pytest.mark.parametrize("precision", ["q8", "fp16"])
def test_stored_precision_counts_the_bits_of_a_file(bench: Bench, scene: Scene, precision: str) -> None:
    plain, stored = bench.run(scene, Setting()), bench.run(scene, Setting(precision=precision))
    assert torch.equal(plain.tokens.mask, stored.tokens.mask)
    assert not torch.equal(plain.tokens.values, stored.tokens.values)
    assert stored.bits_per_pixel != plain.bits_per_pixel
