# SPDX-License-Identifier: Apache-2.0
"""Data sets in, Tables 1 and 2 of the paper out: quality at a keep rate, and what it costs to choose the cells."""

from __future__ import annotations

import math
from dataclasses import replace

from inlay.measure import bootstrap_interval
from inlay.study import paper
from inlay.study.datasets import DataSet
from inlay.study.evaluate import Bench
from inlay.study.records import Record, make_key
from inlay.study.rules import Setting
from inlay.study.sections import Cell, Finding, Section, Table, mean_cell, missing_notes, number, rate_cell, word
from inlay.study.workspace import Workspace

MAIN_RULES = ("full", "ours", "hold", "linear", "search", "router", "pixel-l1", "random", "frame-skip")
COST_RULES = ("full", "ours", "router", "search")
LABELS = {
    "full": "full rate (backbone alone)",
    "ours": "ours",
    "hold": "ours, hold fill",
    "linear": "ours, linear fill",
    "search": "search (ElasticTok's, MSE 0.003)",
    "search-blocks": "search by blocks (ElasticTok's code)",
    "router": "router (InfoTok's)",
    "pixel-l1": "pixel-L1 (RLT's)",
    "random": "random cells",
    "frame-skip": "whole slots, evenly",
}


def mean_of(records: list[Record], metric: str) -> float | None:
    values = [r.reading.values[metric] for r in records if metric in r.reading.values]
    return math.fsum(values) / len(values) if values else None


def compare(claim: str, high: list[Record], low: list[Record], metric: str = "psnr") -> Finding:
    """Whether the first has the higher mean; the difference is taken clip by clip, with its bootstrap interval."""
    gaps = [
        p.reading.values[metric] - q.reading.values[metric]
        for p, q in zip(high, low, strict=True)
        if metric in p.reading.values and metric in q.reading.values
    ]
    if not gaps:
        return Finding(claim=claim, holds=None)
    gap = math.fsum(gaps) / len(gaps)
    low_end, high_end = bootstrap_interval(gaps)
    return Finding(claim=claim, holds=gap > 0, detail=f"{metric} {gap:+.3f} [{low_end:+.3f}, {high_end:+.3f}], paired")


def main(work: Workspace) -> Section:
    """Table 2: every rule on every data set."""
    settings = [Setting(rule=rule) for rule in MAIN_RULES]
    tables, findings, records = [], [], []
    for role, data in work.data.items():
        found = work.collect("main", data, settings)
        rows = [work.quality_row(LABELS[s.rule], found[s]) for s in settings]
        rows += [work.paper_row(label, row) for label, row in paper.MAIN.get(role, {}).items()]
        tables.append(work.quality_table(f"Reconstruction on {data.name} ({len(data)} clips)", "Rule", rows))
        findings += _main_findings(data, {s.rule: found[s] for s in settings})
        records += [r for rows_ in found.values() for r in rows_]
    return Section(
        name="main",
        title="Reconstruction quality (Table 2)",
        text=(
            "All rules run on the same latents of the same backbone, keep slot 0 whole and are filled by the same "
            "network, except where a row names another fill. pixel-L1, random, whole slots and the router keep as many "
            "cells of each clip as ours does, as far as their form allows. Bits are those of kept numbers at 16 bits "
            "and one mask bit a cell.",
            *missing_notes(records),
        ),
        tables=tuple(tables),
        findings=tuple(findings),
        setup=work.setup(*work.data.values()),
    )


def _main_findings(data: DataSet, found: dict[str, list[Record]]) -> list[Finding]:
    rates = [r.keep_rate for r in found["ours"]]
    spread = f"{100 * min(rates):.1f} % to {100 * max(rates):.1f} % of the cells"
    learnt = found["ours"][0].model["fill"] != "hold"
    filled = [compare(f"{data.name}: ours is above hold at the same cells", found["ours"], found["hold"])]
    return [
        Finding(claim=f"{data.name}: the keep rate follows the content", holds=max(rates) > min(rates), detail=spread),
        *(filled if learnt else []),
        compare(f"{data.name}: hold is above linear", found["hold"], found["linear"]),
        compare(f"{data.name}: ours is above the router's choice at the same rate", found["ours"], found["router"]),
        compare(f"{data.name}: ours is above the choice by pixels", found["ours"], found["pixel-l1"]),
        compare(f"{data.name}: ours is above random cells", found["ours"], found["random"]),
        compare(f"{data.name}: the full rate is the upper bound", found["full"], found["ours"]),
    ]


