# SPDX-License-Identifier: Apache-2.0
"""Budgets, the bucket, the noise floor: what they promise, on latents made by code."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from inlay.errors import ConfigError
from inlay.masking import Bucket, Budget, Income, MaskConfig, Selector, SelectState, largest_tau, scan, smallest_tau
from inlay.masking.select import capped

REFUSED = [
    ({"tau": 0.3, "keep": 0.3}, "tau and keep contradict"),
    ({"tokens": 5, "bits": 0.1, "psnr": 30}, "tokens and bits and psnr contradict"),
    ({"tau": -1}, "tau is a distance"),
    ({"tau": math.nan}, "tau is a distance"),
    ({"keep": 0}, "keep is a share"),
    ({"keep": 1.5}, "got 1.5"),
    ({"keep": -0.1}, "keep is a share"),
    ({"keep": math.nan}, "keep is a share"),
    ({"tokens": 0}, "tokens is a number"),
    ({"bits": 0}, "bits is bits a pixel"),
    ({"bits": math.inf}, "finite"),
    ({"psnr": -3}, "psnr is decibels"),
    ({"psnr": 101}, "at most 100"),
    ({"exact": True}, "exact makes a keep rate"),
    ({"tau": 1, "bucket_seconds": 2}, "a keep rate or bits"),
    ({"tau": 1, "bits": 0.1, "bucket_seconds": 2}, "a bucket steers tau"),
    ({"tau": 1, "bits": 0.1, "psnr": 30}, "tau and bits and psnr contradict"),
    ({"keep": 0.2, "bucket_seconds": 0}, "bucket_seconds is a time"),
    ({"keep": 0.2, "exact": True, "bucket_seconds": 2}, "give one of them"),
]


@pytest.mark.parametrize(("given", "says"), REFUSED, ids=[str(g) for g, _ in REFUSED])
def test_bad_budgets_are_refused_with_a_sentence(given: dict, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Budget(**given)


def test_smallest_tau_holds_the_limit_though_cost_is_not_monotone() -> None:
    def cost(tau: float) -> float:
        return 1000 / (1 + tau) + 40 * math.sin(9 * tau)

    found = smallest_tau(cost, 300, start=0.1)
    assert found is not None
    assert cost(found.tau) == found.value <= 300
    assert found.value > 290
    assert smallest_tau(lambda tau: 5, 4, start=0.1) is None
    assert smallest_tau(lambda tau: 5, 5, start=0.1) is not None


def test_smallest_tau_reaches_zero_when_everything_fits() -> None:
    found = smallest_tau(lambda tau: 100 if tau == 0 else 50 / (1 + tau), 1000, start=0.3)
    assert found is not None
    assert (found.tau, found.value) == (0.0, 100)


def test_largest_tau_counts_its_trials_and_reaches_the_target() -> None:
    tried = []

    def quality(tau: float) -> float:
        tried.append(tau)
        return 40 - 6 * math.log1p(8 * tau)

    found = largest_tau(quality, 30, start=0.05)
    assert found is not None
    assert 30 <= found.value <= 30.05
    assert found.trials == len(tried) <= 12
    assert largest_tau(quality, 41, start=0.05) is None
    assert largest_tau(quality, 40, start=0.05) is not None  # tau 0 just reaches it


def walk(slots: int = 12, seed: int = 0, rows: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, 4, slots, rows, 7, generator=generator).cumsum(2)


TAUS = [0.0, 0.2, 0.5, 0.8, 1.1, 1.5, 2.0, 4.0]


@pytest.mark.parametrize("seed", range(8))
def test_a_larger_tau_never_keeps_more_under_previous(seed: int) -> None:
    z = walk(seed=seed)
    masks = [scan(z, MaskConfig(tau=tau, reference="previous"))[0] for tau in TAUS]
    for more, fewer in pairwise(masks):
        assert not (fewer & ~more).any()  # not only fewer: a subset


def test_under_last_kept_a_larger_tau_can_keep_more() -> None:
    """What holds: the limit of a budget, because each answer is counted. What does not: monotony in tau."""
    z = torch.tensor([0.0, 1.0, 1.9, 0.5, 1.9, 0.5]).view(1, 1, 6, 1, 1)
    few, many = (int(scan(z, MaskConfig(tau=tau))[0].sum()) for tau in (1.0, 1.2))
    assert (few, many) == (2, 5)  # the small step at tau 1.0 puts the reference in the middle, where nothing is far


@pytest.mark.parametrize("reference", ["last-kept", "previous"])
@pytest.mark.parametrize("cut", range(1, 12))
def test_selector_is_scan_wherever_it_is_cut(reference: str, cut: int) -> None:
    z, config = walk(), MaskConfig(tau=1.0, reference=reference)
    selector = Selector(config)
    a = selector.select(z[:, :, :cut], SelectState(), key=True)
    b = selector.select(z[:, :, cut:], a.state, key=False)
    assert torch.cat([a.keep_BTHW, b.keep_BTHW], 1).equal(scan(z, config)[0])


def test_cap_keeps_the_most_changed_and_breaks_ties() -> None:
    score = torch.tensor([[[5.0, 5.0, 1.0], [5.0, 9.0, 0.0]]])
    assert int((score >= capped(score, 2.0, 2)).sum()) == 2
    assert (score >= capped(score, 2.0, 1)).nonzero().tolist() == [[0, 1, 1]]
    assert int((score >= capped(score, 2.0, 10)).sum()) == 4
    assert not (score >= capped(score, 0.0, 0)).any()


def spend(keep: float, tau: float, bucket: Bucket, keys: tuple[int, ...] = (0,)) -> tuple[Tensor, Bucket]:
    """([180] how many tokens ahead of its income after each slot, the bucket) of a scene that gets restless."""
    z = torch.cat([walk(60, seed=1) * 0.1, walk(60, seed=2), walk(60, seed=3) * 3], 2)
    state, kept = SelectState(bucket=bucket), []
    for first, end in zip(keys, (*keys[1:], 180), strict=True):
        span = z[:, :, first:end]
        incomes = [Income(keep * CELLS, 1.0)] * (end - first)
        chosen = Selector(MaskConfig(tau=tau)).select(span, state, key=True, incomes=incomes)
        state = chosen.state
        kept.append(chosen.keep_BTHW.flatten(2).sum(2)[0].double())
    assert state.bucket is not None
    return torch.cat(kept).cumsum(0) - keep * CELLS * torch.arange(1, 181, dtype=torch.float64), state.bucket


CELLS = 42


@pytest.mark.parametrize("keep", [0.1, 0.3, 0.7])
@pytest.mark.parametrize("tau", [0.01, 0.5, 5.0])
@pytest.mark.parametrize("slots", [15, 30])
def test_a_bucket_pays_the_first_slot_back_in_its_time(keep: float, tau: float, slots: int) -> None:
    debt, size = (1 - keep) * CELLS, slots * keep * CELLS
    ahead, bucket = spend(keep, tau, Bucket(size=size, saving=debt / (size - keep * CELLS)))
    assert ahead[0] == pytest.approx(debt) and ahead.max() == ahead[0], "nothing but the first slot makes debts"
    assert (ahead[slots - 1 :] <= 1e-6).all(), "a stream that lasts as long as the bucket does not end above its rate"
    assert bucket.ahead_until < slots
    assert bucket.peak == pytest.approx(debt)
    assert bucket.spent == pytest.approx(float(ahead[-1]) + keep * CELLS * 180)


@pytest.mark.parametrize("keep", [0.1, 0.3, 0.7])
def test_a_reserve_pays_for_later_key_slots(keep: float) -> None:
    debt, size = (1 - keep) * CELLS, 30 * keep * CELLS
    bucket = Bucket(size=size, reserve=debt, saving=debt / (size - keep * CELLS))
    ahead, _ = spend(keep, 0.01, bucket, keys=(0, 60, 120))
    assert (ahead[29:] <= 1e-6).all(), "not even right after a key slot"
    assert ahead[-1] > -2 * debt, "and no more than the reserve is left over"


def test_bucket_holds_the_long_run_rate() -> None:
    z = walk(400, seed=4)
    state = SelectState(bucket=Bucket(size=42.0))
    chosen = Selector(MaskConfig(tau=1.0)).select(z, state, key=True, incomes=[Income(0.3 * 42, 1.0)] * 400)
    assert chosen.keep_BTHW.float().mean() == pytest.approx(0.3, abs=0.01)


def static_noise(sigma: float, slots: int = 24) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    scene = torch.randn(1, 16, 1, 12, 12, generator=generator) * 2
    return scene + sigma * torch.randn(1, 16, slots, 12, 12, generator=generator)


@pytest.mark.parametrize("sigma", [0.25, 0.35, 0.45])
def test_noise_in_a_static_scene_spends_no_tokens(sigma: float) -> None:
    z, config = static_noise(sigma), MaskConfig(tau=0.25)
    plain = Selector(config).select(z, SelectState(), key=True).keep_BTHW[:, 1:].float().mean()
    calm = Selector(config, noise=True).select(z, SelectState(), key=True).keep_BTHW[:, 1:].float().mean()
    assert plain > 0.5
    assert calm < 0.01


def test_noise_floor_only_ever_raises_the_threshold() -> None:
    z = walk(seed=6)
    for tau in (0.1, 1.0):
        limit = Selector(MaskConfig(tau=tau, reference="previous"), noise=True)
        keep = limit.select(z, SelectState(), key=True).keep_BTHW
        assert not (keep & ~scan(z, MaskConfig(tau=tau, reference="previous"))[0]).any()


def test_what_moves_in_a_noisy_scene_is_still_kept() -> None:
    z = static_noise(0.3)
    for t in range(4, 24):
        z[:, :, t, 3:6, t % 9 : t % 9 + 3] += 4.0
    config = MaskConfig(tau=0.25)
    keep = Selector(config, noise=True).select(z, SelectState(), key=True).keep_BTHW[0]
    for t in range(5, 24):
        assert keep[t, 3:6, t % 9 + 2].all(), "the leading edge of the object"
    away = torch.ones(12, 12, dtype=torch.bool)
    away[1:8] = False
    assert keep[1:, away].float().mean() < 0.01


def test_steady_motion_is_not_taken_for_noise() -> None:
    z = walk(30, seed=7, rows=60)  # change grows with time: no noise
    config = MaskConfig(tau=0.8, reference="previous")
    keep = Selector(config, noise=True).select(z, SelectState(), key=True).keep_BTHW[:, 2:]
    assert keep.equal(scan(z, config)[0][:, 2:])
