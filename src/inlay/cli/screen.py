# SPDX-License-Identifier: Apache-2.0
"""What commands print: text or JSON on stdout; remarks and progress on stderr, and progress only on a terminal.

One result is one JSON object; of several inputs each is an object on a line of its own (JSON lines).
"""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
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
    verbose: options.Verbose = False
    results_to_stderr: bool = False  # when stdout carries a video
    about: str = ""  # which of several inputs, before the label of a progress bar

    def show(self, record: Mapping[str, object], rows: Rows) -> None:
        """One result: the record for programs, the rows for people."""
        if self.json:
            self._write(json.dumps(plain(record), indent=2, allow_nan=False))
        elif not self.quiet:
            width = max(len(name) for name, _ in rows)
            self._write("\n".join(one_line(f"{name:<{width}}  {text}") for name, text in rows))

    def line(self, record: Mapping[str, object], text: str) -> None:
        """One result of many, at once: whoever reads along need not wait for the others."""
        if self.json:
            self._write(json.dumps(plain(record), allow_nan=False))
        elif not self.quiet:
            self._write(one_line(text))
        sys.stdout.flush()

    def failed(self, record: Mapping[str, object], message: str) -> None:
        """One of many that failed: an error as a single one would give, and with --json its line too."""
        if self.json:
            self.line(record, "")
        sys.stderr.write(f"inlay: {message}\n")

    def table(
        self, record: Mapping[str, object], rows: Rows, head: Sequence[str], body: Sequence[Sequence[str]]
    ) -> None:
        """A result whose numbers stand in aligned columns, below the rows."""
        if self.json or self.quiet:
            self.show(record, rows)
            return
        widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
        lines = [
            "  ".join(
                [line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))]
            )
            for line in (head, *body)
        ]
        self.show(record, rows)
        self._write("\n".join(["", *(line.rstrip() for line in lines)]))

    def note(self, text: str) -> None:
        """A remark that is not a result."""
        if not self.quiet:
            sys.stderr.write(f"inlay: {one_line(text)}\n")

    def _write(self, text: str) -> None:
        stream = sys.stderr if self.results_to_stderr else sys.stdout
        stream.write(text + "\n")

    @contextmanager
    def progress(self, label: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """Yields `advance(frames)`. Without a terminal, with --quiet or --json it does nothing."""
        fields: dict[str, Any] = {"rate": 0.0} | ({} if total is None else {"left": "-:--:--"})
        column = "{task.fields[rate]:.1f} frames/s"
        with self.bar(f"{self.about}{label} (frames)", column, total=total, **fields) as update:
            done, start = 0, time.perf_counter()

            def advance(frames: int) -> None:
                nonlocal done
                done += frames
                rate = done / max(time.perf_counter() - start, 1e-9)
                left = max((total or done) - done, 0) / max(rate, 1e-9)  # known from the first chunk on
                update(advance=frames, rate=rate, left=str(timedelta(seconds=round(left))))

            yield advance

    @contextmanager
    def bar(
        self, label: str, *texts: str, total: int | None = None, time_left: bool = False, **fields: Any
    ) -> Iterator[Callable[..., None]]:
        """Yields what updates a rich progress bar; `texts` are further columns, which show `fields`.

        Args:
            time_left: show rich's estimate, which needs two steps; a field `left` is shown in its place.
        """
        if self.quiet or self.json or not sys.stderr.isatty():
            yield lambda **_: None
            return
        from rich import progress
        from rich.console import Console

        more = [progress.TextColumn(text) for text in texts]
        columns = [progress.BarColumn(), progress.MofNCompleteColumn(), *more, progress.TimeElapsedColumn()]
        if "left" in fields:
            columns.append(progress.TextColumn("left {task.fields[left]}"))
        elif time_left:
            columns += [progress.TextColumn("left"), progress.TimeRemainingColumn()]
        console = Console(stderr=True)
        with progress.Progress(label, *columns, console=console, transient=True, speed_estimate_period=120) as bar:
            task = bar.add_task("", total=total, **fields)
            yield lambda **change: bar.update(task, **change)


def one_line(text: str) -> str:
    """With control characters, which a file name may hold, as they are written in code.

    >>> one_line("new\\nline.mp4")
    'new\\\\nline.mp4'
    """
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda found: found[0].encode("unicode_escape").decode(), text)


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
