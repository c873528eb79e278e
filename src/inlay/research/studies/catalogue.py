# SPDX-License-Identifier: Apache-2.0
"""Run studies by name; write their sections as JSON, Markdown and a part of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from inlay.draw.plots import png
from inlay.errors import InlayError, MissingError, UsageError, pick
from inlay.research.studies.ablation import ablation, fill_sweep, sweep
from inlay.research.studies.bits import bits
from inlay.research.studies.cost import cost
from inlay.research.studies.flicker import flicker
from inlay.research.studies.opening import headline
from inlay.research.studies.pictures import backbones, masks, token_usage, with_films
from inlay.research.studies.quality import main
from inlay.research.studies.records import Store, restored
from inlay.research.studies.report import MADE, html_report, results_page
from inlay.research.studies.sections import Figure, Section
from inlay.research.studies.streaming import streaming
from inlay.research.studies.workspace import Workspace

STUDIES: dict[str, Callable[[Workspace], Section]] = {
    "main": main,
    "cost": cost,
    "ablation": ablation,
    "streaming": streaming,
    "sweep": sweep,
    "fill-sweep": fill_sweep,
    "masks": masks,
    "usage": token_usage,
    "backbones": backbones,
    "flicker": flicker,
    "bits": bits,
}


def chosen(name: str) -> list[str]:
    """The studies behind a name; `all` is every one."""
    if name == "all":
        return list(STUDIES)
    pick("study", name, {**STUDIES, "all": None, "docs": None})
    return [name]


def run_study(work: Workspace, name: str) -> Section:
    """Run or resume one study and leave its section, tables and the report in the output folder."""
    section = work.run(pick("study", name, STUDIES))
    section = with_films(section, work.bench, work.store, work.any_set())
    write_section(work.store, section)
    return section


def run_all(work: Workspace, names: Sequence[str]) -> tuple[dict[str, Section], dict[str, str]]:
    """(sections, why others could not run); one that fails for want of something does not cost the others."""
    done: dict[str, Section] = {}
    failed: dict[str, str] = {}
    for name in names:
        try:
            done[name] = run_study(work, name)
        except InlayError as error:
            if len(names) == 1:
                raise
            failed[name] = str(error)
            work.tell(f"{name}: {error}")
    return done, failed


def write_section(store: Store, section: Section) -> None:
    store.write_json(f"sections/{section.name}.json", section.record())
    store.write_text(f"tables/{section.name}.md", section.markdown(level=1, figures="../"))
    store.write_text("report.html", html_report(read_sections(store), store.root))


def read_sections(store: Store) -> list[Section]:
    """All sections in the folder, in the order of the table of studies; a damaged one waits for its study."""
    found = []
    for name in STUDIES:
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            found.append(restored(Section, store.read_json(f"sections/{name}.json") or {}))
    return found


def write_page(store: Store, page: Path) -> Path:
    """The Markdown page of results, from the sections alone: no data, no weights."""
    sections = read_sections(store)
    for name in set(STUDIES) - {section.name for section in sections}:
        if (file := store.root / "sections" / f"{name}.json").exists():
            raise UsageError(f"{file}: is damaged; run inlay study {name} again, or remove the file")
    if not sections:
        raise UsageError(f"{store.root}: no study has left a section here; run one first: inlay study main --out DIR")
    if page.exists() and not (page.is_file() and MADE.encode() in page.read_bytes()):
        raise UsageError(f"{page}: exists, and is no page of results; give another name", about="page")
    place = Store(page.resolve().parent)
    carried = [[_carried(f, store, place) for f in s.figures if f.file] for s in sections]
    kept = [replace(s, figures=tuple(f for f in row if f)) for s, row in zip(sections, carried, strict=True)]
    return place.write_text(page.name, results_page(kept, headline_file=_headline(sections, place)))


def _headline(sections: Sequence[Section], place: Store) -> str:
    """The plot that the page begins with; empty where nothing can draw it."""
    panel, file = headline(sections), "pictures/results/headline.png"
    if panel is None:
        return ""
    with suppress(MissingError):
        place.write_bytes(file, png([panel]))
    return file if (place.root / file).is_file() else ""


def _carried(figure: Figure, store: Store, place: Store) -> Figure | None:
    """The picture beside the page, which must not depend on where the studies' folder lies: plots are drawn from their
    numbers, others copied.

    One that is gone from that folder may lie beside the page from an earlier time; else there is none.
    """
    file = f"pictures/results/{Path(figure.file).name}"
    if figure.panels:
        with suppress(MissingError):
            place.write_bytes(file, png(figure.panels))
    elif (store.root / figure.file).is_file():
        place.write_bytes(file, (store.root / figure.file).read_bytes())
    return replace(figure, file=file) if (place.root / file).is_file() else None
