# SPDX-License-Identifier: Apache-2.0
"""Tables, figure and findings of the study of bits, from its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from inlay.draw.plots import Panel, Series
from inlay.errors import MissingError, number_of
from inlay.research.studies import paper
from inlay.research.studies.codecs import CODECS
from inlay.research.studies.datasets import DataSet
from inlay.research.studies.quality import mean_of
from inlay.research.studies.rates import AT_LEAST, AT_MOST, EXACT, Curve, Ratio, bd_rate, times_the_bits
from inlay.research.studies.records import Record
from inlay.research.studies.sections import (
    Cell,
    Finding,
    Section,
    Table,
    axis,
    bits_cell,
    heading,
    mean_cell,
    metric_cell,
    number,
    word,
)
from inlay.research.studies.workspace import Workspace

OURS, ANCHOR = "ours", "x264"
WIDEST = 0.3  # bits a pixel up to which the figure goes
MARKS = {AT_LEAST: "≥ ", AT_MOST: "≤ ", EXACT: ""}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One setting of one system: a budget of ours in bits a pixel, or the quality setting of a codec."""

    system: str
    at: float

    @property
    def label(self) -> str:
        return f"{OURS}, --bits {self.at:g}" if self.system == OURS else f"{CODECS[self.system].name}, crf {self.at:g}"


Results = dict[Point, list[Record]]
Ratios = dict[tuple[Point, str], dict[str, Ratio]]  # by point of ours and codec, then by clip


def section_of(
    work: Workspace, sets: Mapping[str, DataSet], found: Mapping[str, Results], metrics: Sequence[str]
) -> Section:
    """What the records say, one data set after the other."""
    tables: list[Table] = []
    findings: list[Finding] = []
    panels: list[Panel] = []
    for role, results in found.items():
        data, curves = sets[role], curves_of(results)
        ratios = ratios_of(results, curves)
        tables += [_points(work, role, data, results, metrics), _at_equal_psnr(work, data, results, ratios)]
        tables += [_clips(work, data, curves, ratios), *_beside(data, results, ratios)]
        findings += _findings(data, ratios)
        _name_missing(work, data, results)
        panels += [_panel(role, data, results, metric) for metric in metrics if _means(results, OURS, metric)]
    caption = (
        "Rate and distortion, means over the clips. The published points of discrete tokenisers are of other clips: "
        "all of DAVIS, and TokenBench."
    )
    side = "x".join(2 * [str(next(iter(sets.values())).spec.size or "SIDE")])
    return Section(
        name="bits",
        title="Bits beside video codecs",
        text=(
            "Ours is the whole token file of `--bits`, mask and container included; a codec's bits are those of its "
            "elementary stream, without comments. Encoders run on one thread at 24 frames a second, on 4:2:0; every "
            "record has its command. PSNR is the mean over frames in RGB, against the frames before 4:2:0.",
            "Times the bits: the bits of ours over those that the codec needs for the same PSNR of the same clip, the "
            "log of its rate interpolated between its points; then the mean over clips. Where ours lies beside a "
            "codec's curve, the curve's end gives a bound, which counts as the value (≥ or ≤) and is listed. BD-rate "
            "is over the PSNR that both curves of a clip share.",
            "Published points: Ye et al., InfoTok (ICLR 2026), its table at 256x256, with 16 bits a token, and for "
            "InfoTok a mask bit a token.",
        ),
        tables=tuple(tables),
        figures=(work.plot("bits.png", caption, panels),) if panels else (),
        findings=tuple(findings),
        setup={
            **work.setup(*sets.values(), metrics=metrics),
            "encoders": {codec.name: codec.command("CRF", side) for codec in CODECS.values()},
        },
    )


def _name_missing(work: Workspace, data: DataSet, results: Results) -> None:
    """Say which clips have no point, so that a mean over the others hides none."""
    for point, records in results.items():
        if names := [r.clip for r in records if "psnr" not in r.reading.values]:
            work.note(f"{data.name}: no point at {point.label} for {', '.join(names)}.")


def curves_of(results: Results) -> dict[str, dict[str, Curve]]:
    """By system, then by clip."""
    points: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for point, records in results.items():
        clips = points.setdefault(point.system, {})
        for r in records:
            if "psnr" in r.reading.values:
                clips.setdefault(r.clip, []).append((r.bits_per_pixel, r.reading.values["psnr"]))
    return {system: {clip: Curve.of(p) for clip, p in clips.items()} for system, clips in points.items()}


