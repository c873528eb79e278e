# SPDX-License-Identifier: Apache-2.0
"""Plots of studies and reports, keep curves; colours that colour-blind readers can tell apart, and a marker each."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from typing import TYPE_CHECKING, Any

from inlay.errors import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from inlay.codec import KeepCurve

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")  # Okabe and Ito
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SIZE = (5.2, 3.6)  # inches of a panel
POINTS = 72  # in an inch: the unit of an SVG


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve, with an interval at each point where there is one."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    notes: tuple[str, ...] = ()  # beside each point
    mark: float | None = None  # a vertical line
    mark_label: str = ""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One plot."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    steps: bool = False  # a level from each point to the next, instead of a line
    scatter: bool = False  # points that no line joins


def png(panels: Sequence[Panel]) -> bytes:
    """Panels side by side, two in a row; one alone is as wide as two, so that all plots of a page have one scale."""
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = _figure(2 * SIZE[0], SIZE[1] * rows)
    for part, panel in zip(figure.subfigures(rows, columns, squeeze=False).flat, panels, strict=False):
        _draw(part, panel, notes=not panel.scatter)
    return _png(figure)


@lru_cache(maxsize=256)  # a report is written anew after every study
def svg(panel: Panel) -> str:
    """One panel as part of a web page, in the page's ink, each point with the words that appear when it is pointed at.

    The lines are matplotlib's; the points a reader can find (class `dot`, with `data-tip`) lie over them, unseen.
    """
    if not any(series.x for series in panel.series):
        return ""
    figure = _figure(*SIZE)
    axes = _draw(figure, panel, notes=False)
    target = io.StringIO()
    with require("matplotlib").rc_context({"svg.fonttype": "none", "svg.hashsalt": "inlay"}):
        plain = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        _save(figure, target, format="svg", transparent=True, metadata=plain)
    drawn = target.getvalue()
    drawn = re.sub(r"\s*<style.*?</style>", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
    name = escape(f"{panel.title or panel.y_label} against {panel.x_label}", quote=True)
    head = (
        f'<svg class="plot" viewBox="0 0 {SIZE[0] * POINTS:g} {SIZE[1] * POINTS:g}" role="img" tabindex="0" '
        f'aria-label="{name}" data-near="{"x" if panel.steps else "xy"}">'
    )
    body = drawn[drawn.index(">") + 1 : drawn.rindex("</svg>")].replace("#000000", "currentColor")
    return f"{head}{body}{''.join(_dots(panel, axes))}</svg>"


def _dots(panel: Panel, axes: Axes) -> list[str]:
    found = []
    for i, series in enumerate(panel.series):
        places = axes.transData.transform(list(zip(series.x, series.y, strict=True)))
        for k, (x, y) in enumerate(places):
            tip = escape("\n".join(_words(panel, series, k)), quote=True).replace("\n", "&#10;")
            place = f'cx="{x:.1f}" cy="{SIZE[1] * POINTS - y:.1f}"'
            found.append(f'<circle class="dot" {place} r="4" fill="{COLOURS[i % len(COLOURS)]}" data-tip="{tip}"/>')
    return found


def _words(panel: Panel, series: Series, k: int) -> list[str]:
    """What is said of one point."""
    low = series.low[k] if k < len(series.low) else None
    high = series.high[k] if k < len(series.high) else None
    span = "" if low is None or high is None else f" [{low:.4g}, {high:.4g}]"
    rows = [series.label, f"{panel.y_label}: {series.y[k]:.4g}{span}", f"{panel.x_label}: {series.x[k]:.4g}"]
    return rows + ([series.notes[k]] if k < len(series.notes) else [])


def _draw(part: Figure | SubFigure, panel: Panel, *, notes: bool) -> Axes:
    axes = part.add_subplot()
    for i, series in enumerate(panel.series):
        _series(axes, panel, series, i, notes=notes)
    axes.set_title(panel.title, fontsize=11, fontweight="bold", loc="left")
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    labels = axes.get_legend_handles_labels()[1]
    if len(labels) > 1:
        columns = max(1, min(len(labels), 70 // (max(map(len, labels)) + 6)))
        part.legend(loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    return axes


def _series(axes: Axes, panel: Panel, series: Series, i: int, *, notes: bool) -> None:
    colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
    if series.mark is not None:
        axes.axvline(series.mark, color=colour, linestyle="--", linewidth=1, label=series.mark_label)
    if panel.steps:
        axes.step(series.x, series.y, where="post", color=colour, label=series.label, linewidth=1.4)
        return
    width = 0 if panel.scatter else 1.4
    axes.plot(series.x, series.y, color=colour, marker=marker, markersize=4, label=series.label, linewidth=width)
    spans = [(x, a, b) for x, a, b in zip(series.x, series.low, series.high, strict=False) if a is not None]
    if spans:
        places, low, high = zip(*spans, strict=True)
        axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
    for x, y, note in zip(series.x, series.y, series.notes, strict=False) if notes else ():
        axes.annotate(note, (x, y), textcoords="offset points", xytext=(0, -12), fontsize=7, ha="center")


def keep_curves(curves: Mapping[str, KeepCurve], *, title: str = "") -> bytes:
    """The share of cells kept over time as PNG, a panel for each curve, with that of the whole clip as a line."""
    figure = _figure(2 * SIZE[0], SIZE[1] * len(curves))
    panels = figure.subplots(len(curves), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, curve) in zip(panels, curves.items(), strict=True):
        seconds, rates = curve.seconds, curve.keep_rates
        times, percent = [*seconds, curve.end], [100 * rate for rate in (*rates, rates[-1])]
        axes.fill_between(times, percent, step="post", color=COLOURS[0], alpha=0.25, linewidth=0)
        axes.step(times, percent, where="post", color=COLOURS[0], linewidth=1.5)
        axes.axhline(100 * curve.keep_rate, color=COLOURS[1], linewidth=1.2, linestyle="--")
        axes.set(ylabel="cells kept (%)", ylim=(0, 104), title=f"{name}: {100 * curve.keep_rate:.1f} % of cells kept")
        axes.margins(x=0)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("seconds")
    if title:
        figure.suptitle(title)
    return _png(figure)


def _figure(width: float, height: float) -> Figure:
    figure: Figure = require("matplotlib.figure").Figure(figsize=(width, height), dpi=POINTS, layout="constrained")
    return figure


def _png(figure: Figure) -> bytes:
    target = io.BytesIO()
    _save(figure, target, format="png", dpi=120, metadata={"Software": ""})  # no version inside: equal bytes
    return target.getvalue()


def _save(figure: Figure, target: io.StringIO | io.BytesIO, **how: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)  # a file's name in a script the font lacks
        figure.savefig(target, **how)
