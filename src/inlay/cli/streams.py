# SPDX-License-Identifier: Apache-2.0
"""The standard streams as commands need them: there, able to show any name, and named in errors."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


def prepare() -> None:
    """Set the streams of this process up, before anything else opens a file."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in the order of their numbers
        if getattr(sys, name) is None:  # whoever started us has closed it
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115
    sys.stdout = _Output.instead_of(sys.stdout)
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")


def lose_output() -> None:
    """What is still to be printed can be brought nowhere: it must not raise once more when Python leaves."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Output(io.TextIOWrapper):
    """Standard output; characters that it has no place for are escaped, and its errors say what it is."""

    _before: TextIO

    @classmethod
    def instead_of(cls, stream: TextIO) -> TextIO:
        """The same stream so; one that is not Python's own stays as it is."""
        if not isinstance(stream, io.TextIOWrapper):
            return stream
        own = cls(
            stream.buffer, encoding=stream.encoding, errors="backslashreplace",
            line_buffering=stream.line_buffering, write_through=stream.write_through,
        )  # fmt: skip
        own._before = stream  # which would close the file if nothing held it
        return own

    def write(self, text: str, /) -> int:
        with _named():
            return super().write(text)

    def flush(self) -> None:
        with _named():
            super().flush()


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.filename = "standard output"
        raise
