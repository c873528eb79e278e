# SPDX-License-Identifier: Apache-2.0
"""Turn whatever goes wrong into one line and an exit code, with the flags that set what an error is about."""

from __future__ import annotations

import errno
import re
import traceback
from contextvars import ContextVar
from typing import Any

import typer

from inlay.cli.screen import one_line
from inlay.errors import INTERRUPTED, OUT_OF_MEMORY, InlayError, OutputError, Terminated, UsageError
from inlay.files import FULL

_NO_MEMORY = re.compile(r"can't allocate memory|CUDA out of memory|not enough memory")  # as torch and x264 say it
NO_ROOM_TO_TRAIN = (
    "there is not enough memory for this; try more parts (--accumulate, up to --batch), or smaller or shorter clips "
    "(--size, --frames)"
)
TRACING = ContextVar("tracing", default=False)  # --debug: show where an error came from
MEANING = {  # where the name alone does not say it
    "--keep-going": "--keep-going uses what is intact",
    "--large": "--large takes it",
    "--untrusted": "without --untrusted there is none",
}


def explain(error: BaseException, command: Any) -> tuple[str, int]:
    """What a person needs to know of an error of a typer command, in one line, and the exit code."""
    if TRACING.get():
        traceback.print_exception(error)
    message, code = _diagnose(error)
    if code == OUT_OF_MEMORY and any(parameter.name == "accumulate" for parameter in command.params):
        message = NO_ROOM_TO_TRAIN
    flags = _flags(error.about, command) if isinstance(error, InlayError) else []
    hint = f" ({', '.join(flags)})" if flags else ""
    return one_line(f"{message}{hint}"), code


def _flags(about: tuple[str, ...], command: Any) -> list[str]:
    """The flags of a command that set what an error is about: its parameters are called as the settings."""
    flags = {parameter.name: parameter.opts[0] for parameter in command.params}
    return [MEANING.get(flags[name], flags[name]) for name in about if name in flags]


def _diagnose(error: BaseException) -> tuple[str, int]:
    if isinstance(error, Terminated):
        return "terminated", error.exit_code
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return "interrupted", INTERRUPTED
    if isinstance(error, InlayError):
        return str(error), error.exit_code
    if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
        return "there is not enough memory for this; try a smaller video, or a machine with more", OUT_OF_MEMORY
    if hasattr(error, "format_message"):  # typer's usage errors; their class moves between typer's releases
        context = getattr(error, "ctx", None)
        hint = f" (see: {context.command_path} --help)" if context is not None else ""
        said, cause = error.format_message().strip().rstrip("."), error.__cause__
        if cause is not None and hasattr(cause, "errors"):  # pydantic's: typer tells what is wanted, not what was given
            said = f"{said.partition(', unable')[0]}; got {cause.errors()[0]['input']!r}"
        return f"{said}{hint}", UsageError.exit_code
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        if error.errno == errno.ENAMETOOLONG:
            return f"{place}the name is too long; give a shorter one", UsageError.exit_code
        return f"{place}{error.strerror}", OutputError.exit_code if error.errno in FULL else 1
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return f"unexpected {text}; run again with --debug to see where", 1
