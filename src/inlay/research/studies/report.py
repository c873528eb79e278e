# SPDX-License-Identifier: Apache-2.0
"""The report, one HTML file that needs nothing else (report.css and report.js go into it); the page of results."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import pairwise
from pathlib import Path

from inlay.draw.images import data_uri
from inlay.draw.plots import Panel, svg
from inlay.errors import MissingError, number_of
from inlay.research.studies.opening import headline, sentences
from inlay.research.studies.sections import Cell, Figure, Finding, Section, Table

STYLE, SCRIPT = (Path(__file__).with_name(f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
IMAGE_KINDS = {".avif": "avif", ".jpg": "jpeg", ".png": "png", ".webp": "webp"}
OPEN_SECTIONS = 2  # more are folded
MADE = "Made by `inlay study docs`"  # by which a page is known that may be written anew
HEADLINE_ALT = "PSNR against the keep rate"
EVERY_SECTION = ("version", "commit", "backbone", "tau", "fill", "device")  # what the foot says once, where all agree


def html_report(sections: Sequence[Section], root: Path, *, title: str = "Inlay: studies") -> str:
    """One page; `root` is where the sections' figures and films lie."""
    links = [(s.name, s.title.split(" (")[0]) for s in sections]
    films = list({f.file: f for s in sections for f in s.films if (root / f.file).is_file()}.values())
    links += [("films", "Films")] if films else []
    menu = " ".join(f'<a href="#{escape(name)}">{escape(text)}</a>' for name, text in links)
    is_open = len(sections) <= OPEN_SECTIONS
    above = headline(sections) if is_open else None
    parts = [_section(s, root, is_open=is_open, above=above) for s in sections]
    body = "\n".join([*parts, _films(films, root), _foot(sections)])
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f'{_opening(sections)}<p class="hint">Numbers in brackets are 95 % intervals. A click on a column sorts by it; '
        "pointing at a plot, or the arrow keys, tell its numbers.</p>\n"
        f'<nav>{menu}</nav>\n{body}\n<div id="tip" role="status"></div>\n<script>{SCRIPT}</script>\n'
        "</body>\n</html>\n"
    )


def _opening(sections: Sequence[Section]) -> str:
    """Three sentences and one plot."""
    said, panel = " ".join(sentences(sections)), headline(sections)
    text = f'<p class="lead">{escape(said)}</p>\n' if said else ""
    return text + (f'<figure><div class="plots"><div>{_plot(panel)}</div></div></figure>\n' if panel else "")


def _section(section: Section, root: Path, *, is_open: bool, above: Panel | None) -> str:
    """`above`: a plot in sight already."""
    parts = [f'<section id="{escape(section.name)}"><details{" open" if is_open else ""}>']
    parts += [f"<summary><h2>{escape(section.title)}</h2></summary>"]
    parts += [f"<p>{escape(text)}</p>" for text in section.text]
    parts += [_table(t) for t in section.tables]
    rest = [replace(f, panels=tuple(p for p in f.panels if p != above)) for f in section.figures]
    shown = [new for new, old in zip(rest, section.figures, strict=True) if new.panels or not old.panels]
    parts += [_figure(f, root) for f in shown]
    if section.findings:
        marks = {True: "holds", False: "fails", None: ""}
        rows = [f'<li class="{marks[f.holds]}">{escape(f.text())}</li>' for f in section.findings]
        parts.append(f"<ul>{''.join(rows)}</ul>")
    settings = [f"<li>{escape(k)}: {escape(_as_text(v))}</li>" for k, v in section.setup.items() if v or v == 0]
    parts.append(f"<details><summary>Settings of this section</summary><ul>{''.join(settings)}</ul></details>")
    return "\n".join([*parts, "</details></section>"])


def _figure(figure: Figure, root: Path) -> str:
    """A plot is drawn from its numbers; a picture is carried along; one that is gone is left out."""
    text = escape(figure.caption)
    if figure.panels:
        plots = "".join(f"<div>{_plot(panel)}</div>" for panel in figure.panels)
        return f'<figure><div class="plots">{plots}</div><figcaption>{text}</figcaption></figure>'
    path = root / figure.file
    if not path.is_file():
        return ""
    image = data_uri(path.read_bytes(), IMAGE_KINDS.get(path.suffix, "png"))
    return f'<figure><img src="{image}" alt="{text}"><figcaption>{text}</figcaption></figure>'


def _plot(panel: Panel) -> str:
    try:
        return svg(panel)
    except MissingError as error:
        return f"<p>No plot: {escape(str(error))}.</p>"


def _films(films: Sequence[Figure], root: Path) -> str:
    shown = "".join(_figure(film, root) for film in films)
    return f'<section id="films">\n<h2>Films</h2>\n<div class="films">{shown}</div>\n</section>' if films else ""


