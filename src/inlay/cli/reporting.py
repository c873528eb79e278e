# SPDX-License-Identifier: Apache-2.0
"""The page of `inlay eval --report`: tables, plots, films, and how it was made."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from inlay import __version__
from inlay.cli import paths
from inlay.errors import MissingError, UsageError, VideoError
from inlay.files import atomic
from inlay.measure import MeasureConfig
from inlay.origin import commit
from inlay.research.studies.datasets import DataSet
from inlay.research.studies.evaluate import Bench
from inlay.research.studies.films import SHOWN, film_pairs, film_rules
from inlay.research.studies.outside import example_pairs
from inlay.research.studies.records import Record, Store
from inlay.research.studies.report import html_report
from inlay.research.studies.rules import Setting
from inlay.research.studies.scores import eval_section
from inlay.research.studies.sections import Figure, conventions
from inlay.research.studies.workspace import Workspace

Rows = dict[str, list[Record]]
Tell = Callable[[str], None]


def check_report(path: str, *, force: bool) -> str:
    """Refuse what cannot be written before anything is measured."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{path}: the report is a page; give a name that ends in .html")
    return paths.output(path, force=force)


def report_rules(
    path: str, rows: Rows, bench: Bench, store: Store, data: DataSet, metrics: tuple[str, ...],
    settings: Sequence[Setting], tell: Tell,
) -> None:  # fmt: skip
    """Rules that were run here: the films show each of them on the same clips."""
    films = _films(lambda: film_rules(bench, store, data, settings), tell)
    work = Workspace(bench=bench, store=store, data={data.name: data}, metrics=metrics, command=command())
    _write(path, rows, data, metrics, bench.measure, store.root, films, work.setup(data))


def report_outside(
    path: str, rows: Rows, folder: Path, store: Store, data: DataSet, metrics: tuple[str, ...], config: MeasureConfig,
    tell: Tell,
) -> None:  # fmt: skip
    """Another system's reconstructions: the films show them beside the originals."""
    films = _films(lambda: film_pairs(store, example_pairs(data, folder, SHOWN)), tell)
    made = {"command": command(), "version": __version__, "commit": commit(), "data": [data.record()]}
    made["conventions"] = conventions(metrics, config)
    _write(path, rows, data, metrics, config, store.root, films, made)


def _films(make: Callable[[], tuple[Figure, ...]], tell: Tell) -> tuple[Figure, ...]:
    try:
        return make()
    except (MissingError, VideoError) as error:
        tell(f"the report has no films: {error}")
        return ()


def _write(
    path: str, rows: Rows, data: DataSet, metrics: tuple[str, ...], config: MeasureConfig, root: Path,
    films: tuple[Figure, ...], setup: dict[str, Any],
) -> None:  # fmt: skip
    section = eval_section(rows, data, metrics, config, films=films, setup=setup)
    with atomic(path) as part:
        part.write_text(html_report([section], root, title="Inlay: evaluation"), encoding="utf-8")


def command() -> str:
    """The command as others may run it: folders by their last two names, wherever they lie here."""
    words = ["/".join(Path(w).parts[-2:]) if w.startswith("/") else w for w in sys.argv[1:]]
    return f"inlay {shlex.join(words)}"
