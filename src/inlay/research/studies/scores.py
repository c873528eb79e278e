# SPDX-License-Identifier: Apache-2.0
"""The records of an evaluation in, its section out: rules in one table, clips in another, and a plot of the clips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inlay.draw.plots import Panel, Series
from inlay.measure import MeasureConfig
from inlay.research.studies.datasets import DataSet
from inlay.research.studies.records import Record
from inlay.research.studies.sections import (
    DIGITS,
    Cell,
    Figure,
    Section,
    Table,
    bits_cell,
    heading,
    metric_cell,
    missing_notes,
    number,
    percent,
    rate_cell,
    word,
)

Rows = Mapping[str, Sequence[Record]]


def eval_section(
    rows: Rows,
    data: DataSet,
    metrics: Sequence[str],
    config: MeasureConfig,
    *,
    films: tuple[Figure, ...] = (),
    setup: dict[str, Any] | None = None,
) -> Section:
    """What `inlay eval` found, in the form that reports are made of."""
    tables = (_by_rule(rows, data, metrics, config), _by_clip(rows, metrics))
    panels = tuple(panel for metric in metrics if (panel := _panel(rows, metric)) is not None)
    caption = "Every clip by itself: its share of kept cells and its quality."
    return Section(
        name="eval",
        title=f"Evaluation on {data.name} ({len(data)} clips)",
        text=tuple(missing_notes([r for records in rows.values() for r in records], metrics)),
        tables=tables,
        figures=(Figure(file="", caption=caption, panels=panels),) if panels else (),
        films=films,
        setup=setup or {},
    )


def _by_rule(rows: Rows, data: DataSet, metrics: Sequence[str], config: MeasureConfig) -> Table:
    columns = ("Rule", "Keep rate ↓", "bits/pixel ↓", "NFE ↓", *(heading(m) for m in metrics))
    body = []
    for name, records in rows.items():
        cells = records[0].cells
        kept, bits = (rate_cell(records), bits_cell(records)) if cells else (word("-"), word("-"))
        calls = number(sum(r.nfe for r in records) / len(records), 1) if cells else word("-")
        body.append((word(name), kept, bits, calls, *(metric_cell(records, m, config) for m in metrics)))
    return Table(caption=f"Rules on {data.name} ({len(data)} clips)", columns=columns, rows=tuple(body))


def _by_clip(rows: Rows, metrics: Sequence[str]) -> Table:
    shown = [m for m in metrics if any(m in r.reading.values for records in rows.values() for r in records)]
    body: list[tuple[Cell, ...]] = []
    for name, records in rows.items():
        for record in records:
            kept = percent(record.keep_rate) if record.cells else word("-")
            scores = [number(record.reading.values.get(m), DIGITS.get(m, 3)) for m in shown]
            body.append((word(record.clip), word(name), kept, *scores))
    columns = ("Clip", "Rule", "Keep rate ↓", *(heading(m) for m in shown))
    return Table(caption="Every clip", columns=columns, rows=tuple(body))


def _panel(rows: Rows, metric: str) -> Panel | None:
    series = []
    for name, records in rows.items():
        found = [r for r in records if r.cells and metric in r.reading.values]
        if found:
            x, y = tuple(100 * r.keep_rate for r in found), tuple(r.reading.values[metric] for r in found)
            series.append(Series(label=name, x=x, y=y, notes=tuple(r.clip for r in found)))
    if not series:
        return None
    return Panel(title=heading(metric), x_label="keep rate, %", y_label=metric, series=tuple(series), scatter=True)