def cost(work: Workspace) -> Section:
    """Table 1: evaluations spent on the choice of cells, as counted, and seconds a clip."""
    gpu = work.bench.tokenizer.device.type == "cuda"
    data = work.any_set().first(10 if gpu else 3)
    rules = (*COST_RULES, "search-blocks") if gpu else COST_RULES
    found = {rule: [_timed(work, data, i, Setting(rule=rule)) for i in range(len(data))] for rule in rules}
    work.saw([r for records in found.values() for r in records])
    everywhere = {work.bench.machine: found, **_elsewhere(work)}
    spent = {rule: max(r.nfe for r in found[rule]) for rule in rules}
    return Section(
        name="cost",
        title="Cost of the choice (Table 1)",
        text=(
            "NFE counts calls of the encoder or the decoder while the cells are chosen, booked by a wrapper around the "
            "backbone; fills counts calls of the filling network in that time. Seconds are encode, choice, fill and "
            "decode of one clip at a time, after one warm-up; the speed-up is against the search on the same machine. "
            "The paper's seconds are another machine's (A10G), and its ElasticTok is another network, in fp32 JAX.",
        ),
        tables=tuple(_cost_table(machine, by_rule) for machine, by_rule in everywhere.items()),
        findings=(
            Finding(
                claim="ours needs no evaluation to choose", holds=spent["ours"] == 0, detail=f"{spent['ours']} counted"
            ),
            Finding(claim="the router needs one", holds=spent["router"] == 1, detail=f"{spent['router']} counted"),
            Finding(
                claim="the search needs about log2 of the number of cells",
                holds=abs(spent["search"] - math.log2(found["search"][0].cells)) <= 2,
                detail=f"{spent['search']} counted, log2 N = {math.log2(found['search'][0].cells):.1f}",
            ),
        ),
        setup=work.setup(data),
    )


def _cost_table(machine: str, found: dict[str, list[Record]]) -> Table:
    total = {rule: [sum(r.seconds.values()) for r in records] for rule, records in found.items()}
    means = {rule: math.fsum(seconds) / len(seconds) for rule, seconds in total.items()}
    rows: list[tuple[Cell, ...]] = []
    for rule, records in found.items():
        rows.append(
            (
                word(LABELS[rule]),
                mean_cell([float(r.nfe) for r in records], 1),
                mean_cell([float(r.evaluations["allocate"]["fill"]) for r in records], 1),
                mean_cell(total[rule], 3),
                mean_cell([r.seconds["allocate"] for r in records], 4),
                number(means["search"] / means[rule], 1) if "search" in means else word("-"),
                rate_cell(records),
            )
        )
    dash = word("-")
    for label, (nfe, seconds, speed) in paper.COST.items():
        rows.append((word(f"paper: {label}"), word(nfe), dash, number(seconds, 2), dash, number(speed, 0), dash))
    columns = ("Rule", "NFE ↓", "fills ↓", "seconds a clip ↓", "of these: choice", "speed-up ↑", "Keep rate")
    records = next(iter(found.values()))
    caption = f"Cost on {len(records)} clips of {records[0].data}: {machine}"
    return Table(caption=caption, columns=columns, rows=tuple(rows))


def _elsewhere(work: Workspace) -> dict[str, dict[str, list[Record]]]:
    """What the same network cost on other machines, whose records lie in the same store."""
    found: dict[str, dict[str, list[Record]]] = {}
    weights, order = work.bench.tokenizer.spec.weight_hash, [*COST_RULES, "search-blocks"]
    for record in sorted(work.store.all("cost"), key=lambda r: order.index(r.setting["rule"])):
        if record.machine not in ("", work.bench.machine) and record.model["weights"] == weights:
            found.setdefault(record.machine, {}).setdefault(record.setting["rule"], []).append(record)
    return found


def _timed(work: Workspace, data: DataSet, index: int, setting: Setting) -> Record:
    """A record of its own kind: nothing shared with other settings, so that the seconds are those of this rule."""
    bench, clip = work.bench, data.clips[index]
    model = {**bench.model(setting), "machine": bench.machine}
    key = make_key(timed=True, clip=clip.identity, setting=setting.record(), model=model)
    stored = work.store.find("cost", clip.name, key)
    if stored is not None and stored.cells:
        return stored
    work.tell(f"cost: {setting.rule}: {clip.name}")
    _warm_up(bench, data)
    base = Record(study="cost", data=data.name, clip=clip.name, setting=setting.record(), model=model, key=key)
    record = bench.record(bench.scene(clip), setting, ("psnr",), base)
    work.store.write(replace(record, study="cost"))
    return record


def _warm_up(bench: Bench, data: DataSet) -> None:
    """Once: the first pass pays for memory, threads and kernels."""
    if not bench.warm:
        bench.run(bench.scene(data.clips[0]), Setting())
        bench.warm = True