def _foot(sections: Sequence[Section]) -> str:
    """Configuration and commit: each value once, all of them where sections differ."""
    rows = []
    for key in EVERY_SECTION:
        values = list(dict.fromkeys(_as_text(s.setup[key]) for s in sections if s.setup.get(key) not in (None, "")))
        if values:
            rows.append(f"<dt>{escape(key)}</dt><dd>{escape('; '.join(values))}</dd>")
    commands = dict.fromkeys(s.setup["command"] for s in sections if s.setup.get("command"))
    rows += [f"<dt>command</dt><dd><code>{escape(c)}</code></dd>" for c in commands]
    return f'<footer id="configuration"><p>How this page was made</p><dl>{"".join(rows)}</dl></footer>'


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(c)}</th>' for c in table.columns)
    body = "\n".join("<tr>" + "".join(_cell(c) for c in row) + "</tr>" for row in table.rows)
    drawn = f"<caption>{escape(table.caption)}</caption><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody>"
    return f'<div class="wide"><table>{drawn}</table></div>'


def _cell(cell: Cell) -> str:
    number = "" if cell.value is None else f' data-value="{cell.value!r}"'
    return f"<td{number}>{escape(cell.text)}</td>"


def _as_text(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{k} {_as_text(v)}" for k, v in value.items() if v not in ([], (), "", None))
    if isinstance(value, list | tuple):
        return ", ".join(_as_text(v) for v in value)
    return str(value)


def results_page(sections: Sequence[Section], *, figures: str = "", headline_file: str = "") -> str:
    """The page "Results" in Markdown: three sentences and one plot, what does not hold, and the studies, folded.

    Args:
        figures: the way from the page to the folder of the studies.
        headline_file: that plot, where it could be drawn.
    """
    said = " ".join(sentences(sections))
    plot = f"![{HEADLINE_ALT}]({headline_file})\n\n" if headline_file else ""
    head = (
        f"# Results\n\n{said}\n\n{plot}{MADE} from the records of the studies; do not edit by hand. Numbers in "
        "brackets are 95 % intervals. Rows that begin with `paper:` are the paper's own, with another backbone "
        "(Cosmos-CV4x8x8) and, for TokenBench, other videos: compare relations, not values. What each metric follows "
        "is said in [Measure](measure.md); what the studies do, in [Study](study.md).\n"
    )
    parts = [_folded(s, f"{s.markdown(figures=figures, narrow=True)}\n{_provenance(s)}") for s in sections]
    return "\n".join([head, in_short(sections), *parts])


def _folded(section: Section, text: str) -> str:
    """The heading in sight, for the menu, and the rest below it on demand."""
    heading, _, body = text.partition("\n")
    tables, figures = len(section.tables), len([f for f in section.figures if f.file])
    counts = [number_of(n, what) for n, what in ((tables, "table"), (figures, "picture")) if n]
    title = ", ".join(counts) or "what was found"
    return f'{heading}\n\n<details markdown="1"><summary>{title}</summary>\n{body}\n</details>\n'


def in_short(sections: Sequence[Section]) -> str:
    """How many relations hold, by study, and those that do not, each with its numbers and the likely reason."""
    examined = {s.title: [f for f in s.findings if f.holds is not None] for s in sections}
    examined = {title: found for title, found in examined.items() if found}
    if not examined:
        return ""
    total, kept = (sum(map(len, rows)) for rows in (examined.values(), map(_holding, examined.values())))
    lines = [
        "## In short",
        "",
        f"{kept} of {total} relations hold here: those the paper states, and some that follow from it. Each is checked "
        "by code from the records and listed below its tables; a difference is paired clip by clip, in brackets its "
        "95 % interval.",
        "",
        "| Study | relations | hold |",
        "|---|---:|---:|",
        *(f"| {title} | {len(found)} | {len(_holding(found))} |" for title, found in examined.items()),
        "",
        *_failing(examined),
    ]
    return "\n".join(lines) + "\n"


def _holding(findings: Sequence[Finding]) -> list[Finding]:
    return [f for f in findings if f.holds]


def _failing(examined: Mapping[str, Sequence[Finding]]) -> list[str]:
    """A line on each relation that does not hold, those with the same likely reason together."""
    by_reason: dict[str, list[str]] = {}
    for title, found in examined.items():
        for f in (f for f in found if not f.holds):
            numbers = f" ({f.detail})" if f.detail else ""
            line = f"- {title.split(' (')[-1].rstrip(')')}: {f.claim}{numbers}."
            by_reason.setdefault(f.why, []).append(line)
    lines = []
    for reason in sorted(by_reason):
        because = f", likely because {reason}" if reason else ""
        which = "These do" if len(by_reason[reason]) > 1 else "This does"
        lines += [f"{which} not hold{because}:", "", *by_reason[reason], ""]
    return lines


def _provenance(section: Section) -> str:
    setup = section.setup
    sets = "; ".join(
        f"{d['name']}: {number_of(len(d['clips']), 'clip')} of {d['spec']['frames']} frames, side {d['spec']['size']}, "
        f"interval {d['spec']['interval']}, split {d['split']}"
        for d in setup.get("data", [])
    )
    where = f" on {setup['device']}" if setup.get("device") else ""
    return f"Made{where} with `{_without_places(setup.get('command', ''))}` ({setup.get('backbone', '')}; {sets}).\n"


def _without_places(command: str) -> str:
    """A command without the folders and the device of who gave it: `--data-davis DAVIS`."""
    words = shlex.split(command)
    shown: list[str] = []
    for option, word in pairwise(["", *words]):
        if option == "--device" or word == "--device":
            continue
        shown.append(option.rpartition("-")[2].upper() if option.startswith("--data-") or option == "--out" else word)
    return " ".join(shown)
