# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, each kind with its exit code; `pick` for names, `require` for optional packages."""

from __future__ import annotations

import difflib
import importlib
import re
import shlex
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")

INTERRUPTED = 130  # 128 + SIGINT, as shells count
OUT_OF_MEMORY = 137  # 128 + SIGKILL, as when the system ends it
PIPE_CLOSED = 141  # 128 + SIGPIPE
EXIT_CODES = {  # what a command ends with; docs/app.md has the same table
    0: "done",
    1: "something unexpected, a defect of ours",
    2: "a wrong request: flags, names, settings, an output that is there already or has the wrong kind of name",
    3: "a video that cannot be read",
    4: "a token file that is damaged, inconsistent, or asks for too much",
    5: "weights or an optional package that are not here",
    6: "a result that cannot be written: no such folder, a full disk, a device or a link in its place",
    INTERRUPTED: "interrupted (Ctrl-C)",
    OUT_OF_MEMORY: "memory ran out",
    PIPE_CLOSED: "whoever read the output has gone",
    143: "terminated (SIGTERM)",
}


class InlayError(Exception):
    """An error the user can act on: what is wrong, what was found, what to do.

    Args:
        about: names of the settings it is about; the command line shows the flags that set them.
    """

    exit_code = 1

    def __init__(self, message: str = "", *, about: str | tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.about = (about,) if isinstance(about, str) else about


class UsageError(InlayError):
    """The request makes no sense: a wrong flag, an unknown name, a file that would be overwritten."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting outside its range, or two settings that contradict each other."""


class ShapeError(InlayError):
    """A tensor of the wrong shape."""

    exit_code = 2


class VideoError(InlayError):
    """A video that cannot be read or written."""

    exit_code = 3


class TokenFileError(InlayError):
    """A token file that is damaged, cut short, of another version, or not one at all."""

    exit_code = 4


class CutShortError(TokenFileError):
    """A token file that ends before its first chunk."""


class MissingError(InlayError):
    """Weights or an optional package that are not here."""

    exit_code = 5


class OutputError(InlayError):
    """A result that cannot be written: a device or a link in its place, its folder is missing, the disk is full."""

    exit_code = 6


class Terminated(KeyboardInterrupt):
    """SIGTERM, as `timeout`, Slurm and Docker send it: what is half written is put away as after Ctrl-C."""

    exit_code = 143  # 128 + SIGTERM, as shells count


def pick(kind: str, name: str, table: Mapping[str, T]) -> T:
    """The entry called `name`, or an error that lists the choices and the nearest one.

    >>> pick("fill", "hold", {"hold": 1, "linear": 2})
    1
    """
    if isinstance(name, str) and name in table:
        return table[name]
    near = difflib.get_close_matches(str(name), table, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UsageError(f"unknown {kind} {name!r}{hint} (choices: {', '.join(table)})")


def check_number(
    name: str, value: object, wanted: str, ok: Callable[[float], bool] = lambda v: True, *, whole: bool = False
) -> None:
    """Refuse what is no number, or not as it should be.

    >>> check_number("keep", 0.3, "a share", lambda v: 0 < v <= 1)
    """
    number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
    if not number or not ok(value):  # type: ignore[arg-type]  # NaN compares false, and so is refused
        shown = f"{value:g}" if isinstance(value, float) and not whole else repr(value)
        why = ", and a whole number is wanted" if whole and isinstance(value, float) else ""
        raise ConfigError(f"{name} is {wanted}; got {shown}{why}", about=name)


def number_of(count: int, what: str) -> str:
    """So many of something, in words.

    >>> number_of(1, "frame"), number_of(2_000, "clip")
    ('1 frame', '2,000 clips')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def check_kind(value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Refuse what is of another class than `wanted` tells.

    >>> check_kind("clip.mp4", str, "a reader takes a path")
    """
    if not isinstance(value, kind):
        raise UsageError(f"{wanted}; got {type(value).__name__}")


def require(module: str, *, extra: str = "") -> ModuleType:
    """Import a package that not every machine has, or say what to install: the extra that brings it, or itself."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            raise
        package = module.split(".")[0]
        raise MissingError(f"{package} is not installed; run: {install_line(extra, package)}") from error


def install_line(extra: str, package: str = "") -> str:
    """What to type to get the packages of an extra: by their own names, for Inlay itself is in no index.

    >>> install_line("", "av")
    'pip install av'
    """
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires("inlay") or []
    except PackageNotFoundError:  # a source tree that was never installed declares nothing
        lines = []
    mark = re.compile(rf"extra == ['\"]{re.escape(extra)}['\"]")
    wanted = [line.partition(";")[0].strip() for line in lines if extra and mark.search(line)]
    return f"pip install {shlex.join(wanted or [package])}" + (f"  # the extra {extra}" if wanted else "")
