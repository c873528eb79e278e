# SPDX-License-Identifier: Apache-2.0
"""Check the paths a command is given, before anything is loaded."""

from __future__ import annotations

import os
from pathlib import Path

from inlay.errors import InlayError, TokenFileError, UsageError, VideoError

STREAM = "-"
TOKEN_SUFFIX = ".inlay"


def input_video(path: str) -> str:
    """A readable file, `-` for standard input, or the address of a live source."""
    from inlay.video.source import is_address

    return path if path == STREAM or is_address(path) else _input(path, VideoError)


def input_tokens(path: str) -> str:
    return _input(path, TokenFileError)


def _input(path: str, kind: type[InlayError]) -> str:
    place = Path(path)
    if not place.exists():
        raise kind(f"{path}: no such file")
    if place.is_dir():
        raise kind(f"{path}: is a folder; give one file")
    if not os.access(place, os.R_OK):
        raise kind(f"{path}: may not be read; check its permissions")
    return path


def output(path: str, *, force: bool, inputs: tuple[str, ...] = ()) -> str:
    """A place that may be written: not an input, not there yet (or --force), in a folder that exists."""
    if path == STREAM:
        return path
    place = Path(path)
    if not path or place.is_dir():
        raise UsageError(f"{path or 'the output'}: is a folder; give the name of a file")
    if not place.parent.is_dir():
        raise UsageError(f"{path}: the folder {place.parent} does not exist; make it first")
    if place.exists() and any(i != STREAM and place.samefile(i) for i in inputs if Path(i).exists()):
        raise UsageError(f"{path}: is also the input; give another output")
    if place.exists() and not force:
        raise UsageError(f"{path}: exists already; give --force to overwrite it, or another name")
    return path


def output_png(what: str, path: str, *, force: bool, inputs: tuple[str, ...]) -> None:
    """As `output`, for a picture beside the result."""
    if Path(path).suffix.lower() != ".png":
        raise UsageError(f"{path}: the {what} is a PNG; give a name that ends in .png")
    output(path, force=force, inputs=inputs)


def output_video(path: str, *, force: bool, inputs: tuple[str, ...] = ()) -> str:
    """As `output`, and of a kind that can be written."""
    output(path, force=force, inputs=inputs)
    from inlay.video import check_target

    check_target(path, force=force)
    return path


def beside(path: str, suffix: str) -> str:
    """`clip.mp4` -> `clip<suffix>` in the same folder; a stream has no such place."""
    from inlay.video.source import is_address

    if path == STREAM or is_address(path):
        raise UsageError("reading standard input or an address needs the name of an output file")
    return str(Path(path).with_suffix(suffix))
