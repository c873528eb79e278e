# SPDX-License-Identifier: Apache-2.0
"""`inlay eval`: score rules that choose cells, or another system's reconstructions, on a data set."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay import __version__
from inlay.cli import options, paths
from inlay.cli.screen import Screen, public_command
from inlay.errors import MissingError, UsageError, VideoError, number_of, pick
from inlay.files import made_folder

if TYPE_CHECKING:
    from inlay.measure import MeasureConfig
    from inlay.research.studies.datasets import DataSet
    from inlay.research.studies.records import Record, Store
    from inlay.research.studies.sections import Figure
    from inlay.tokenizer import Tokenizer

BEST = "* "  # before the best value of a column


def evaluate(
    data: options.Data,
    *,
    rule: Annotated[
        str,
        typer.Option("--rule", metavar="NAMES", help="Rules with commas between, or all."),
    ] = "ours",
    reconstructions: Annotated[
        str | None,
        typer.Option("--reconstructions", metavar="DIR", help="Score these videos instead, named like the clips."),
    ] = None,
    metrics: options.Metrics = "auto",
    tau: options.Tau = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="SHARE", help="Budget of rules that take one, instead of ours.")
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", metavar="NAME", help="Store kept cells first: none, q8, fp16, bf16 or fp32.")
    ] = "none",
    interval: Annotated[int, typer.Option("--interval", metavar="N", min=1, help="Take every N-th frame.")] = 1,
    clips: Annotated[int, typer.Option("--clips", metavar="N", min=1, help="Clips of each video.")] = 1,
    cut: options.DataClips,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Keep the records here; a second run goes on from them.")
    ] = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="HTML", help="Also write one page with tables, plots and films.")
    ] = None,
    model: options.ProfiledModel,
    force: options.Force = False,
    screen: Screen,
) -> None:
    """Score rules, or reconstructions, on a data set.

    Rules that choose cells: ours (the paper's), full (every cell), random, frame-skip (whole slots), pixel-l1 (pixels
    in place of latents), search and search-blocks (as few as reach an error, by decoding: ElasticTok's way), router (a
    decode tells which: InfoTok's way). And ours with another fill: hold, linear.
    """
    from inlay.masking import Budget
    from inlay.measure import MeasureConfig
    from inlay.research.studies.records import READ_FILE, Store, choose_metrics, without_unreadable
    from inlay.research.studies.rules import RULES
    from inlay.tokenizer import pick_device

    given = list(RULES) if rule == "all" else [n.strip() for n in rule.split(",") if n.strip()]
    names = list(dict.fromkeys(given))  # a rule that is named twice must not count its clips twice
    for name in names:
        pick("rule", name, RULES)
    if not names:
        raise UsageError("--rule is empty; give names with commas between, as ours,hold")
    Budget(tau=tau)  # refused here if it cannot be
    if rate is not None and not 0 < rate <= 1:
        raise UsageError(f"--rate is the share of cells kept, above 0 and at most 1; got {rate:g}")
    pick("precision", precision, dict.fromkeys(("none", *options.CHOICES["precision"])))
    model.check()
    kind = pick_device(model.device)
    place = str(kind) if kind.type == "cuda" else "cpu"  # metrics run on these two
    chosen = choose_metrics(metrics, place)
    config = MeasureConfig(device=place)
    if reconstructions is not None and not Path(reconstructions).is_dir():
        raise UsageError(f"{reconstructions}: no such folder; give the one that holds the reconstructions")
    with tempfile.TemporaryDirectory(prefix="inlay-eval-") as scratch, made_folder(out or scratch, notes=(READ_FILE,)):
        if report is not None:  # it may stand in the folder of the records
            paths.output(report, force=force, what="a report", suffixes=(".html", ".htm"))
        found = cut.open(data, screen.note, interval=interval, clips=clips)
        tokenizer = model.load() if reconstructions is None else None  # before every clip is read, which takes longer
        store = Store(Path(out or scratch))
        found = without_unreadable(found, store, screen.note)
        if tokenizer is None:
            scored = _outside(found, Path(str(reconstructions)), chosen, config, store, screen)
        else:
            settings = [{"rule": n, "rate": rate, "precision": precision} for n in names]
            scored = _rules(found, settings, chosen, config, tokenizer, tau, store, screen)
        if report is not None:
            _write_report(report, scored, chosen, config, store, screen)
    _show(scored, chosen, config, report, screen)


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What was measured, and what a report of it needs besides."""

    rows: dict[str, list[Record]]
    data: DataSet  # without the clips that were left out
    films: Callable[[], tuple[Figure, ...]]
    setup: Callable[[], dict[str, Any]]


def _outside(
    data: DataSet, folder: Path, metrics: tuple[str, ...], config: MeasureConfig, store: Store, screen: Screen
) -> Scored:
    """Another system's reconstructions; the films show them beside the originals."""
    from inlay.origin import commit
    from inlay.research.studies.outside import example_pairs, score_reconstructions
    from inlay.research.studies.pictures import FILMED, film_pairs
    from inlay.research.studies.sections import conventions

    records, problems = score_reconstructions(data, folder, metrics, config, store, screen.note)
    for clip, why in problems.items():
        screen.note(f"left out: {clip}: {why}")
    data = data.without(problems)
    made = {"command": public_command(), "version": __version__, "commit": commit(), "data": [data.record()]}
    return Scored(
        rows={folder.name or str(folder): records},
        data=data,
        films=lambda: film_pairs(store, example_pairs(data, folder, FILMED)),
        setup=lambda: made | {"conventions": conventions(metrics, config)},
    )


def _rules(
    data: DataSet, settings: list[dict[str, Any]], metrics: tuple[str, ...], config: MeasureConfig,
    tokenizer: Tokenizer, tau: float | None, store: Store, screen: Screen,
) -> Scored:  # fmt: skip
    """Rules that are run here; the films show each of them on the same clips."""
    from inlay.research.studies.evaluate import Bench
    from inlay.research.studies.pictures import film_rules
    from inlay.research.studies.rules import Setting
    from inlay.research.studies.workspace import Workspace

    bench = Bench(tokenizer, tau=tau, measure=config)
    chosen = [Setting(tau=None, **s) for s in settings]  # the threshold of ours is the bench's
    work = Workspace(
        bench=bench, store=store, data={data.name: data}, metrics=metrics, command=public_command(), tell=screen.note
    )
    found = work.collect("eval", data, chosen)
    return Scored(
        rows={s.rule: found[s] for s in chosen},
        data=data,
        films=lambda: film_rules(bench, store, data, chosen),
        setup=lambda: work.setup(data),
    )


def _write_report(
    path: str, scored: Scored, metrics: tuple[str, ...], config: MeasureConfig, store: Store, screen: Screen
) -> None:
    """One HTML page: tables, plots, films, and how it was made."""
    from inlay.files import write_atomic
    from inlay.research.studies.report import html_report
    from inlay.research.studies.sections import eval_section

    films: tuple[Figure, ...] = ()
    try:
        films = scored.films()
    except (MissingError, VideoError) as error:
        screen.note(f"the report has no films: {error}")
    section = eval_section(scored.rows, scored.data, metrics, config, films=films, setup=scored.setup())
    write_atomic(path, html_report([section], store.root, title="Inlay: evaluation").encode())


def _show(scored: Scored, metrics: tuple[str, ...], config: MeasureConfig, report: str | None, screen: Screen) -> None:
    from inlay.research.studies.records import score_set
    from inlay.research.studies.sections import bits_cell, conventions, missing_notes, rate_cell

    rows, data = scored.rows, scored.data
    record: dict[str, Any] = {"data": data.record(), "conventions": conventions(metrics, config), "rules": {}}
    clips = number_of(len(data), "clip")
    gone = {"left out": data.left_out, "named but not there": data.absent}
    without = "".join(f"; {len(names)} {why}" for why, names in gone.items() if names)
    lines: list[tuple[str, str]] = [("data", f"{data.name}: {clips} ({data.layout}, {data.split}){without}")]
    for name, records in rows.items():
        scores = {m: score_set([r.reading for r in records], m, config) for m in metrics}
        kept, bits = (rate_cell(records), bits_cell(records)) if records[0].cells else (None, None)
        record["rules"][name] = {
            "scores": {m: s.record() for m, s in scores.items() if s is not None},
            "missing": _missing(records, scores),
            "keep_rate": None if kept is None else kept.value,
            "bits_per_pixel": None if bits is None else bits.value,
            "nfe": sum(r.nfe for r in records) / len(records) if kept else None,
            "clips": {r.clip: {**_counts(r), **r.reading.values} for r in records},
        }
    lines += [("note", text) for text in missing_notes([r for records in rows.values() for r in records], metrics)]
    if report is not None:
        record["report"] = report
        lines.append(("report", report))
    head, body = _table(rows, metrics, config)
    if any(cell.startswith(BEST) for row in body for cell in row):
        lines.append(("best", f"{BEST}marks the best of the rules that drop cells"))
    screen.table(record, lines, head, body)


def _table(
    rows: dict[str, list[Record]], metrics: tuple[str, ...], config: MeasureConfig
) -> tuple[list[str], list[list[str]]]:
    """A line for each rule; in each column of a metric the best rule that drops cells has a star."""
    from inlay.measure import METRICS
    from inlay.research.studies.sections import bits_cell, heading, metric_cell, rate_cell

    shown = [m for m in metrics if any(metric_cell(records, m, config).value is not None for records in rows.values())]
    scores = {name: {m: metric_cell(records, m, config) for m in shown} for name, records in rows.items()}
    racing = [name for name, records in rows.items() if not records[0].cells or any(r.keep_rate < 1 for r in records)]
    best = {}
    for m in shown if len(racing) > 1 else ():
        choose = max if METRICS[m].better == "higher" else min
        values = {name: value for name in racing if (value := scores[name][m].value) is not None}
        best[m] = choose(values, key=values.__getitem__) if values else None
    body = []
    for name, records in rows.items():
        known = bool(records[0].cells)  # another system's output has no cells to count
        calls = f"{sum(r.nfe for r in records) / len(records):g}" if known else "-"
        rates = [rate_cell(records).text, bits_cell(records).text, calls] if known else ["-"] * 3
        marks = [f"{BEST if best.get(m) == name else ''}{scores[name][m].text}" for m in shown]
        body.append([name, *rates, *marks])
    return ["rule", "kept", "bits a pixel", "extra passes", *map(heading, shown)], body


def _counts(record: Record) -> dict[str, Any]:
    """What the clip's tokens cost; nothing for another system's output, which has none."""
    names = ("keep_rate", "tokens", "bits_per_pixel", "nfe") if record.cells else ()
    return {name: getattr(record, name) for name in names}


def _missing(records: list[Record], scores: dict[str, Any]) -> dict[str, str]:
    """By metric, why clips or the whole set have no value."""
    from inlay.research.studies.records import TOO_FEW

    reasons = {k: v for r in records for k, v in {**r.reading.missing, **r.reading.unavailable}.items() if k in scores}
    return {m: TOO_FEW for m, score in scores.items() if score is None} | reasons
