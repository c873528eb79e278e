# SPDX-License-Identifier: Apache-2.0
"""A panel of numbers in, one SVG out, each point with the words that appear when it is pointed at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from inlay.research.studies.plots import COLOURS, Panel, Series

WIDTH, HEIGHT = 470, 310  # of the drawing; the page scales it
LEFT, RIGHT, TOP, BOTTOM = 84, 16, 30, 48
SHAPES = ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "M-4-4h8v8h-8z", "M0-5l5 9h-10z", "M0-5.5l5.5 5.5-5.5 5.5-5.5-5.5z")


class Scale:
    """Numbers to places along one axis."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = min(values), max(values)
        room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
        self.low, self.high, self.start, self.end = low - room, high + room, start, end

    def __call__(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Round numbers, four to eight of them."""
        raw = (self.high - self.low) / 6
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(f * power for f in (1, 2, 5, 10) if f * power >= raw)
        first = math.ceil(self.low / step)
        return [round(i * step, 10) for i in range(first, math.floor(self.high / step) + 1)]


def draw(panel: Panel) -> str:
    """The plot; empty where no series has a point."""
    points = [(x, y) for s in panel.series for x, y in zip(s.x, s.y, strict=True)]
    if not points:
        return ""
    spans = [v for s in panel.series for v in (*s.low, *s.high) if v is not None]
    x = Scale([p[0] for p in points], LEFT, WIDTH - RIGHT)
    y = Scale([*(p[1] for p in points), *spans], HEIGHT - BOTTOM, TOP)
    body = [_axes(panel, x, y)]
    body += [_series(panel, s, i, x, y) for i, s in enumerate(panel.series)]
    label = escape(f"{panel.title or panel.y_label} against {panel.x_label}", quote=True)
    mode = "x" if panel.steps else "xy"
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" aria-label="{label}" '
        f'data-near="{mode}">{"".join(body)}</svg>{_legend(panel)}'
    )


def colour(i: int) -> str:
    """Black stands for the ink of the page, which may be dark."""
    chosen = COLOURS[i % len(COLOURS)]
    return "currentColor" if chosen == "#000000" else chosen


def _axes(panel: Panel, x: Scale, y: Scale) -> str:
    bottom, middle = HEIGHT - BOTTOM, (TOP + HEIGHT - BOTTOM) / 2
    parts = [f'<text class="title" x="{LEFT}" y="18">{escape(panel.title)}</text>']
    for value in x.ticks():
        parts.append(f'<line class="grid" x1="{x(value)}" x2="{x(value)}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(f'<text x="{x(value)}" y="{bottom + 17}" text-anchor="middle">{value:g}</text>')
    for value in y.ticks():
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value)}" y2="{y(value)}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4}" text-anchor="end">{value:g}</text>')
    centre = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{centre}" y="{HEIGHT - 8}" text-anchor="middle">{escape(panel.x_label)}</text>')
    turned = f'transform="rotate(-90 14 {middle})"'
    parts.append(f'<text x="14" y="{middle}" text-anchor="middle" {turned}>{escape(panel.y_label)}</text>')
    return "".join(parts)


def _series(panel: Panel, series: Series, i: int, x: Scale, y: Scale) -> str:
    parts = [_band(series, i, x, y)]
    if not panel.scatter and len(series.x) > 1:
        parts.append(f'<path class="line" d="{_path(panel, series, x, y)}" stroke="{colour(i)}"/>')
    shape = SHAPES[i % len(SHAPES)]
    hidden = " quiet" if panel.steps and len(series.x) > 12 else ""
    for k, (a, b) in enumerate(zip(series.x, series.y, strict=True)):
        tip = escape("\n".join(_words(panel, series, k)), quote=True).replace("\n", "&#10;")
        parts.append(
            f'<path class="dot{hidden}" d="{shape}" transform="translate({x(a)} {y(b)})" fill="{colour(i)}" '
            f'data-x="{x(a)}" data-y="{y(b)}" data-tip="{tip}"/>'
        )
    return "".join(parts)


def _path(panel: Panel, series: Series, x: Scale, y: Scale) -> str:
    places = [(x(a), y(b)) for a, b in zip(series.x, series.y, strict=True)]
    if not panel.steps:
        return "M" + "L".join(f"{a} {b}" for a, b in places)
    words = [f"M{places[0][0]} {places[0][1]}"]
    for (a, _), (c, d) in pairwise(places):
        words.append(f"H{round((a + c) / 2, 1)}V{d}")
    return "".join([*words, f"H{places[-1][0]}"])


def _band(series: Series, i: int, x: Scale, y: Scale) -> str:
    spans = [
        (a, low, high)
        for a, low, high in zip(series.x, series.low, series.high, strict=False)
        if low is not None and high is not None
    ]
    if len(spans) < 2:
        return ""
    there = "L".join(f"{x(a)} {y(high)}" for a, _, high in spans)
    back = "L".join(f"{x(a)} {y(low)}" for a, low, _ in reversed(spans))
    return f'<path class="band" d="M{there}L{back}Z" fill="{colour(i)}"/>'


def _words(panel: Panel, series: Series, k: int) -> list[str]:
    """What is said of one point."""
    low = series.low[k] if k < len(series.low) else None
    high = series.high[k] if k < len(series.high) else None
    span = "" if low is None or high is None else f" [{low:.4g}, {high:.4g}]"
    rows = [series.label, f"{panel.y_label}: {series.y[k]:.4g}{span}", f"{panel.x_label}: {series.x[k]:.4g}"]
    return rows + ([series.notes[k]] if k < len(series.notes) else [])


def _legend(panel: Panel) -> str:
    if len(panel.series) < 2:
        return ""
    keys = []
    for i, series in enumerate(panel.series):
        mark = f'<svg viewBox="-6 -6 12 12" class="key"><path d="{SHAPES[i % len(SHAPES)]}" fill="{colour(i)}"/></svg>'
        keys.append(f"<span>{mark}{escape(series.label)}</span>")
    return f'<p class="legend">{"".join(keys)}</p>'
