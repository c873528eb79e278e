# SPDX-License-Identifier: Apache-2.0
"""A progress bar on the terminal, or plain lines where there is no terminal; always to stderr."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class RunProgress:
    """Says where a run is. `quiet` says nothing."""

    def __init__(self, total: int, *, done: int = 0, quiet: bool = False) -> None:
        self.total, self.done, self.quiet = total, done, quiet
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> RunProgress:
        if not self.quiet and sys.stderr.isatty():
            self._bar = _rich_bar()
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("training", total=self.total, completed=self.done, note="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, done: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done)

    def note(self, done: int, numbers: dict[str, float]) -> None:
        """Show some numbers of a step."""
        text = "  ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        if self._bar is not None:
            self._bar.update(self._task, completed=done, note=text)
        else:
            self.say(f"step {done}/{self.total}  {text}")

    def say(self, text: str) -> None:
        """A line of its own."""
        if self.quiet:
            return
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def _rich_bar() -> Any:
    """A bar by rich, or None where rich is not installed: training must run without it."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
    except ImportError:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Bar(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True))
