# SPDX-License-Identifier: Apache-2.0
"""Numbers and frames in, pictures out; colours that colour-blind readers can tell apart, and a marker each."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from inlay.errors import require

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")  # Okabe and Ito
CELL, GAP = 128, 22  # pixels of a picture on a contact sheet, and of the line of text above it
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve, with an interval at each point where there is one."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    notes: tuple[str, ...] = ()  # beside each point


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    steps: bool = False  # a level for each point, instead of a line from one to the next
    scatter: bool = False  # points that no line joins

    @staticmethod
    def from_record(raw: dict[str, Any]) -> Panel:
        def series(one: dict[str, Any]) -> Series:
            lists = {k: tuple(v) for k, v in one.items() if k != "label"}
            return Series(label=one["label"], **lists)

        return Panel(**{**raw, "series": tuple(series(one) for one in raw["series"])})


def curves(panels: Sequence[Panel]) -> bytes:
    """Panels side by side, two in a row."""
    plt = _pyplot()
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(5.2 * columns, 3.6 * rows), squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        for i, series in enumerate(panel.series):
            _draw(axis, series, i, steps=panel.steps, line=not panel.scatter)
        axis.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        axis.grid(alpha=0.3)
        if len(panel.series) > 1:
            axis.legend(fontsize=8)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    return _image(figure)


def _draw(axis: Any, series: Series, i: int, *, steps: bool, line: bool = True) -> None:
    colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
    if steps:
        axis.step(series.x, series.y, where="mid", color=colour, label=series.label, linewidth=1.4)
        return
    width = 1.4 if line else 0
    axis.plot(series.x, series.y, color=colour, marker=marker, markersize=4, label=series.label, linewidth=width)
    spans = [(x, a, b) for x, a, b in zip(series.x, series.low, series.high, strict=False) if a is not None]
    if spans:
        axis.fill_between(*zip(*spans, strict=True), color=colour, alpha=0.15, linewidth=0)
    for x, y, note in zip(series.x, series.y, series.notes, strict=False):
        axis.annotate(note, (x, y), textcoords="offset points", xytext=(0, -12), fontsize=7, ha="center")


@dataclass(frozen=True, kw_only=True)
class Histogram:
    label: str
    edges: tuple[float, ...]
    counts: tuple[float, ...]
    mark: float | None = None  # a vertical line
    mark_label: str = ""


def histograms(groups: Sequence[tuple[str, Sequence[Histogram]]]) -> bytes:
    """One panel below the other: (label of the axis, the distributions on it), each scaled to its own total."""
    plt = _pyplot()
    figure, axes = plt.subplots(len(groups), 1, figsize=(7, 3 * len(groups)), squeeze=False)
    for axis, (x_label, rows) in zip(axes.flat, groups, strict=True):
        for i, row in enumerate(rows):
            colour = COLOURS[i % len(COLOURS)]
            total = sum(row.counts) or 1.0
            axis.stairs([c / total for c in row.counts], row.edges, fill=True, alpha=0.35, color=colour)
            axis.stairs([c / total for c in row.counts], row.edges, color=colour, label=row.label)
            if row.mark is not None:
                axis.axvline(row.mark, color=colour, linestyle="--", linewidth=1, label=row.mark_label)
        axis.set(xlabel=x_label, ylabel="share")
        axis.legend(fontsize=8)
    return _image(figure)


def as_panels(groups: Sequence[tuple[str, Sequence[Histogram]]]) -> tuple[Panel, ...]:
    """The same distributions as panels that a page can draw."""
    return tuple(
        Panel(
            title="",
            x_label=x_label,
            y_label="share, %",
            steps=True,
            series=tuple(
                Series(
                    label=row.label,
                    x=tuple((a + b) / 2 for a, b in pairwise(row.edges)),
                    y=tuple(100 * c / (sum(row.counts) or 1.0) for c in row.counts),
                )
                for row in rows
            ),
        )
        for x_label, rows in groups
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Strip:
    """One row of pictures, [H, W, 3] uint8 each, with a title for the row and one for each picture."""

    title: str
    pictures: tuple[np.ndarray, ...]
    titles: tuple[str, ...] = ()


def contact_sheet(strips: Sequence[Strip]) -> bytes:
    """All strips as one picture; a drawing for each would take a minute."""
    plt = _pyplot()
    columns = max(len(s.pictures) for s in strips)
    tile = CELL + GAP
    sheet = np.full((tile * len(strips), tile * columns, 3), 255, np.uint8)
    figure, axis = plt.subplots(figsize=(1.2 * columns + 0.9, 1.2 * len(strips) + 0.2))
    for y, strip in enumerate(strips):
        for x, picture in enumerate(strip.pictures):
            sheet[y * tile + GAP : (y + 1) * tile, x * tile : x * tile + CELL] = shrink(picture, CELL)
        for x, title in enumerate(strip.titles):
            axis.text(x * tile + CELL / 2, y * tile + GAP - 3, title, fontsize=8, ha="center", va="bottom")
    axis.imshow(sheet, interpolation="nearest")
    axis.set_xticks([])
    axis.set_yticks([y * tile + GAP + CELL / 2 for y in range(len(strips))], [s.title for s in strips], fontsize=9)
    axis.tick_params(length=0)
    axis.set_frame_on(False)
    return _image(figure, "jpg")


def shrink(picture_HWC: np.ndarray, side: int) -> np.ndarray:
    """[side, side, 3] of the centred square: means of whole blocks where they fit, else the nearest pixels."""
    h, w = picture_HWC.shape[:2]
    short = min(h, w)
    if short % side == 0:
        block, top, left = short // side, (h - short) // 2, (w - short) // 2
        square = picture_HWC[top : top + short, left : left + short]
        return square.reshape(side, block, side, block, 3).mean((1, 3)).round().astype(np.uint8)
    rows, columns = (((np.arange(side) + 0.5) * short / side + (n - short) / 2).astype(int) for n in (h, w))
    return picture_HWC[rows][:, columns]


def frame_row(frames: Sequence[np.ndarray]) -> bytes:
    """Frames of one video in a row: what stands above the curve in Figure 1 of the paper."""
    pictures = [shrink(frame, CELL) for frame in frames]
    gap = np.full((CELL, 4, 3), 255, np.uint8)
    row = np.concatenate([part for picture in pictures for part in (gap, picture)][1:], 1)
    plt = _pyplot()
    buffer = io.BytesIO()
    plt.imsave(buffer, row, format="jpg", pil_kwargs={"quality": 88})
    return buffer.getvalue()


def lit_cells(frame_HWC: np.ndarray, keep_HW: np.ndarray) -> np.ndarray:
    """Kept cells as they are, dropped ones dark and grey, an orange line between: told apart by brightness alone."""
    rows, columns = (-(-frame_HWC.shape[i] // keep_HW.shape[i]) for i in (0, 1))
    keep = np.repeat(np.repeat(keep_HW, rows, 0), columns, 1)[: frame_HWC.shape[0], : frame_HWC.shape[1]]
    grey = (frame_HWC @ np.array([0.299, 0.587, 0.114]) * 0.4).astype(np.uint8)
    out = np.where(keep[..., None], frame_HWC, grey[..., None])
    edge = np.zeros_like(keep)
    edge[1:] |= keep[1:] != keep[:-1]
    edge[:, 1:] |= keep[:, 1:] != keep[:, :-1]
    out[edge] = (230, 159, 0)
    return out


def _pyplot() -> Any:
    matplotlib = require("matplotlib", extra="plot")
    matplotlib.use("Agg")
    return require("matplotlib.pyplot", extra="plot")


def _image(figure: Any, kind: str = "png") -> bytes:
    """PNG for lines, JPEG for photographs, which would be ten times as large."""
    buffer = io.BytesIO()
    figure.tight_layout()
    plain: dict[str, Any] = {"metadata": {"Software": ""}} if kind == "png" else {"pil_kwargs": {"quality": 78}}
    figure.savefig(buffer, format=kind, dpi=110, **plain)  # no version inside: equal input, equal bytes
    _pyplot().close(figure)
    return buffer.getvalue()
