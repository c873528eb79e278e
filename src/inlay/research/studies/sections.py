# SPDX-License-Identifier: Apache-2.0
"""Tables, figures and findings as plain data: what Markdown, plots and the report are made from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from inlay.draw.plots import Panel, Series
from inlay.errors import UsageError, number_of
from inlay.measure import METRICS, MeasureConfig
from inlay.measure.base import mean_interval
from inlay.research.studies.datasets import DataSet
from inlay.research.studies.records import TOO_FEW, Record, is_set, score_set

DIGITS = {"psnr": 2, "psnr-video": 2, "ssim": 3, "ssim-gaussian": 3, "lpips": 3, "fvd": 1, "kvd": 3, "vmaf": 1}
NEARLY_THE_SAME = ("psnr-video", "error-level")  # as PSNR; the report has them
ARROWS = {"higher": "↑", "lower": "↓"}
Rows = Mapping[str, Sequence[Record]]  # the records of each rule


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One field of a table: text for people, the number for sorting and plots, its 95 % interval."""

    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def narrow(self) -> str:
        """The interval on a line of its own, and nothing broken within a number."""
        if self.value is None:
            return self.text
        number, _, span = self.text.replace(" [", "\n[", 1).replace(" ", "&nbsp;").partition("\n")
        return f"{number}<br><small>{span}</small>" if span else number


@dataclass(frozen=True, kw_only=True)
class Table:
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise UsageError(f"table {self.caption!r}: {len(self.columns)} columns, a row has {len(row)}")

    def markdown(self, *, narrow: bool = False) -> str:
        """`narrow`: for a page of text: intervals below their numbers, without the columns that say nearly the same."""

        def line(fields: Sequence[str]) -> str:
            return "| " + " | ".join(f.replace("|", "\\|") for f in fields) + " |"

        shown = [i for i, name in enumerate(self.columns) if not narrow or name.split(" ")[0] not in NEARLY_THE_SAME]
        rule = ["---"] + ["---:"] * (len(shown) - 1)
        body = [line([row[i].narrow if narrow else row[i].text for i in shown]) for row in self.rows]
        return "\n".join([f"**{self.caption}**", "", line([self.columns[i] for i in shown]), line(rule), *body])


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture: its file below the output folder, what it shows, and the numbers where it is a plot."""

    file: str  # empty where nothing could draw one
    caption: str
    panels: tuple[Panel, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A relation the paper states, and whether it holds here; None where it could not be examined."""

    claim: str
    holds: bool | None
    detail: str = ""
    why: str = ""  # the likely reason, said where it does not hold

    def text(self) -> str:
        verdict = {True: "holds", False: "does not hold", None: "not examined"}[self.holds]
        reason = f" Likely reason: {self.why}." if self.why and self.holds is False else ""
        return f"{self.claim}: {verdict}{' (' + self.detail + ')' if self.detail else ''}.{reason}"


@dataclass(frozen=True, kw_only=True)
class Section:
    """What one study leaves."""

    name: str
    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    findings: tuple[Finding, ...] = ()
    films: tuple[Figure, ...] = ()  # examples; several sections may show the same
    setup: dict[str, Any] = field(default_factory=dict)  # data sets, model, command

    def record(self) -> dict[str, Any]:
        return asdict(self)

    def markdown(self, *, level: int = 2, figures: str = "", narrow: bool = False) -> str:
        """`figures` is the way from the page to the output folder."""
        parts = [f"{'#' * level} {self.title}", *self.text]
        parts += [t.markdown(narrow=narrow) for t in self.tables]
        parts += [f"![{f.caption}]({figures}{f.file})\n\n{f.caption}" for f in self.figures if f.file]
        if self.findings:
            parts.append("\n".join(f"- {f.text()}" for f in self.findings))
        return "\n\n".join(parts) + "\n"


def word(text: str) -> Cell:
    return Cell(text=text)


