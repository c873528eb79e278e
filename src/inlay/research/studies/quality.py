# SPDX-License-Identifier: Apache-2.0
"""Table 2 of the paper: quality at a keep rate, for every rule that chooses the cells; and how findings are made."""

from __future__ import annotations

from statistics import fmean

from inlay.measure import METRICS, bootstrap_interval
from inlay.research.studies import paper
from inlay.research.studies.datasets import DataSet
from inlay.research.studies.records import Record, mean_rate
from inlay.research.studies.rules import Setting
from inlay.research.studies.sections import DIGITS, Finding, Section
from inlay.research.studies.workspace import Workspace

MAIN_RULES = ("full", "ours", "hold", "linear", "search", "router", "pixel-l1", "random", "frame-skip")
PAPER_FULL, PAPER_OURS = "Cosmos-CV4x8x8, full rate", "ours, Cosmos, tau 0.3"
BLUR = (
    "a fill that minimises an error of pixels or latents blurs what it cannot know, and LPIPS minds blur more than it "
    "minds what is old but sharp"
)
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
    return fmean(values) if values else None


def paired(first: list[Record], second: list[Record], metric: str) -> list[tuple[float, float]]:
    """The readings of clips that have one on both sides."""
    values = [(p.reading.values.get(metric), q.reading.values.get(metric)) for p, q in zip(first, second, strict=True)]
    return [(a, b) for a, b in values if a is not None and b is not None]


def compare_records(
    claim: str, first: list[Record], second: list[Record], metric: str = "psnr", *, why: str = ""
) -> Finding:
    """Whether the first has the better mean; the difference is taken clip by clip, with its bootstrap interval."""
    pairs = paired(first, second, metric)
    if not pairs:
        return Finding(claim=claim, holds=None)
    mean_a, mean_b = map(fmean, zip(*pairs, strict=True))
    gap = mean_a - mean_b
    low, high = bootstrap_interval([a - b for a, b in pairs])
    d = DIGITS.get(metric, 3)
    detail = f"{metric} {mean_a:.{d}f} against {mean_b:.{d}f}: {gap:+.{d}f} [{low:+.{d}f}, {high:+.{d}f}]"
    if low <= 0 <= high:
        detail += ", an interval that includes 0"
    better = gap > 0 if METRICS[metric].better == "higher" else gap < 0
    return Finding(claim=claim, holds=better, detail=detail, why=why)


def perceptual(name: str, filled: list[Record], held: list[Record]) -> list[Finding]:
    """The paper's network is better than hold by LPIPS too; nothing where LPIPS was not measured."""
    if mean_of(filled, "lpips") is None:
        return []
    return [compare_records(f"{name} has a lower LPIPS than hold", filled, held, "lpips", why=BLUR)]


def matched_settings(work: Workspace, role: str, data: DataSet) -> list[Setting]:
    """Ours and hold at the keep rate that the paper has on this set; none for a set it does not have."""
    if role not in paper.MAIN:
        return []
    tau = work.matcher(data).tau(paper.MAIN[role][PAPER_OURS].keep)
    return [Setting(rule=rule, tau=tau) for rule in ("ours", "hold")]


def measure_matched(work: Workspace, data: DataSet) -> dict[Setting, list[Record]]:
    """`data` may be a part of a set; the threshold is that of the whole."""
    settings = [s for r, d in work.data.items() if d.name == data.name for s in matched_settings(work, r, d)]
    return work.collect("main", data, settings)


def measure_main(work: Workspace, data: DataSet) -> dict[Setting, list[Record]]:
    return work.collect("main", data, [Setting(rule=rule) for rule in MAIN_RULES])


