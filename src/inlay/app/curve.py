# SPDX-License-Identifier: Apache-2.0
"""Keep rates over time in, a PNG out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from inlay.app.paths import atomic
from inlay.errors import require

if TYPE_CHECKING:
    from inlay.stream import KeepCurve


def draw_curve(
    path: str, seconds: Sequence[float], keep_rates: Sequence[float], *, keep_rate: float, title: str
) -> Path:
    """The share of cells kept at each time, as steps, with that of the whole clip as a line."""
    figure_module = require("matplotlib.figure", extra="plot")
    figure = figure_module.Figure(figsize=(8, 3), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    percent = [100 * rate for rate in keep_rates]
    axes.fill_between(seconds, percent, step="post", color="#0072B2", alpha=0.25, linewidth=0)
    axes.step(seconds, percent, where="post", color="#0072B2", linewidth=1.5)
    axes.axhline(100 * keep_rate, color="#D55E00", linewidth=1.2, linestyle="--")
    axes.set(xlabel="seconds", ylabel="cells kept (%)", ylim=(0, 104), title=f"{title}: {keep_rate:.1%} of cells kept")
    axes.margins(x=0)
    axes.spines[["top", "right"]].set_visible(False)
    with atomic(path) as part:
        figure.savefig(part, format="png")
    return Path(path)


def draw_curves(path: str, curves: Mapping[str, KeepCurve], *, title: str) -> Path:
    """One panel for each curve, on the same axes: per-clip spikes above, the flat streaming curve below."""
    figure_module = require("matplotlib.figure", extra="plot")
    figure = figure_module.Figure(figsize=(8, 1 + 2 * len(curves)), dpi=120, layout="constrained")
    panels = figure.subplots(len(curves), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, curve) in zip(panels, curves.items(), strict=True):
        percent = [100 * rate for rate in curve.keep_rates]
        axes.fill_between(curve.seconds, percent, step="post", color="#0072B2", alpha=0.25, linewidth=0)
        axes.step(curve.seconds, percent, where="post", color="#0072B2", linewidth=1.2)
        axes.axhline(100 * curve.keep_rate, color="#D55E00", linewidth=1.2, linestyle="--")
        axes.set(ylabel="cells kept (%)", ylim=(0, 104), title=f"{name}: {curve.keep_rate:.1%} of cells kept")
        axes.margins(x=0)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("seconds")
    figure.suptitle(title)
    with atomic(path) as part:
        figure.savefig(part, format="png")
    return Path(path)
