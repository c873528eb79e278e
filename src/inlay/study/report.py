# SPDX-License-Identifier: Apache-2.0
"""Sections in, one HTML file that needs nothing else out, and the Markdown page of results."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from inlay.study.sections import Cell, Section, Table

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 75em; padding: 1em 2em 4em; color: #1a1a1a; }
nav a { margin-right: 1em; } h2 { border-top: 1px solid #ccc; margin-top: 2.5em; padding-top: 1em; }
table { border-collapse: collapse; margin: 0.6em 0 1.6em; font-size: 13px; }
caption { text-align: left; font-weight: 600; padding: 0.4em 0; }
th, td { padding: 0.25em 0.7em; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { cursor: pointer; background: #f4f4f4; }
th[aria-sort=ascending]::after { content: " ▲"; } th[aria-sort=descending]::after { content: " ▼"; }
img { max-width: 100%; } figure { margin: 1em 0; } figcaption { color: #555; font-size: 13px; }
.holds { color: #00694c; } .fails { color: #a03c00; } details { font-size: 13px; color: #444; }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #ddd; } th { background: #25282e; }
  th, td { border-color: #3a3d44; } a { color: #7fc4f0; } .holds { color: #5fd0a8; } .fails { color: #f0a070; }
  figcaption, details { color: #aaa; } img { background: #fff; } }
"""

SORT = """
document.querySelectorAll("th").forEach(function (head) {
  function sort() {
    var table = head.closest("table"), body = table.tBodies[0], at = head.cellIndex;
    var up = head.getAttribute("aria-sort") !== "ascending";
    table.querySelectorAll("th").forEach(function (h) { h.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    function value(row) {
      var cell = row.cells[at], n = cell.getAttribute("data-value");
      return n === null ? cell.textContent : parseFloat(n);
    }
    Array.from(body.rows).sort(function (a, b) {
      var x = value(a), y = value(b), both = typeof x === "number" && typeof y === "number";
      if (typeof x !== typeof y) { return typeof x === "number" ? -1 : 1; }
      return (both ? x - y : String(x).localeCompare(String(y))) * (up ? 1 : -1);
    }).forEach(function (row) { body.appendChild(row); });
  }
  head.tabIndex = 0;
  head.addEventListener("click", sort);
  head.addEventListener("keydown", function (e) { if (e.key === "Enter") { sort(); } });
});
"""


def html_report(sections: Sequence[Section], root: Path) -> str:
    """One page; `root` is where the sections' figures lie."""
    links = " ".join(f'<a href="#{escape(s.name)}">{escape(s.name)}</a>' for s in sections)
    body = "\n".join(_section(s, root) for s in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Inlay: studies</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>Inlay: studies</h1>\n"
        "<p>Numbers in brackets are 95 % intervals. A click on a column sorts by it.</p>\n"
        f"<nav>{links}</nav>\n{body}\n<script>{SORT}</script>\n</body>\n</html>\n"
    )


def _section(section: Section, root: Path) -> str:
    parts = [f'<section id="{escape(section.name)}">', f"<h2>{escape(section.title)}</h2>"]
    parts += [f"<p>{escape(text)}</p>" for text in section.text]
    parts += [_table(t) for t in section.tables]
    for figure in section.figures:
        path = root / figure.file
        if path.is_file():
            data = base64.b64encode(path.read_bytes()).decode()
            text = escape(figure.caption)
            kind = "jpeg" if path.suffix == ".jpg" else "png"
            parts.append(f'<figure><img src="data:image/{kind};base64,{data}" alt="{text}">')
            parts.append(f"<figcaption>{text}</figcaption></figure>")
    if section.findings:
        marks = {True: "holds", False: "fails", None: ""}
        rows = [f'<li class="{marks[f.holds]}">{escape(f.text())}</li>' for f in section.findings]
        parts.append(f"<ul>{''.join(rows)}</ul>")
    parts.append(_setup(section))
    return "\n".join([*parts, "</section>"])


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(c)}</th>' for c in table.columns)
    body = "\n".join("<tr>" + "".join(_cell(c) for c in row) + "</tr>" for row in table.rows)
    caption = f"<caption>{escape(table.caption)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


def _cell(cell: Cell) -> str:
    number = "" if cell.value is None else f' data-value="{cell.value!r}"'
    return f"<td{number}>{escape(cell.text)}</td>"


def _setup(section: Section) -> str:
    rows = [f"<li>{escape(k)}: {escape(_say(v))}</li>" for k, v in section.setup.items()]
    return f"<details><summary>How this was made</summary><ul>{''.join(rows)}</ul></details>"


def _say(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{k} {_say(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_say(v) for v in value)
    return str(value)


def results_page(sections: Sequence[Section], *, figures: str = "") -> str:
    """The page "Results" in Markdown; `figures` is the way from it to the folder of the studies."""
    head = (
        "# Results\n\nMade by `inlay study docs` from the records of the studies; do not edit by hand. Numbers in "
        "brackets are 95 % intervals. Rows that begin with `paper:` are the paper's own, with another backbone "
        "(Cosmos-CV4x8x8) and, for TokenBench, other videos: compare relations, not values.\n"
    )
    parts = [head]
    for section in sections:
        parts.append(section.markdown(figures=figures))
        parts.append(_made(section))
    return "\n".join(parts)


def _made(section: Section) -> str:
    setup = section.setup
    sets = "; ".join(
        f"{d['name']}: {len(d['clips'])} clips of {d['spec']['frames']} frames, side {d['spec']['size']}, "
        f"interval {d['spec']['interval']}, split {d['split']}"
        for d in setup.get("data", [])
    )
    return f"Made with `{setup.get('command', '')}` ({setup.get('backbone', '')}; {sets}).\n"