def ratios_of(results: Results, curves: Mapping[str, Mapping[str, Curve]]) -> Ratios:
    """Every clip at every budget that could be granted, against every codec."""
    found: Ratios = {}
    for point, records in results.items():
        for system in (s for s in curves if s != OURS and point.system == OURS):
            found[point, system] = {
                r.clip: times_the_bits(r.bits_per_pixel, r.reading.values["psnr"], curves[system][r.clip])
                for r in records
                if "psnr" in r.reading.values and r.clip in curves[system]
            }
    return found


def by_clip(ratios: Ratios, system: str) -> dict[str, list[Ratio]]:
    """Over all budgets."""
    found: dict[str, list[Ratio]] = {}
    for (_, codec), clips in ratios.items():
        for clip, ratio in clips.items() if codec == system else ():
            found.setdefault(clip, []).append(ratio)
    return found


def times_cell(ratios: Sequence[Ratio]) -> Cell:
    """The mean of ratios, marked where bounds are among them."""
    if not ratios:
        return word("-")
    cell = mean_cell([r.times for r in ratios], 2)
    return replace(cell, text=_mark(ratios) + cell.text)


def _mark(ratios: Sequence[Ratio]) -> str:
    kinds = {r.kind for r in ratios} - {EXACT}
    return MARKS[kinds.pop()] if len(kinds) == 1 else "≈ " if kinds else ""


