# SPDX-License-Identifier: Apache-2.0
"""Intervals and paired tests over the numbers of the same clips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inlay.errors import UsageError, require


def bootstrap_interval(
    values: Sequence[float], *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean; the same seed gives the same interval.

    >>> bootstrap_interval([2.0, 2.0, 2.0])
    (2.0, 2.0)
    """
    x_N = _numbers(values, least=1)
    if not 0 < confidence < 1:
        raise UsageError(f"confidence lies between 0 and 1, for example 0.95; got {confidence}")
    random = np.random.default_rng(seed)
    rows = max(1, 2_000_000 // len(x_N))  # bounds the index table for large sets
    means = np.concatenate(
        [
            x_N[random.integers(0, len(x_N), (min(rows, resamples - done), len(x_N)))].mean(1)
            for done in range(0, resamples, rows)
        ]
    )
    tail = 50 * (1 - confidence)
    low, high = np.percentile(means, [tail, 100 - tail])
    return float(low), float(high)


@dataclass(frozen=True, kw_only=True)
class PairedComparison:
    """Two arms scored on the same clips: the difference a - b, its 95 % interval, and two tests that it is zero."""

    clips: int
    mean_difference: float
    low: float  # Student t interval of the mean difference
    high: float
    t_p: float  # paired t-test, two-sided
    wilcoxon_p: float  # Wilcoxon signed-rank, two-sided, ties of zero left out


def paired_comparison(a: Sequence[float], b: Sequence[float], *, confidence: float = 0.95) -> PairedComparison:
    """Compare two arms clip by clip; the order of clips must be the same in both."""
    if len(a) != len(b):
        raise UsageError(f"a paired comparison needs the same clips in both arms; got {len(a)} and {len(b)} values")
    d_N = _numbers(a, least=2) - _numbers(b, least=2)
    mean, sd = float(d_N.mean()), float(d_N.std(ddof=1))
    if sd <= 1e-12 * max(1.0, abs(mean)):  # no spread: the tests' formulas divide by it
        p = 1.0 if abs(mean) <= 1e-12 else 0.0
        exact = min(1.0, 2.0 ** (1 - len(d_N))) if d_N.any() else 1.0  # of all sign patterns two are as extreme
        return PairedComparison(clips=len(d_N), mean_difference=mean, low=mean, high=mean, t_p=p, wilcoxon_p=exact)
    stats = require("scipy.stats", extra="measure")
    test = stats.ttest_1samp(d_N, 0.0)
    span = test.confidence_interval(confidence)
    return PairedComparison(
        clips=len(d_N), mean_difference=mean, low=float(span.low), high=float(span.high), t_p=float(test.pvalue),
        wilcoxon_p=float(stats.wilcoxon(d_N).pvalue),
    )  # fmt: skip


def _numbers(values: Sequence[float], *, least: int) -> np.ndarray:
    x_N = np.asarray(values, dtype=np.float64)
    if x_N.ndim != 1 or len(x_N) < least:
        raise UsageError(f"this statistic needs at least {least} values in a row; got shape {list(x_N.shape)}")
    if not np.isfinite(x_N).all():
        raise UsageError(f"{int((~np.isfinite(x_N)).sum())} of {len(x_N)} values are not finite; leave those clips out")
    return x_N
