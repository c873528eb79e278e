# SPDX-License-Identifier: Apache-2.0
"""Check the paths a command is given, before anything is loaded."""

from __future__ import annotations

import os
from pathlib import Path

from inlay.errors import InlayError, TokenFileError, UsageError, VideoError
from inlay.files import PART, SOURCE, check_length, check_output, check_part, kind_of, too_long

STREAM = "-"
TOKEN_SUFFIX = ".inlay"


def input_video(path: str) -> str:
    """A readable file, `-` for standard input, or the address of a live source."""
    from inlay.video.source import is_address

    if path.endswith(TOKEN_SUFFIX) and Path(path).is_file():
        raise VideoError(f"{path}: is a token file; make a video of it first with: inlay decode")
    return path if path == STREAM or is_address(path) else _input(path, VideoError)


def input_tokens(path: str) -> str:
    if path == STREAM:
        raise UsageError("token files are not read from standard input; give the name of a file")
    return _input(path, TokenFileError)


def _input(path: str, kind: type[InlayError]) -> str:
    place = Path(path)
    if not path:
        raise UsageError("the name of the input is empty; give a file")
    if too_long(place):
        raise kind(f"{path}: the name is too long for a file; give a shorter one")
    if not place.exists():
        raise kind(f"{path}: no such file")
    if (other := kind_of(place)) is not None:
        raise kind(f"{path}: is {other}; give a file" + (", or - for standard input" if kind is VideoError else ""))
    if not os.access(place, os.R_OK):
        raise kind(f"{path}: may not be read; check its permissions")
    return path


def output(
    path: str, *, force: bool, inputs: tuple[str, ...] = (), what: str = "a file", suffixes: tuple[str, ...] = ()
) -> str:
    """A place where a file may be written: see `check_output`; and none of the inputs."""
    place = Path(path)
    check_length(path)
    if place.exists() and any(i != STREAM and place.samefile(i) for i in inputs if Path(i).exists()):
        raise UsageError(f"{path}: is also the input; give another output")
    check_output(path, what=what, suffixes=suffixes, force=force)
    return path


def output_tokens(path: str, *, force: bool, inputs: tuple[str, ...]) -> str:
    """As `output`, with room beside it for what an interruption would leave."""
    output(path, force=force, inputs=inputs, what="a token file", suffixes=(TOKEN_SUFFIX,))
    check_length(path, PART + SOURCE)
    check_part(Path(path + PART))
    return path


def output_png(what: str, path: str, *, force: bool, inputs: tuple[str, ...]) -> None:
    """As `output`, for a picture beside the result."""
    output(path, force=force, inputs=inputs, what=f"a {what}", suffixes=(".png",))


def check_distinct(*results: str | None) -> None:
    """No two results of one command go to one place."""
    given = [path for path in results if path is not None and path != STREAM]
    for number, path in enumerate(given):
        if any(Path(path).resolve() == Path(other).resolve() for other in given[:number]):
            raise UsageError(f"{path}: two results would have one name; give each its own")


def output_video(path: str, *, force: bool, inputs: tuple[str, ...] = ()) -> str:
    """As `output`, and of a kind that can be written; standard output too."""
    from inlay.video import check_target

    if path != STREAM:
        output(path, force=force, inputs=inputs)
    check_target(path, force=force)
    return path


def beside(path: str, suffix: str) -> str:
    """`clip.mp4` -> `clip<suffix>` in the same folder; a stream has no such place."""
    from inlay.video.source import is_address

    if path == STREAM or is_address(path):
        raise UsageError("reading standard input or an address needs the name of an output file")
    if not Path(path).name:
        raise UsageError(f"{path}: is a folder; give a file" if path else "the name of the input is empty; give a file")
    return str(Path(path).with_suffix(suffix))