def _points(work: Workspace, role: str, data: DataSet, results: Results, metrics: Sequence[str]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for point, records in results.items():
        read = [r for r in records if "psnr" in r.reading.values]
        if read:
            scores = [metric_cell(read, m, work.config) for m in metrics]
            rows.append((word(point.label), number(float(len(read)), 0), bits_cell(read), *scores))
    for name, row in paper.TOKENISERS.get(role, {}).items():
        scores = [number(getattr(row, m), 2 if m == "psnr" else 3) for m in metrics]
        rows.append((word(f"published: {name}"), word("-"), number(row.bits), *scores))
    columns = ("System", "clips", "bits/pixel ↓", *(heading(m) for m in metrics))
    return Table(caption=f"Rate and distortion on {data.counted}", columns=columns, rows=tuple(rows))


def _at_equal_psnr(work: Workspace, data: DataSet, results: Results, ratios: Ratios) -> Table:
    """A row for each budget, and the mean over budgets clip by clip."""
    systems = list(dict.fromkeys(system for _, system in ratios))
    rows: list[tuple[Cell, ...]] = []
    for point, records in results.items():
        if point.system == OURS:
            read = [r for r in records if "psnr" in r.reading.values]
            times = [times_cell(list(ratios[point, s].values())) for s in systems]
            score = metric_cell(read, "psnr", work.config)
            rows.append((word(f"{point.at:g}"), number(float(len(read)), 0), score, *times))
    overall = [_overall(ratios, s) for s in systems]
    rows.append((word("mean over budgets"), word("-"), word("-"), *overall))
    columns = ("--bits", "clips", heading("psnr"), *(f"times the bits of {CODECS[s].name} ↓" for s in systems))
    caption = f"Bits of ours at equal PSNR on {data.counted}"
    return Table(caption=caption, columns=columns, rows=tuple(rows))


def _overall(ratios: Ratios, system: str) -> Cell:
    clips = by_clip(ratios, system)
    if not clips:
        return word("-")
    cell = mean_cell([fmean(r.times for r in found) for found in clips.values()], 2)
    return replace(cell, text=_mark([r for found in clips.values() for r in found]) + cell.text)


def _clips(work: Workspace, data: DataSet, curves: Mapping[str, Mapping[str, Curve]], ratios: Ratios) -> Table:
    """Every clip, that which costs ours most first."""
    systems = list(dict.fromkeys(system for _, system in ratios))
    means = {s: by_clip(ratios, s) for s in systems}
    rates = _bd_rates(work, curves, systems)
    rows: list[tuple[Cell, ...]] = []
    for clip in data.clips:
        times = [_plain_times(means[s].get(clip.name, [])) for s in systems]
        rows.append((word(clip.name), *times, *(_share(rates[s].get(clip.name)) for s in rates)))
    rows.sort(key=lambda row: -(row[1].value or 0.0) if len(row) > 1 else 0.0)
    total = [_overall(ratios, s) for s in systems] + [_share_mean(list(rates[s].values())) for s in rates]
    names = [CODECS[s].name for s in systems]
    columns = ("Clip", *(f"times {n} ↓" for n in names), *(f"BD-rate against {CODECS[s].name} ↓" for s in rates))
    caption = f"Every clip of {data.name}, the mean over budgets; those that cost ours most first"
    return Table(caption=caption, columns=columns, rows=(*rows, (word("mean"), *total)))


def _bd_rates(
    work: Workspace, curves: Mapping[str, Mapping[str, Curve]], systems: Sequence[str]
) -> dict[str, dict[str, float | None]]:
    """By codec, then by clip; empty, with a note, where the library is absent."""
    try:
        return {
            s: {clip: bd_rate(ours, curves[s][clip]) for clip, ours in curves[OURS].items() if clip in curves[s]}
            for s in systems
        }
    except MissingError as error:
        work.note(f"No BD-rates: {error}.")
        return {}


def _plain_times(ratios: Sequence[Ratio]) -> Cell:
    """Without an interval: the budgets of one clip are no sample."""
    if not ratios:
        return word("-")
    mean = fmean(r.times for r in ratios)
    return Cell(text=f"{_mark(ratios)}{mean:.2f}", value=mean)


def _share(value: float | None) -> Cell:
    return word("-") if value is None else Cell(text=f"{100 * value:+.0f} %", value=value)


def _share_mean(values: Sequence[float | None]) -> Cell:
    known = [v for v in values if v is not None]
    if not known:
        return word("-")
    short = f" ({len(known)} of {len(values)} clips)" if len(known) < len(values) else ""
    cell = _share(fmean(known))
    return replace(cell, text=cell.text + short)


def _beside(data: DataSet, results: Results, ratios: Ratios) -> list[Table]:
    """Points of ours beside a codec's curve; no table where there are none."""
    rows: list[tuple[Cell, ...]] = []
    for (point, system), clips in ratios.items():
        psnr = {r.clip: r.reading.values.get("psnr") for r in results[point]}
        for clip, ratio in clips.items():
            if ratio.kind != EXACT:
                quality = number(psnr[clip], 2), number(ratio.nearest, 2)
                times = Cell(text=f"{MARKS[ratio.kind]}{ratio.times:.2f}", value=ratio.times)
                rows.append((word(clip), word(f"{point.at:g}"), word(CODECS[system].name), *quality, times))
    columns = ("Clip", "--bits", "codec", "PSNR of ours", "end of the codec's curve", "times the bits")
    caption = f"Beside a codec's curve on {data.name}: bounds"
    return [Table(caption=caption, columns=columns, rows=tuple(rows))] if rows else []


def _findings(data: DataSet, ratios: Ratios) -> list[Finding]:
    clips = by_clip(ratios, ANCHOR)
    name = CODECS[ANCHOR].name
    claim = f"{data.name}: ours needs no more bits than {name} at equal PSNR, mean over budgets"
    if not clips:
        return [Finding(claim=claim, holds=None)]
    means = {clip: fmean(r.times for r in found) for clip, found in clips.items()}
    mean, cheaper = fmean(means.values()), sum(m <= 1 for m in means.values())
    detail = f"{mean:.2f} times the bits; no more on {cheaper} of {len(means)} clips"
    outside = Counter(r.kind for found in clips.values() for r in found if r.kind != EXACT)
    if outside:
        detail += "; " + ", ".join(f"{n} points are bounds ({kind})" for kind, n in outside.items())
    return [Finding(claim=claim, holds=mean <= 1, detail=detail)]


def _means(results: Results, system: str, metric: str) -> list[tuple[Point, float, float]]:
    """(point, bits, reading), means over the clips that have one."""
    found = []
    for point, records in results.items():
        read = [r for r in records if metric in r.reading.values]
        value = mean_of(read, metric)
        if point.system == system and value is not None:
            found.append((point, fmean(r.bits_per_pixel for r in read), value))
    return found


def _panel(role: str, data: DataSet, results: Results, metric: str) -> Panel:
    series = []
    for system in dict.fromkeys(point.system for point in results):
        shown = [row for row in _means(results, system, metric) if row[1] <= WIDEST]
        label = OURS if system == OURS else CODECS[system].name
        x, y = tuple(row[1] for row in shown), tuple(row[2] for row in shown)
        series.append(Series(label=label, x=x, y=y))
    for name, rows in _published(role, metric).items():
        x, y = tuple(a for a, _ in rows), tuple(b for _, b in rows)
        series.append(Series(label=f"{name}, published", x=x, y=y))
    title = f"{data.name}, {number_of(len(data), 'clip')}"
    return Panel(title=title, x_label="bits a pixel", y_label=axis(metric), series=tuple(series))


def _published(role: str, metric: str) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for name, row in paper.TOKENISERS.get(role, {}).items():
        found.setdefault(name.partition(",")[0], []).append((row.bits, getattr(row, metric)))
    return found
