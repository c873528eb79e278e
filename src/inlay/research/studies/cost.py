# SPDX-License-Identifier: Apache-2.0
"""Table 1 of the paper: what it costs to choose the cells, in evaluations and in seconds."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

from inlay.errors import number_of
from inlay.research.studies import paper
from inlay.research.studies.datasets import DataSet
from inlay.research.studies.quality import LABELS
from inlay.research.studies.records import Record, make_key
from inlay.research.studies.rules import Setting
from inlay.research.studies.sections import Cell, Finding, Section, Table, mean_cell, number, rate_cell, word
from inlay.research.studies.workspace import Workspace

COST_RULES = ("full", "ours", "router", "search")


def cost(work: Workspace) -> Section:
    """Table 1: evaluations spent on the choice of cells, as counted, and seconds a clip."""
    gpu = work.bench.tokenizer.device.type == "cuda"
    data = work.any_set().first(10 if gpu else 3)
    rules = (*COST_RULES, "search-blocks") if gpu else COST_RULES
    found = {rule: [_timed(work, data, i, Setting(rule=rule)) for i in range(len(data))] for rule in rules}
    work.saw(found)
    everywhere = {work.bench.machine: found, **_elsewhere(work)}
    spent = {rule: max(r.nfe for r in found[rule]) for rule in rules}
    counted = {rule: f"{calls} counted" for rule, calls in spent.items()}
    return Section(
        name="cost",
        title="Cost of the choice (Table 1)",
        text=(
            "NFE counts calls of the encoder or the decoder while the cells are chosen, as a hook of the codec sees "
            "them; fills counts calls of the filling network in that time. Seconds are encode, choice, fill and decode "
            "of one clip at a time, after one warm-up; the speed-up is against the search on the same machine. "
            "The paper's seconds are another machine's (A10G), and its ElasticTok is another network, in fp32 JAX.",
        ),
        tables=tuple(_cost_table(machine, by_rule) for machine, by_rule in everywhere.items()),
        findings=(
            Finding(claim="ours needs no evaluation to choose", holds=not spent["ours"], detail=counted["ours"]),
            Finding(claim="the router needs one", holds=spent["router"] == 1, detail=counted["router"]),
            Finding(
                claim="the search needs about log2 of the number of cells",
                holds=abs(spent["search"] - math.log2(found["search"][0].cells)) <= 2,
                detail=f"{counted['search']}, log2 N = {math.log2(found['search'][0].cells):.1f}",
            ),
            _fastest(found),
        ),
        setup=work.setup(data, metrics=()),
    )


def _fastest(found: dict[str, list[Record]]) -> Finding:
    """Table 1: ours before the router, the router before the search."""
    seconds = {rule: fmean(r.total_seconds for r in records) for rule, records in found.items()}
    speed = {rule: seconds["search"] / seconds[rule] for rule in ("ours", "router")}
    return Finding(
        claim="ours is faster than the router, and the router than the search",
        holds=seconds["ours"] < seconds["router"] < seconds["search"],
        detail=f"{speed['ours']:.1f} and {speed['router']:.1f} times as fast as the search; the paper has 31 and 13",
    )


def _cost_table(machine: str, found: dict[str, list[Record]]) -> Table:
    means = {rule: fmean(r.total_seconds for r in records) for rule, records in found.items()}
    rows: list[tuple[Cell, ...]] = []
    for rule, records in found.items():
        rows.append(
            (
                word(LABELS[rule]),
                mean_cell([float(r.nfe) for r in records], 1),
                mean_cell([float(r.evaluations["allocate"]["fill"]) for r in records], 1),
                mean_cell([r.total_seconds for r in records], 3),
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
    caption = f"Cost on {number_of(len(records), 'clip')} of {records[0].data}: {machine}"
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
    base = work.store.find_or_blank("cost", data.name, clip.name, setting.record(), model, key)
    if base.cells:
        return base
    work.tell(f"cost: {setting.rule}: {clip.name}")
    if not bench.warm:  # once: the first pass pays for memory, threads and kernels
        bench.run(bench.scene(data.clips[0]), Setting())
        bench.warm = True
    record = bench.record(bench.scene(clip), setting, ("psnr",), base)
    work.store.write(replace(record, study="cost"))
    return record
