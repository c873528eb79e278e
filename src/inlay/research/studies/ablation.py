# SPDX-License-Identifier: Apache-2.0
"""Table 3 and the sweeps of Appendices A.1 and F: criterion, reference, fill, threshold."""

from __future__ import annotations

from itertools import pairwise

from inlay.draw.plots import Panel, Series
from inlay.errors import number_of
from inlay.masking import CRITERIA, REFERENCES
from inlay.research.studies import paper
from inlay.research.studies.datasets import DataSet
from inlay.research.studies.quality import compare_records, mean_of, perceptual
from inlay.research.studies.records import Record, is_set, mean_rate, score_set
from inlay.research.studies.rules import Setting
from inlay.research.studies.sections import DIGITS, NEARLY_THE_SAME, Finding, Section, axis, heading, number
from inlay.research.studies.workspace import Workspace

PLAIN = ("hold", "linear")
NAMES = {"hold": "hold (copy last-kept)", "linear": "linear interpolation"}
ONE_TAU = (
    "a network trained at one threshold, as the paper's is, gains little under a smaller one, less than it loses on "
    "the kept cells, which it makes anew"
)


def masked(
    work: Workspace, *, fill: str | None = None, tau: float | None = None, criterion: str = "latent-l1",
    reference: str = "last-kept",
) -> Setting:  # fmt: skip
    """The one setting that says this, so that studies find one another's records."""
    own = tau == work.bench.tau and (criterion, reference) == ("latent-l1", "last-kept")
    named = None if fill in (None, *PLAIN, work.bench.tokenizer.filler.default) else fill
    rule = fill if fill in PLAIN else "ours"
    assert rule is not None
    return Setting(rule=rule, tau=None if own else tau, fill=named, criterion=criterion, reference=reference)


def ablation_settings(work: Workspace) -> dict[str, dict[str, Setting]]:
    """Of each kind (criterion, reference, fill) by choice, all at the paper's keep rate over the whole set."""
    match, target = work.matcher(work.davis_val()), paper.DAVIS_RATE
    tau = match.tau(target)
    criteria = {c: masked(work, fill="hold", tau=match.tau(target, criterion=c), criterion=c) for c in CRITERIA}
    references = {r: masked(work, tau=match.tau(target, reference=r), reference=r) for r in REFERENCES}
    fills = {f: masked(work, fill=f, tau=tau) for f in work.fills()}
    return {"criterion": criteria, "reference": references, "fill": fills}


def ablation(work: Workspace) -> Section:
    """Table 3: one choice varied at a time, all at the paper's keep rate."""
    data = work.davis_val()
    default = work.bench.tokenizer.filler.default
    settings = ablation_settings(work)
    found = work.collect("ablation", data, [s for chosen in settings.values() for s in chosen.values()])
    captions = {
        "criterion": "(a) Criterion; reference last-kept, fill hold",
        "reference": f"(b) Reference; criterion latent-l1, fill {default}",
        "fill": "(c) Fill; criterion latent-l1, reference last-kept",
    }
    tables = []
    for (name, chosen), caption in zip(settings.items(), captions.values(), strict=True):
        rows = [work.quality_row(NAMES.get(v, v), found[s]) for v, s in chosen.items()]
        rows += [work.paper_row(v, q) for v, q in paper.ABLATION[name].items()]
        tables.append(work.quality_table(f"{caption} ({data.name}, {number_of(len(data), 'clip')})", "Variant", rows))
    by_name = {v: found[s] for chosen in settings.values() for v, s in chosen.items()}
    found_taus = {c: work.bench.tau if s.tau is None else s.tau for c, s in settings["criterion"].items()}
    taus = ", ".join(f"{criterion} {tau:.4g}" for criterion, tau in found_taus.items())
    return Section(
        name="ablation",
        title="Ablations at a matched keep rate (Table 3)",
        text=(
            f"Every variant keeps {100 * paper.DAVIS_RATE:.0f} % of the cells of the set, as in the paper, as nearly "
            f"as a threshold can meet it: found by bisection over the latents (thresholds of (a): {taus}).",
        ),
        tables=tuple(tables),
        findings=tuple(_findings(work, by_name)),
        setup=work.setup(data),
    )


def _findings(work: Workspace, found: dict[str, list[Record]]) -> list[Finding]:
    rows = [
        compare_records(
            "change of latents ranks cells better than change of pixels",
            found["latent-l1"],
            found["pixel-l1"],
            why="the latents of a small backbone stay close to the pixels, whose change then says nearly the same",
        ),
        compare_records(
            "L1 is above cosine distance",
            found["latent-l1"],
            found["latent-cosine"],
            why="the length of a latent says less in this backbone than in the paper's",
        ),
        compare_records("last-kept is above the previous slot as reference", found["last-kept"], found["previous"]),
        compare_records("hold is above linear interpolation", found["hold"], found["linear"]),
    ]
    for lit in work.bench.tokenizer.filler.lits:
        rows.append(compare_records(f"{lit} is above hold", found[lit], found["hold"], why=ONE_TAU))
        rows += perceptual(lit, found[lit], found["hold"])
    a, b = mean_of(found["latent-l1"], "psnr"), mean_of(found["latent-l2"], "psnr")
    if a is not None and b is not None:
        rows.append(Finding(claim="L1 and L2 are nearly tied", holds=abs(a - b) < 0.3, detail=f"{a:.2f}, {b:.2f} dB"))
    return rows


def sweep_settings(work: Workspace) -> dict[float, Setting]:
    """By threshold."""
    return {tau: masked(work, tau=tau) for tau in (work.bench.tau * factor for factor in paper.SWEEP_FACTORS)}