def main(work: Workspace) -> Section:
    """Table 2: every rule on every data set."""
    tables, findings, apart = [], [], []
    for role, data in work.data.items():
        matched = matched_settings(work, role, data)
        found = {**measure_main(work, data), **measure_matched(work, data)}
        by_rule = {rule: found[Setting(rule=rule)] for rule in MAIN_RULES}
        at_paper = {s.rule: found[s] for s in matched}
        rows = [work.quality_row(LABELS[rule], records) for rule, records in by_rule.items()]
        rows += [work.quality_row(f"{LABELS[s.rule]}, at the paper's keep rate", found[s]) for s in matched]
        rows += [work.paper_row(label, row) for label, row in paper.MAIN.get(role, {}).items()]
        tables.append(work.quality_table(f"Reconstruction on {data.counted}", "Rule", rows))
        findings += [*_main_findings(data, by_rule), *_matched_findings(data, at_paper)]
        apart += paper_gap(role, data, {**by_rule, **at_paper})
    return Section(
        name="main",
        title="Reconstruction quality (Table 2)",
        text=(
            "All rules run on the same latents of the same backbone, keep slot 0 whole and are filled by the same "
            "network, except where a row names another fill. pixel-L1, random, whole slots and the router keep as many "
            "cells of each clip as ours does, as far as their form allows. Bits are those of kept numbers at 16 bits "
            "and one mask bit a cell.",
            *apart,
        ),
        tables=tuple(tables),
        findings=tuple(findings),
        setup=work.setup(*work.data.values()),
    )


def paper_gap(role: str, data: DataSet, found: dict[str, list[Record]]) -> list[str]:
    """How much of the distance to the paper's numbers is the backbone's, and what masking costs on both sides."""
    full, ours = mean_of(found["full"], "psnr"), mean_of(found["ours"], "psnr")
    theirs = paper.MAIN.get(role, {})
    if full is None or ours is None or PAPER_FULL not in theirs:
        return []
    there_full, there = theirs[PAPER_FULL], theirs[PAPER_OURS]
    videos = {
        "davis": f"The sequences are {len(data)} of DAVIS's 90, from the copies that were given.",
        "tokenbench": "The videos are TokenBench's.",
    }.get(data.layout, f"{data.name} is made of other videos, so the two full rates do not compare.")
    return [
        f"Beside the paper on {data.name}: at the full rate its backbone has {there_full.psnr:.2f} dB and ours "
        f"{full:.2f} dB ({full - there_full.psnr:+.2f}). Dropping cells costs the paper "
        f"{there_full.psnr - there.psnr:.2f} dB at {100 * there.keep:.0f} % kept, and {full - ours:.2f} dB here at "
        f"{100 * mean_rate(found['ours']):.1f} %. {videos}"
    ]


def _main_findings(data: DataSet, found: dict[str, list[Record]]) -> list[Finding]:
    rates = [r.keep_rate for r in found["ours"]]
    spread = f"{100 * min(rates):.1f} % to {100 * max(rates):.1f} % of the cells"
    learnt = found["ours"][0].model["fill"] != "hold"
    filled = [compare_records(f"{data.name}: ours is above hold at the same cells", found["ours"], found["hold"])]
    return [
        Finding(claim=f"{data.name}: the keep rate follows the content", holds=max(rates) > min(rates), detail=spread),
        *(filled if learnt else []),
        compare_records(f"{data.name}: hold is above linear", found["hold"], found["linear"]),
        *perceptual(f"{data.name}: ours", found["ours"], found["hold"]) * learnt,
        compare_records(
            f"{data.name}: ours is above the router's choice at the same rate", found["ours"], found["router"]
        ),
        compare_records(f"{data.name}: ours is above the choice by pixels", found["ours"], found["pixel-l1"]),
        compare_records(f"{data.name}: ours is above random cells", found["ours"], found["random"]),
        compare_records(f"{data.name}: the full rate is the upper bound", found["full"], found["ours"]),
    ]


def _matched_findings(data: DataSet, found: dict[str, list[Record]]) -> list[Finding]:
    if not found or found["ours"][0].model["fill"] == "hold":
        return []
    name = f"{data.name}: ours, at the paper's keep rate,"
    return [
        compare_records(f"{name} is above hold", found["ours"], found["hold"]),
        *perceptual(name, found["ours"], found["hold"]),
    ]
