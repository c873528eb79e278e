# SPDX-License-Identifier: Apache-2.0
"""Intervals and tests against scipy, and the cases scipy leaves to the caller."""

from __future__ import annotations

import numpy as np
import pytest

from inlay.errors import UsageError
from inlay.measure import bootstrap_interval, paired_comparison


@pytest.fixture
def arms() -> tuple[list[float], list[float]]:
    random = np.random.default_rng(3)
    a = random.normal(28, 2, 30)
    return list(a), list(a - random.normal(0.3, 0.5, 30))


def test_bootstrap_is_seeded_and_near_the_normal_interval() -> None:
    x = np.random.default_rng(0).normal(5, 2, 200)
    low, high = bootstrap_interval(list(x), seed=1)
    assert (low, high) == bootstrap_interval(list(x), seed=1) != bootstrap_interval(list(x), seed=2)
    half = 1.96 * x.std(ddof=1) / np.sqrt(200)
    assert low == pytest.approx(x.mean() - half, abs=0.03) and high == pytest.approx(x.mean() + half, abs=0.03)


def test_bootstrap_covers_the_truth_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(8)
    hits = 0
    for i in range(300):
        low, high = bootstrap_interval(random.normal(0, 1, 30), resamples=500, seed=i)
        hits += low <= 0 <= high
    assert 0.90 <= hits / 300 <= 0.99


def test_bootstrap_of_a_large_set_is_cut_into_parts_without_losing_any() -> None:
    low, high = bootstrap_interval(np.arange(50_000.0), resamples=101)
    assert low < 24_999.5 < high


def test_paired_comparison_is_scipys(arms: tuple[list[float], list[float]]) -> None:
    stats = pytest.importorskip("scipy.stats")
    got = paired_comparison(*arms)
    t = stats.ttest_rel(*arms)
    assert got.clips == 30
    assert got.t_p == pytest.approx(t.pvalue)
    assert (got.low, got.high) == pytest.approx(tuple(t.confidence_interval(0.95)))
    assert got.wilcoxon_p == pytest.approx(stats.wilcoxon(*arms).pvalue)
    assert got.low < got.mean_difference < got.high


def test_differences_without_spread() -> None:
    same = paired_comparison([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (same.mean_difference, same.low, same.high, same.t_p, same.wilcoxon_p) == (0, 0, 0, 1, 1)
    shifted = paired_comparison([2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0])
    assert (shifted.low, shifted.high, shifted.t_p) == (1, 1, 0)
    assert shifted.wilcoxon_p == pytest.approx(0.125)


def test_what_has_no_statistic_is_refused() -> None:
    with pytest.raises(UsageError, match="2 and 3"):
        paired_comparison([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(UsageError, match="at least 2"):
        paired_comparison([1.0], [2.0])
    with pytest.raises(UsageError, match="not finite"):
        bootstrap_interval([1.0, float("nan")])
    with pytest.raises(UsageError, match="confidence"):
        bootstrap_interval([1.0, 2.0], confidence=95)