def sweep(work: Workspace) -> Section:
    """Appendix A.1: one network, many thresholds."""
    data = work.davis_val()
    settings = sweep_settings(work)
    found = work.collect("sweep", data, settings.values())
    taus, ordered = list(settings), [found[s] for s in settings.values()]
    rows = [(number(tau, 4), *work.quality_row("", records)[1:]) for tau, records in zip(taus, ordered, strict=True)]
    notes = tuple(f"τ={tau:.2g}" for tau in taus)
    panels = _panels(work, {work.bench.tokenizer.filler.default: ordered}, notes)
    return Section(
        name="sweep",
        title="Quality against keep rate (Appendix A.1)",
        text=(
            "The same fill at every threshold, nothing retrained. The thresholds are those of the paper (0.1 to 0.5) "
            f"in proportion to our tau of {work.bench.tau:.4g}; on DAVIS the paper's go from 94 % to 35 %.",
        ),
        tables=(work.quality_table(f"Thresholds on {data.counted}", "tau", rows),),
        figures=(work.plot("sweep.png", "Quality against the keep rate.", panels),),
        findings=tuple(_monotone(work, ordered, metric) for metric in work.metrics),
        setup=work.setup(data),
    )


def _monotone(work: Workspace, ordered: list[list[Record]], metric: str) -> Finding:
    """Ordered from the lowest threshold: quality must fall."""
    scores = [score_set([r.reading for r in records], metric, work.config) for records in ordered]
    claim = f"{metric} worsens steadily as fewer cells are kept"
    if any(s is None for s in scores):
        return Finding(claim=claim, holds=None)
    sign = {s.better: 1 if s.better == "higher" else -1 for s in scores if s}
    values = [sign[s.better] * s.value for s in scores if s]
    shown = ", ".join(f"{s.value:.{DIGITS.get(metric, 3)}f}" for s in scores if s)
    noise = "this distance between sets of few clips is mostly noise" if is_set(metric) else ""
    return Finding(claim=claim, holds=all(a >= b for a, b in pairwise(values)), detail=shown, why=noise)


def _panels(work: Workspace, curves: dict[str, list[list[Record]]], notes: tuple[str, ...] = ()) -> list[Panel]:
    """Each metric over the keep rate: a curve for each label, a point for each setting."""
    panels = []
    for metric in work.metrics:
        if metric not in NEARLY_THE_SAME:
            series = tuple(_curve(work, label, points, metric, notes) for label, points in curves.items())
            panels.append(Panel(title=heading(metric), x_label="keep rate, %", y_label=axis(metric), series=series))
    return panels


def _curve(work: Workspace, label: str, points: list[list[Record]], metric: str, notes: tuple[str, ...]) -> Series:
    scored = [(records, score_set([r.reading for r in records], metric, work.config)) for records in points]
    known = [(100 * mean_rate(records), score) for records, score in scored if score is not None]
    x, y = tuple(rate for rate, _ in known), tuple(score.value for _, score in known)
    low, high = tuple(score.low for _, score in known), tuple(score.high for _, score in known)
    return Series(label=label, x=x, y=y, low=low, high=high, notes=notes)


def fill_sweep_settings(work: Workspace) -> dict[tuple[str, float], Setting]:
    """By fill and keep rate of the whole set."""
    match = work.matcher(work.davis_val())
    taus = {rate: match.tau(rate) for rate in paper.FILL_SWEEP_RATES}
    return {(f, rate): masked(work, fill=f, tau=tau) for f in work.fills() for rate, tau in taus.items()}


def fill_sweep(work: Workspace) -> Section:
    """Appendix F: the fills at several keep rates."""
    data = work.davis_val()
    grid = fill_sweep_settings(work)
    found = work.collect("fill-sweep", data, grid.values())
    rates = paper.FILL_SWEEP_RATES
    rows = [
        work.quality_row(f"{NAMES.get(f, f)} at {100 * rate:.0f} %", found[grid[f, rate]])
        for rate in rates
        for f in work.fills()
    ]
    panels = _panels(work, {f: [found[grid[f, r]] for r in rates] for f in work.fills()})
    return Section(
        name="fill-sweep",
        title="Fills across keep rates (Appendix F)",
        text=("The masks at one keep rate are the same for all fills.",),
        tables=(work.quality_table(f"Fills on {data.counted}", "Fill", rows),),
        figures=(work.plot("fill-sweep.png", "Fills across keep rates.", panels),),
        findings=tuple(_fill_findings(work, data, {k: found[s] for k, s in grid.items()})),
        setup=work.setup(data),
    )


def _fill_findings(work: Workspace, data: DataSet, found: dict[tuple[str, float], list[Record]]) -> list[Finding]:
    rates = paper.FILL_SWEEP_RATES
    rows = []
    for lit in work.bench.tokenizer.filler.lits:
        gains = [(mean_of(found[lit, r], "psnr") or 0.0) - (mean_of(found["hold", r], "psnr") or 0.0) for r in rates]
        shown = ", ".join(f"{g:+.2f} dB at {100 * r:.0f} %" for g, r in zip(gains, rates, strict=True))
        always = f"{lit} is above hold at every keep rate"
        rows.append(Finding(claim=always, holds=min(gains) > 0, detail=shown, why=ONE_TAU))
        rows.append(
            Finding(claim=f"the margin of {lit} widens with fewer cells", holds=gains[0] > gains[-1], detail=shown)
        )
        for r in rates:
            rows += perceptual(f"{lit} at {100 * r:.0f} %", found[lit, r], found["hold", r])
    rows += [
        compare_records(f"hold is above linear at {100 * r:.0f} %", found["hold", r], found["linear", r]) for r in rates
    ]
    return rows
