# SPDX-License-Identifier: Apache-2.0
"""What a report begins with: three sentences and one plot."""

from __future__ import annotations

from collections.abc import Sequence

from inlay.draw.plots import Panel
from inlay.research.studies.sections import Cell, Section, Table

FULL, OURS = "full rate", "ours"  # how the rows of a table begin
PSNR = "psnr"


def sentences(sections: Sequence[Section]) -> tuple[str, ...]:
    """What was measured, what came of it, how much of the paper holds; what a report cannot tell is left out."""
    found = (_measured(sections), _outcome(sections), _relations(sections))
    return tuple(text for text in found if text)


def headline(sections: Sequence[Section]) -> Panel | None:
    """The plot of PSNR that compares most; where there is none, the first plot."""
    panels = [panel for s in sections for figure in s.figures for panel in figure.panels if panel.series]
    quality = [panel for panel in panels if panel.y_label == PSNR]
    return max(quality, key=lambda panel: len(panel.series)) if quality else next(iter(panels), None)


def _measured(sections: Sequence[Section]) -> str:
    clips: dict[str, int] = {}
    models = dict.fromkeys(_named(str(s.setup["backbone"])) for s in sections if s.setup.get("backbone"))
    for s in sections:
        for data in s.setup.get("data", ()):
            clips[data["name"]] = max(clips.get(data["name"], 0), len(data["clips"]))
    if not clips or not models:
        return ""
    sets = " and ".join(f"{name} ({count} clip{'' if count == 1 else 's'})" for name, count in clips.items())
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


def _clause(table: Table) -> str:
    at = {name.split(" ")[0].lower(): i for i, name in reversed(list(enumerate(table.columns)))}
    if "keep" not in at or PSNR not in at:
        return ""

    def value(row: tuple[Cell, ...], column: str) -> float | None:
        return row[at[column]].value

    rows = {row[0].text: row for row in table.rows if value(row, PSNR) is not None}
    ours = next((row for name, row in rows.items() if name == OURS), None)
    if ours is None or value(ours, "keep") is None:
        return ""
    full = next((row for name, row in rows.items() if name.startswith(FULL)), None)
    beside = "" if full is None else f", the backbone alone {value(full, PSNR):.2f} dB"
    kept = f"{100 * (value(ours, 'keep') or 0):.1f} % of the cells"
    place = table.caption.partition(" on ")[2].split(" (")[0]
    return f"{f'on {place} ' if place else ''}ours has {value(ours, PSNR):.2f} dB with {kept}{beside}"


def _relations(sections: Sequence[Section]) -> str:
    examined = [f for s in sections for f in s.findings if f.holds is not None]
    if not examined:
        return ""
    kept = sum(bool(f.holds) for f in examined)
    return f"{kept} of {len(examined)} relations that the paper states, or that follow from it, hold here."
