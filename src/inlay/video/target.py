# SPDX-License-Identifier: Apache-2.0
"""Check the path a video is to be written to, before any work is done."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from inlay.errors import UsageError

CONTAINERS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}  # suffix -> muxer
STDOUT = Path("-")


def check_target(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """The path as it will be written, or the reason why not: suffix, folder, or a file that is already there."""
    path = Path(path)
    if path == STDOUT:
        if sys.stdout.isatty():
            raise UsageError("standard output is a terminal; pipe it somewhere, or name a file")
        return path
    if path.suffix.lower() not in CONTAINERS:
        found = f"got {path.suffix!r}" if path.suffix else "it has none"
        raise UsageError(f"{path}: the suffix chooses the kind of video file: {', '.join(CONTAINERS)}; {found}")
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}; make it first")
    if path.exists() and not force:
        raise UsageError(f"{path}: is already there; choose another name, or overwrite it", about="force")
    return path
