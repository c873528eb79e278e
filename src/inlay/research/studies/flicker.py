# SPDX-License-Identifier: Apache-2.0
"""The tables of Appendix G: flicker by region, by fill, and paired tests over the same clips."""

from __future__ import annotations

from inlay.errors import MissingError, number_of
from inlay.fill import LIT_FILES
from inlay.measure import paired_comparison
from inlay.research.studies import paper
from inlay.research.studies.ablation import NAMES, masked
from inlay.research.studies.quality import compare_records, mean_of, paired
from inlay.research.studies.records import Record, mean_rate
from inlay.research.studies.rules import Setting
from inlay.research.studies.sections import Cell, Finding, Section, Table, mean_cell, number, percent, word
from inlay.research.studies.workspace import Workspace

METRICS = ("flicker", "flicker-static", "flicker-moving", "error-level", "psnr")
REGIONS = {"static": "flicker-static", "moving": "flicker-moving", "all": "flicker"}
JUDGED = {**REGIONS, "error level": "error-level"}


def flicker_arms(work: Workspace) -> dict[str, Setting]:
    """At the paper's keep rate."""
    match = work.matcher(work.davis_val())
    tau = match.tau(paper.DAVIS_RATE)
    previous = masked(work, tau=match.tau(paper.DAVIS_RATE, reference="previous"), reference="previous")
    arms = {"backbone": Setting(rule="full"), "ours": masked(work, tau=tau), "ours, previous reference": previous}
    others = [f for f in work.fills() if f != work.bench.tokenizer.filler.default]
    return arms | {NAMES.get(f, f): masked(work, fill=f, tau=tau) for f in others}


def flicker(work: Workspace) -> Section:
    """Backbone against masking, last-kept against previous, and fill against fill."""
    data = work.davis_val()
    arms = flicker_arms(work)
    found = work.collect("flicker", data, arms.values(), METRICS)
    by_arm = {name: found[s] for name, s in arms.items()}
    given = [name for name in work.bench.tokenizer.filler.lits if name not in LIT_FILES]
    tables = (_regions(by_arm, len(data)), _arms(by_arm), _paired(work, by_arm, given))
    rate = 100 * mean_rate(by_arm["ours"])
    return Section(
        name="flicker",
        title="Temporal flicker (Appendix G)",
        text=(
            f"On {data.counted} at a keep rate of {rate:.1f} %. Flicker is the mean change "
            "of the error from frame to frame along the flow of the reference, on the 0..255 scale.",
            *([f"Given with --lit: {', '.join(given)}."] if given else []),
        ),
        tables=tables,
        findings=(
            *_findings(by_arm),
            *(
                compare_records(f"{n} flickers less than {given[0]}", by_arm[n], by_arm[given[0]], "flicker")
                for n in given[1:]
            ),
        ),
        setup=work.setup(data, metrics=METRICS),
    )


def _regions(arms: dict[str, list[Record]], clips: int) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for region, metric in REGIONS.items():
        before, after = mean_of(arms["backbone"], metric), mean_of(arms["ours"], metric)
        rows.append((word(region), *(_mean(arms[a], metric) for a in ("backbone", "ours")), *_growth(before, after)))
    for region, (before, after) in paper.FLICKER.items():
        rows.append((word(f"paper: {region}"), number(before), number(after), *_growth(before, after)))
    columns = ("Region", "backbone", "with masking", "masking adds", "in percent", "backbone's share")
    return Table(caption=f"Flicker by region ({number_of(clips, 'clip')})", columns=columns, rows=tuple(rows))


def _mean(records: list[Record], metric: str, digits: int = 3) -> Cell:
    return mean_cell([r.reading.values[metric] for r in records if metric in r.reading.values], digits)


def _growth(before: float | None, after: float | None) -> tuple[Cell, Cell, Cell]:
    if not before or not after:
        return word("-"), word("-"), word("-")
    return number(after - before), percent(after / before - 1), percent(before / after)


def _arms(arms: dict[str, list[Record]]) -> Table:
    columns = ("Arm", "flicker, all ↓", "static ↓", "moving ↓", "error level ↓", "PSNR ↑")
    rows = [
        (word(name), *(_mean(records, m) for m in METRICS[:-1]), _mean(records, "psnr", 2))
        for name, records in arms.items()
    ]
    for name, (*flickers, psnr) in paper.FLICKER_OBJECTIVES.items():
        rows.append((word(f"paper: {name}"), *(number(x) for x in flickers), number(psnr, 2)))
    return Table(caption="Flicker and fidelity of each arm", columns=columns, rows=tuple(rows))


def _paired(work: Workspace, arms: dict[str, list[Record]], given: list[str]) -> Table:
    """Clip by clip: each arm against ours; of several networks given by hand the later ones against the first two."""
    first_column = "Comparison (positive favours the second)"
    columns = (first_column, "clips", "mean difference", "95 % interval", "p (t)", "p (Wilcoxon)")
    pairs = [(name, "ours") for name in arms if name != "ours" and name not in given[1:]]
    pairs += [(first, later) for i, first in enumerate(given[:2]) for later in given[i + 1 :]]
    rows: list[tuple[Cell, ...]] = []
    for first, second in pairs:
        for region, metric in JUDGED.items():
            row = _pair(work, arms[first], arms[second], metric)
            if row is not None:
                rows.append((word(f"{first} against {second} ({region})"), *row))
    for name, (difference, low, high, p) in paper.FLICKER_PAIRED.items():
        span = word(f"[{low:+.3f}, {high:+.3f}]")
        rows.append((word(f"paper: {name}"), word("30"), number(difference), span, number(p), word("-")))
    return Table(caption="Paired comparisons over the same clips", columns=columns, rows=tuple(rows))


def _pair(work: Workspace, a: list[Record], b: list[Record], metric: str) -> tuple[Cell, ...] | None:
    pairs = paired(a, b, metric)
    if len(pairs) < 2:
        return None
    try:
        test = paired_comparison([p for p, _ in pairs], [q for _, q in pairs])
    except MissingError as error:
        work.note(str(error))
        return None
    span = Cell(text=f"[{test.low:+.3f}, {test.high:+.3f}]", value=test.low)
    return number(float(test.clips), 0), number(test.mean_difference), span, number(test.t_p), number(test.wilcoxon_p)


def _findings(arms: dict[str, list[Record]]) -> list[Finding]:
    means = {region: [mean_of(arms[a], metric) for a in ("backbone", "ours")] for region, metric in REGIONS.items()}
    growth = {region: after / before - 1 for region, (before, after) in means.items() if before and after}
    shown = ", ".join(f"{region} {100 * g:+.1f} %" for region, g in growth.items())
    known = len(growth) == len(REGIONS)
    return [
        Finding(claim="masking adds flicker", holds=growth["all"] > 0 if known else None, detail=shown),
        Finding(
            claim="masking adds relatively more flicker in static regions than in moving ones",
            holds=growth["static"] > growth["moving"] if known else None,
            detail=shown,
            why="a fill that begins from what was held has little left to add where nothing moves",
        ),
        Finding(
            claim="the backbone's own flicker remains the larger part",
            holds=growth["all"] < 1 if known else None,
            detail=f"{100 / (1 + growth['all']):.0f} % of all; the paper has 71 %" if known else "",
        ),
        compare_records(
            "the last-kept reference flickers less than the previous slot",
            arms["ours"],
            arms["ours, previous reference"],
            "flicker",
            why="at one keep rate the two references drop nearly the same cells of clips that move as these do",
        ),
    ]
