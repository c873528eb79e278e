# SPDX-License-Identifier: Apache-2.0
"""Keep rates over time in, a PNG out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inlay.cli.paths import atomic
from inlay.errors import require

if TYPE_CHECKING:
    from inlay.codec import KeepCurve


def draw_curve(
    path: str, seconds: Sequence[float], keep_rates: Sequence[float], *, keep_rate: float, title: str
) -> Path:
    """The share of cells kept at each time, as steps, with that of the whole clip as a line."""
    figure_module = require("matplotlib.figure", extra="plot")
    figure = figure_module.Figure(figsize=(8, 3), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    _steps(axes, seconds, keep_rates, keep_rate=keep_rate)
    axes.set(xlabel="seconds", ylabel="cells kept (%)", ylim=(0, 104), title=f"{title}: {keep_rate:.1%} of cells kept")
    axes.margins(x=0)
    axes.spines[["top", "right"]].set_visible(False)
    with atomic(path) as part:
        figure.savefig(part, format="png")
    return Path(path)


def _steps(axes: Any, seconds: Sequence[float], keep_rates: Sequence[float], *, keep_rate: float) -> None:
    """Each rate from its time to the next one's; the last is given the length of the one before."""
    last = seconds[-1] - seconds[-2] if len(seconds) > 1 else 1.0
    times = [*seconds, seconds[-1] + last]
    percent = [100 * rate for rate in (*keep_rates, keep_rates[-1])]
    axes.fill_between(times, percent, step="post", color="#0072B2", alpha=0.25, linewidth=0)
    axes.step(times, percent, where="post", color="#0072B2", linewidth=1.5)
    axes.axhline(100 * keep_rate, color="#D55E00", linewidth=1.2, linestyle="--")


def draw_curves(path: str, curves: Mapping[str, KeepCurve], *, title: str) -> Path:
    """One panel for each curve, on the same axes: per-clip spikes above, the flat streaming curve below."""
    figure_module = require("matplotlib.figure", extra="plot")
    figure = figure_module.Figure(figsize=(8, 1 + 2 * len(curves)), dpi=120, layout="constrained")
    panels = figure.subplots(len(curves), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, curve) in zip(panels, curves.items(), strict=True):
        _steps(axes, curve.seconds, curve.keep_rates, keep_rate=curve.keep_rate)
        axes.set(ylabel="cells kept (%)", ylim=(0, 104), title=f"{name}: {curve.keep_rate:.1%} of cells kept")
        axes.margins(x=0)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("seconds")
    figure.suptitle(title)
    with atomic(path) as part:
        figure.savefig(part, format="png")
    return Path(path)