def number(value: float | None, digits: int = 3, low: float | None = None, high: float | None = None) -> Cell:
    """`28.27 [27.90, 28.61]`; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return Cell(text="-")
    span = "" if low is None or high is None or low == high else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return Cell(text=f"{value:.{digits}f}{span}", value=value, low=low, high=high)


def percent(value: float, low: float | None = None, high: float | None = None) -> Cell:
    span = "" if low is None or high is None or low == high else f" [{100 * low:.1f}, {100 * high:.1f}]"
    return Cell(text=f"{100 * value:.1f} %{span}", value=value, low=low, high=high)


def mean_cell(values: Sequence[float], digits: int = 3) -> Cell:
    """A mean with its bootstrap interval."""
    mean, *interval = mean_interval(values, MeasureConfig())
    return number(mean, digits, *interval)


def rate_cell(records: Sequence[Record]) -> Cell:
    return percent(*mean_interval([r.keep_rate for r in records], MeasureConfig()))


def bits_cell(records: Sequence[Record]) -> Cell:
    return mean_cell([r.bits_per_pixel for r in records], 3)


def metric_cell(records: Sequence[Record], metric: str, config: MeasureConfig) -> Cell:
    score = score_set([r.reading for r in records], metric, config)
    if score is None:
        return Cell(text="-")
    return number(score.value, DIGITS.get(metric, 3), score.low, score.high)


def heading(metric: str) -> str:
    """`PSNR ↑`."""
    return f"{_printed(metric)} {ARROWS[METRICS[metric].better]}"


def axis(metric: str) -> str:
    """`PSNR, dB`."""
    unit = METRICS[metric].unit
    return f"{_printed(metric)}, {unit}" if unit else _printed(metric)


def _printed(metric: str) -> str:
    return metric.upper() if metric in ("psnr", "ssim", "lpips", "fvd", "kvd", "vmaf") else metric


def missing_notes(records: Sequence[Record], metrics: Sequence[str]) -> list[str]:
    """A line for each of these metrics that could not be had, with the reason; records may tell of others too."""
    reasons = {metric: why for r in records for metric, why in r.reading.unavailable.items() if metric in metrics}
    lines = [f"{metric} was not measured: {why}." for metric, why in sorted(reasons.items())]
    short = Counter(pair for r in records for pair in r.reading.missing.items() if pair[0] in metrics)
    lines += [f"{metric} is missing for {number_of(n, 'record')}: {why}." for (metric, why), n in sorted(short.items())]
    clips = Counter(name for name, _ in {(r.data, r.clip) for r in records if r.reading.features})
    lonely = [name for name, count in clips.items() if count < 2]
    return lines + [f"{m} has no value on {n}: {TOO_FEW}." for m in metrics if is_set(m) for n in lonely]


def conventions(metrics: Sequence[str], config: MeasureConfig) -> list[str]:
    """What each number follows."""
    return [f"{m}: {METRICS[m].convention.format(**asdict(config))}" for m in metrics]


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
        title=f"Evaluation on {data.counted}",
        text=tuple(missing_notes([r for records in rows.values() for r in records], metrics)),
        tables=tables,
        figures=(Figure(file="", caption=caption, panels=panels),) if panels else (),
        films=films,
        setup=setup or {},
    )


def _by_rule(rows: Rows, data: DataSet, metrics: Sequence[str], config: MeasureConfig) -> Table:
    columns = ("Rule", "Keep rate ↓", "bits/pixel ↓", "extra passes ↓", *(heading(m) for m in metrics))
    body = []
    for name, records in rows.items():
        cells = records[0].cells
        kept, bits = (rate_cell(records), bits_cell(records)) if cells else (word("-"), word("-"))
        calls = number(sum(r.nfe for r in records) / len(records), 1) if cells else word("-")
        body.append((word(name), kept, bits, calls, *(metric_cell(records, m, config) for m in metrics)))
    return Table(caption=f"Rules on {data.counted}", columns=columns, rows=tuple(body))


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
    return Panel(
        title=heading(metric), x_label="keep rate, %", y_label=axis(metric), series=tuple(series), scatter=True
    )
