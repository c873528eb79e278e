# SPDX-License-Identifier: Apache-2.0
"""`inlay eval`: score rules that choose cells, or another system's reconstructions, on a data set."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import options
from inlay.cli.screen import Screen, clips_text
from inlay.errors import UsageError, pick

if TYPE_CHECKING:
    from inlay.measure import MeasureConfig
    from inlay.research.studies.datasets import DataSet
    from inlay.research.studies.records import Record
    from inlay.tokenizer import Tokenizer


def evaluate(
    data: options.Data,
    *,
    rule: Annotated[
        str,
        typer.Option("--rule", metavar="NAMES", help="Rules with commas between, or all; an unknown one lists them."),
    ] = "ours",
    reconstructions: Annotated[
        str | None,
        typer.Option("--reconstructions", metavar="DIR", help="Score these videos instead, named like the clips."),
    ] = None,
    metrics: options.Metrics = "auto",
    tau: options.Tau = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="X", help="Budget of rules that take one, instead of ours.")
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

    Rules: full, ours, hold, linear, random, frame-skip, pixel-l1, search, search-blocks, router.
    """
    from inlay.measure import MeasureConfig
    from inlay.research.studies.readable import sound
    from inlay.research.studies.readings import choose_metrics
    from inlay.research.studies.records import Store
    from inlay.research.studies.rules import RULES
    from inlay.tokenizer import pick_device

    given = list(RULES) if rule == "all" else [n.strip() for n in rule.split(",") if n.strip()]
    names = list(dict.fromkeys(given))  # a rule that is named twice must not count its clips twice
    for name in names:
        pick("rule", name, RULES)
    if not names:
        raise UsageError("--rule is empty; give names with commas between, as ours,hold")
    pick("precision", precision, dict.fromkeys(("none", *options.CHOICES["precision"])))
    model.check()
    kind = pick_device(model.device)
    place = str(kind) if kind.type == "cuda" else "cpu"  # metrics run on these two
    chosen = choose_metrics(metrics, place)
    config = MeasureConfig(device=place)
    if reconstructions is not None and not Path(reconstructions).is_dir():
        raise UsageError(f"{reconstructions}: no such folder; give the one that holds the reconstructions")
    if report is not None:
        from inlay.cli.reporting import check_report

        check_report(report, force=force)
    found = cut.open(data, screen.note, interval=interval, clips=clips)
    tokenizer = model.load() if reconstructions is None else None  # before every clip is read, which takes longer
    with tempfile.TemporaryDirectory(prefix="inlay-eval-") as scratch:
        store = Path(out or scratch)
        found = sound(found, Store(store), screen.note)
        if tokenizer is None:
            rows, found = _outside(found, Path(str(reconstructions)), chosen, config, store, report, screen)
        else:
            settings = [{"rule": n, "tau": tau, "rate": rate, "precision": precision} for n in names]
            rows = _rules(found, settings, chosen, config, tokenizer, tau, store, report, screen)
    _show(rows, found, chosen, config, report, screen)


def _outside(
    data: DataSet, folder: Path, metrics: tuple[str, ...], config: MeasureConfig, out: Path, report: str | None,
    screen: Screen,
) -> tuple[dict[str, list[Record]], DataSet]:  # fmt: skip
    """(the records, the data set without the clips that have no reconstruction)."""
    from inlay.research.studies.outside import score_reconstructions
    from inlay.research.studies.records import Store

    records, problems = score_reconstructions(data, folder, metrics, config, Store(out), screen.note)
    for clip, why in problems.items():
        screen.note(f"left out: {clip}: {why}")
    data = data.without(problems)
    rows = {folder.name or str(folder): records}
    if report is not None:
        from inlay.cli.reporting import report_outside

        report_outside(report, rows, folder, Store(out), data, metrics, config, screen.note)
    return rows, data


def _rules(
    data: DataSet, settings: list[dict[str, Any]], metrics: tuple[str, ...], config: MeasureConfig,
    tokenizer: Tokenizer, tau: float | None, out: Path, report: str | None, screen: Screen,
) -> dict[str, list[Record]]:  # fmt: skip
    from inlay.research.studies.evaluate import Bench, collect
    from inlay.research.studies.records import Store
    from inlay.research.studies.rules import Setting

    bench = Bench(tokenizer, tau=tau, measure=config)
    chosen = [Setting(**{**s, "tau": None}) for s in settings]  # the threshold of ours is the bench's
    found = collect(bench, Store(out), data, chosen, metrics, study="eval", tell=screen.note)
    rows = {s.rule: found[s] for s in chosen}
    if report is not None:
        from inlay.cli.reporting import report_rules

        report_rules(report, rows, bench, Store(out), data, metrics, chosen, screen.note)
    return rows


def _show(
    rows: dict[str, list[Record]], data: DataSet, metrics: tuple[str, ...], config: MeasureConfig, report: str | None,
    screen: Screen,
) -> None:  # fmt: skip
    from inlay.research.studies.readings import score_set
    from inlay.research.studies.sections import bits_cell, conventions, metric_cell, missing_notes, rate_cell

    record: dict[str, Any] = {"data": data.record(), "conventions": conventions(metrics, config), "rules": {}}
    clips = clips_text(len(data))
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
        shown = ", ".join(f"{m} {metric_cell(records, m, config).text}" for m in metrics if scores[m] is not None)
        calls = record["rules"][name]["nfe"]
        head = "" if kept is None or bits is None else f"keeps {kept.text}, bits a pixel {bits.text}, NFE {calls:g}"
        lines.append((name, "; ".join(filter(None, [head, shown])) or "-"))
    lines += [("note", text) for text in missing_notes([r for records in rows.values() for r in records], metrics)]
    if report is not None:
        record["report"] = report
        lines.append(("report", report))
    screen.show(record, lines)


def _counts(record: Record) -> dict[str, Any]:
    """What the clip's tokens cost; nothing for another system's output, which has none."""
    if not record.cells:
        return {}
    return {
        "keep_rate": record.keep_rate,
        "tokens": record.tokens,
        "bits_per_pixel": record.bits_per_pixel,
        "nfe": record.nfe,
    }


def _missing(records: list[Record], scores: dict[str, Any]) -> dict[str, str]:
    """By metric, why clips or the whole set have no value."""
    from inlay.research.studies.readings import TOO_FEW

    reasons = {k: v for r in records for k, v in {**r.reading.missing, **r.reading.unavailable}.items() if k in scores}
    return {m: TOO_FEW for m, score in scores.items() if score is None} | reasons
