# SPDX-License-Identifier: Apache-2.0
"""A data set in, one table out: rules that choose cells, or another system's reconstructions, scored alike."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.app import dataoptions, options
from inlay.app.screen import Screen
from inlay.errors import UsageError, pick

if TYPE_CHECKING:
    from inlay.measure import MeasureConfig
    from inlay.study.datasets import DataSet
    from inlay.study.records import Record


def evaluate(
    data: dataoptions.Data,
    rule: Annotated[
        str,
        typer.Option("--rule", metavar="NAMES", help="Rules with commas between, or all; an unknown one lists them."),
    ] = "ours",
    reconstructions: Annotated[
        str | None,
        typer.Option("--reconstructions", metavar="DIR", help="Score these videos instead, named like the clips."),
    ] = None,
    metrics: dataoptions.Metrics = "auto",
    tau: options.Tau = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="X", help="Budget of rules that take one, instead of ours.")
    ] = None,
    precision: Annotated[
        str, typer.Option("--precision", metavar="NAME", help="Store kept cells first: none, q8, fp16, bf16 or fp32.")
    ] = "none",
    fill: options.Fill = None,
    layout: dataoptions.Layout = "auto",
    split: dataoptions.Split = None,
    frames: dataoptions.Frames = 33,
    side: dataoptions.Side = 256,
    interval: Annotated[int, typer.Option("--interval", metavar="N", min=1, help="Take every N-th frame.")] = 1,
    clips: Annotated[int, typer.Option("--clips", metavar="N", min=1, help="Clips of each video.")] = 1,
    limit: dataoptions.Limit = 0,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Keep the records here; a second run goes on from them.")
    ] = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="HTML", help="Also write one page with tables, plots and films.")
    ] = None,
    backbone: options.BackboneName = "mini",
    weights: options.Weights = None,
    trust: options.Trust = False,
    profile: options.Profile = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Score rules, or reconstructions, on a data set.

    Rules: full, ours, hold, linear, random, frame-skip, pixel-l1, search, search-blocks, router.
    """
    from inlay.app.model import Model
    from inlay.measure import MeasureConfig
    from inlay.study.datasets import ClipSpec, open_data
    from inlay.study.readings import choose_metrics
    from inlay.study.records import Store
    from inlay.study.rules import RULES
    from inlay.study.sound import sound
    from inlay.tokenizer import pick_device

    names = list(RULES) if rule == "all" else [n.strip() for n in rule.split(",") if n.strip()]
    for name in names:
        pick("rule", name, RULES)
    if not names:
        raise UsageError("--rule is empty; give names with commas between, as ours,hold")
    pick("precision", precision, dict.fromkeys(("none", *options.CHOICES["precision"])))
    model = Model(backbone=backbone, weights=weights, fill=fill, device=device, dtype=dtype, trust=trust,
                  profile=profile)  # fmt: skip
    kind = pick_device(device)
    place = str(kind) if kind.type == "cuda" else "cpu"  # metrics run on these two
    chosen = choose_metrics(metrics, place)
    config = MeasureConfig(device=place)
    screen = Screen(json=json, quiet=quiet)
    spec = ClipSpec(frames=frames, size=side, interval=interval, clips=clips)
    if reconstructions is not None and not Path(reconstructions).is_dir():
        raise UsageError(f"{reconstructions}: no such folder; give the one that holds the reconstructions")
    if report is not None:
        from inlay.app.reporting import check_report

        check_report(report, force=force)
    found = open_data(data, layout=layout, split=split, spec=spec, limit=limit, tell=screen.note)
    with tempfile.TemporaryDirectory(prefix="inlay-eval-") as scratch:
        store = Path(out or scratch)
        found = sound(found, Store(store), screen.note)
        if reconstructions is not None:
            rows = _outside(found, Path(reconstructions), chosen, config, store, report, screen)
        else:
            settings = [{"rule": n, "tau": tau, "rate": rate, "precision": precision} for n in names]
            rows = _rules(found, settings, chosen, config, model, tau, store, report, screen)
    _show(rows, found, chosen, config, report, screen)


def _outside(
    data: DataSet, folder: Path, metrics: tuple[str, ...], config: MeasureConfig, out: Path, report: str | None,
    screen: Screen,
) -> dict[str, list[Record]]:  # fmt: skip
    from inlay.study.outside import score_reconstructions

    records, problems = score_reconstructions(data, folder, metrics, config, screen.note)
    for line in problems:
        screen.note(f"left out: {line}")
    rows = {folder.name or str(folder): records}
    if report is not None:
        from inlay.app.reporting import report_outside
        from inlay.study.records import Store

        report_outside(report, rows, folder, Store(out), data, metrics, config, screen.note)
    return rows


def _rules(
    data: DataSet, settings: list[dict[str, Any]], metrics: tuple[str, ...], config: MeasureConfig, model: Any,
    tau: float | None, out: Path, report: str | None, screen: Screen,
) -> dict[str, list[Record]]:  # fmt: skip
    from inlay.study.evaluate import Bench, collect
    from inlay.study.records import Store
    from inlay.study.rules import Setting

    bench = Bench(model.load(), tau=tau, measure=config)
    chosen = [Setting(**{**s, "tau": None}) for s in settings]  # the threshold of ours is the bench's
    found = collect(bench, Store(out), data, chosen, metrics, study="eval", tell=screen.note)
    rows = {s.rule: found[s] for s in chosen}
    if report is not None:
        from inlay.app.reporting import report_rules

        report_rules(report, rows, bench, Store(out), data, metrics, chosen, screen.note)
    return rows


def _show(
    rows: dict[str, list[Record]], data: DataSet, metrics: tuple[str, ...], config: MeasureConfig, report: str | None,
    screen: Screen,
) -> None:  # fmt: skip
    from inlay.study.readings import score_set
    from inlay.study.sections import conventions, metric_cell, missing_notes, rate_cell

    record: dict[str, Any] = {"data": data.record(), "conventions": conventions(metrics, config), "rules": {}}
    clips = "1 clip" if len(data) == 1 else f"{len(data)} clips"
    without = f"; {len(data.left_out)} left out" if data.left_out else ""
    lines: list[tuple[str, str]] = [("data", f"{data.name}: {clips} ({data.layout}, {data.split}){without}")]
    for name, records in rows.items():
        scores = {m: score_set([r.reading for r in records], m, config) for m in metrics}
        kept = rate_cell(records) if records[0].cells else None
        record["rules"][name] = {
            "scores": {m: s.record() for m, s in scores.items() if s is not None},
            "missing": {k: v for r in records for k, v in {**r.reading.missing, **r.reading.unavailable}.items()},
            "keep_rate": None if kept is None else kept.value,
            "nfe": sum(r.nfe for r in records) / len(records) if kept else None,
            "clips": {r.clip: {"keep_rate": r.keep_rate, "nfe": r.nfe, **r.reading.values} for r in records},
        }
        shown = [f"{m} {metric_cell(records, m, config).text}" for m in metrics if scores[m] is not None]
        head = "" if kept is None else f"keeps {kept.text}, NFE {record['rules'][name]['nfe']:g}; "
        lines.append((name, head + ", ".join(shown)))
    lines += [("note", text) for text in missing_notes([r for records in rows.values() for r in records])]
    if report is not None:
        record["report"] = report
        lines.append(("report", report))
    screen.show(record, lines)
