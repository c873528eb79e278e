# SPDX-License-Identifier: Apache-2.0
"""The folder that a packed cache is unpacked to: one job at a time, and nothing that is there is overwritten."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from inlay.errors import UsageError
from inlay.files import PART, part_beside, writing

PARTS = f".*{PART}"  # where to look for them
_PART_END = re.compile(rf"\.[0-9a-f]{{12}}{re.escape(PART)}\Z")  # of the names that `part_beside` makes


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One unpacking into a folder at a time; the lock is on the folder itself, and leaves nothing in it."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    with writing(folder):
        handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise UsageError(f"another job is writing to {folder}; wait for it, or give another OUT") from error
    except OSError:  # a file system without locks
        pass
    try:
        yield
    finally:
        os.close(handle)


def remove_parts(targets: Iterable[Path]) -> None:
    """Remove what an unpacking that was killed left half-written of these files; only who is alone may."""
    ours: dict[Path, set[str]] = {}
    for target in targets:
        ours.setdefault(target.parent, set()).add(beginning(part_beside(target)))
    for folder, beginnings in ours.items():
        for found in folder.glob(PARTS) if folder.is_dir() else ():
            if is_part(found.name) and beginning(found) in beginnings and found.is_file():
                with writing(found):
                    found.unlink(missing_ok=True)


def is_part(name: str) -> bool:
    """Whether a file was left half-written by a job of ours; a file of the cache may be called `notes.part`."""
    return name.startswith(".") and _PART_END.search(name) is not None


def beginning(part: Path) -> str:
    """Of the name of an unfinished file: what it shares with others of the same file."""
    return _PART_END.sub("", part.name)


def is_there(target: Path, size_bytes: int | None) -> bool:
    """Whether a file is written already; something else under its name is refused.

    Args:
        size_bytes: of the file; None where that is not known before.
    """
    if not (target.exists() or target.is_symlink()):
        return False
    if not target.is_file() or (size_bytes is not None and target.stat().st_size != size_bytes):
        raise UsageError(f"{target} is there already, and is another file; give a folder of its own")
    return True
