# SPDX-License-Identifier: Apache-2.0
"""What a report begins with: three sentences and one plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inlay.draw.plots import Panel
from inlay.errors import number_of
from inlay.research.studies.sections import Section, Table

FULL, OURS = "full", "ours"  # how the rows of a table begin
PSNR = "psnr"
PSNR_AXES = ("PSNR, dB", PSNR)  # of plots, now and in earlier records


def sentences(sections: Sequence[Section]) -> tuple[str, ...]:
    """What was measured, what came of it, how much of the paper holds or else what the others did; what a report cannot
    tell is left out."""
    found = (_measured(sections), _outcome(sections), _relations(sections) or _others(sections))
    return tuple(text for text in found if text)


def headline(sections: Sequence[Section]) -> Panel | None:
    """The plot of PSNR that compares most; where there is none, the first plot."""
    panels = [panel for s in sections for figure in s.figures for panel in figure.panels if panel.series]
    quality = [panel for panel in panels if panel.y_label in PSNR_AXES]
    return max(quality, key=lambda panel: len(panel.series)) if quality else next(iter(panels), None)


def _measured(sections: Sequence[Section]) -> str:
    clips: dict[str, int] = {}
    models = dict.fromkeys(_named(str(s.setup["backbone"])) for s in sections if s.setup.get("backbone"))
    for s in sections:
        for data in s.setup.get("data", ()):
            clips[data["name"]] = max(clips.get(data["name"], 0), len(data["clips"]))
    if not clips or not models:
        return ""
    sets = " and ".join(f"{name} ({number_of(count, 'clip')})" for name, count in clips.items())
    studies = f", in {len(sections)} studies" if len(sections) > 1 else ""
    return f"Measured: {', '.join(models)} on {sets}{studies}."


def _named(backbone: str) -> str:
    """`mini (weights 4eebb71c6c0982ca)` of `mini, weights 4eebb71c6c0982ca`."""
    name, _, weights = backbone.partition(", ")
    return f"{name} ({weights})" if weights else name


def _outcome(sections: Sequence[Section]) -> str:
    """Of the first study that has such rows, a clause for each of its sets."""
    for s in sections:
        clauses = [clause for clause in map(_clause, s.tables) if clause]
        if clauses:
            said = "; ".join(clauses)
            return f"{said[0].upper()}{said[1:]}."
    return ""


def _scores(table: Table) -> dict[str, tuple[float, float]]:
    """(keep rate, PSNR) by the name of the row, of those that have both."""
    at = {name.split(" ")[0].lower(): i for i, name in reversed(list(enumerate(table.columns)))}
    if "keep" not in at or PSNR not in at:
        return {}
    found = {row[0].text: (row[at["keep"]].value, row[at[PSNR]].value) for row in table.rows}
    return {name: (kept, psnr) for name, (kept, psnr) in found.items() if kept is not None and psnr is not None}


def _clause(table: Table) -> str:
    rows = _scores(table)
    if OURS not in rows:
        return ""
    kept, psnr = rows[OURS]
    full = next((values for name, values in rows.items() if name.startswith(FULL)), None)
    beside = "" if full is None else f", the backbone alone {full[1]:.2f} dB"
    place = table.caption.partition(" on ")[2].split(" (")[0]
    return f"{f'on {place} ' if place else ''}ours has {psnr:.2f} dB with {100 * kept:.1f} % of the cells{beside}"


def _others(sections: Sequence[Section]) -> str:
    """The other rules of the first table that has ours; of ours alone, the worst clip and the best."""
    tables = [table for s in sections for table in s.tables]
    rows = next((found for found in map(_scores, tables) if OURS in found), {})
    beside = [
        f"{name} {psnr:.2f} dB with {100 * kept:.1f} %"
        for name, (kept, psnr) in rows.items()
        if name != OURS and not name.startswith(FULL)
    ]
    if beside:
        return f"Beside it: {', '.join(beside)}."
    clips = [replace(t, rows=tuple(r for r in t.rows if r[1].text == OURS)) for t in tables if t.columns[0] == "Clip"]
    found = sorted((psnr, name) for table in clips[:1] for name, (_, psnr) in _scores(table).items())
    if len(found) < 2:
        return ""
    (least, worst), (most, best) = found[0], found[-1]
    return f"The clips lie between {least:.2f} dB ({worst}) and {most:.2f} dB ({best})."


def _relations(sections: Sequence[Section]) -> str:
    examined = [f for s in sections for f in s.findings if f.holds is not None]
    if not examined:
        return ""
    kept = sum(bool(f.holds) for f in examined)
    return f"{kept} of {len(examined)} relations that the paper states, or that follow from it, hold here."
