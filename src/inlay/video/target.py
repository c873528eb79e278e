# SPDX-License-Identifier: Apache-2.0
"""Check the path a video is to be written to, before any work is done."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from inlay.errors import UsageError, check_kind
from inlay.files import check_output

CONTAINERS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska"}  # suffix -> muxer
STDOUT = Path("-")


def check_target(path: str | os.PathLike[str], *, force: bool = False) -> Path:
    """The path as it will be written, or the reason why not: suffix, folder, or a file that is already there."""
    check_kind(path, (str, os.PathLike), "a video is written to a path")
    path = Path(path)
    if path == STDOUT:
        if sys.stdout.isatty():
            raise UsageError("standard output is a terminal; pipe it somewhere, or name a file")
        return path
    return check_output(path, what="a video", suffixes=tuple(CONTAINERS), force=force)
