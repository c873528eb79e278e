# SPDX-License-Identifier: Apache-2.0
"""What commands print: text or one JSON object on stdout; progress on stderr, and only on a terminal."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from inlay.cli import options

Rows = Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Screen:
    """Where and how a command prints."""

    json: options.Json = False
    quiet: options.Quiet = False
    results_to_stderr: bool = False  # when stdout carries a video

    def show(self, record: Mapping[str, object], rows: Rows) -> None:
        """One result: the record for programs, the rows for people."""
        if self.json:
            self._write(json.dumps(plain(record), indent=2, allow_nan=False))
        elif not self.quiet:
            width = max(len(name) for name, _ in rows)
            self._write("\n".join(f"{name:<{width}}  {text}" for name, text in rows))

    def note(self, text: str) -> None:
        """A remark that is not a result."""
        if not self.quiet:
            sys.stderr.write(f"inlay: {text}\n")

    def _write(self, text: str) -> None:
        stream = sys.stderr if self.results_to_stderr else sys.stdout
        stream.write(text + "\n")

    @contextmanager
    def progress(self, label: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """Yields `advance(frames)`. Without a terminal, with --quiet or --json it does nothing."""
        with self.bar(f"{label} (frames)", total=total) as update:
            yield lambda frames: update(advance=frames)

    @contextmanager
    def bar(
        self, label: str, *texts: str, total: int | None = None, time_left: bool = False, **fields: Any
    ) -> Iterator[Callable[..., None]]:
        """Yields what updates a rich progress bar; `texts` are further columns, which show `fields`."""
        if self.quiet or self.json or not sys.stderr.isatty():
            yield lambda **_: None
            return
        from rich import progress
        from rich.console import Console

        more = [progress.TextColumn(text) for text in texts]
        columns = [progress.BarColumn(), progress.MofNCompleteColumn(), *more, progress.TimeElapsedColumn()]
        columns += [progress.TextColumn("left"), progress.TimeRemainingColumn()] if time_left else []
        console = Console(stderr=True)
        with progress.Progress(label, *columns, console=console, transient=True, speed_estimate_period=120) as bar:
            task = bar.add_task("", total=total, **fields)
            yield lambda **change: bar.update(task, **change)


def plain(value: object) -> object:
    """What JSON can say: fractions as numbers, paths as text, numbers that are none as null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def clips_text(count: int) -> str:
    return "1 clip" if count == 1 else f"{count} clips"


def size_text(size_bytes: int) -> str:
    """`41,308 bytes` or `1.24 MB (1,240,311 bytes)`.

    >>> size_text(999)
    '999 bytes'
    """
    if size_bytes < 1_000_000:
        return f"{size_bytes:,} bytes"
    return f"{size_bytes / 1e6:.2f} MB ({size_bytes:,} bytes)"


def public_command(words: Sequence[str] | None = None) -> str:
    """The command as others may run it: files and folders by their last two names, wherever they lie here."""
    given = sys.argv[1:] if words is None else words
    short = [re.sub(r"(?<![^=])/.*", lambda found: "/".join(Path(found[0]).parts[1:][-2:]), w) for w in given]
    return f"inlay {shlex.join(short)}"
