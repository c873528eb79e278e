# SPDX-License-Identifier: Apache-2.0
"""Write files whole or not at all: under a name beside the final one, then renamed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PART = ".part"  # how the names of unfinished files end; what a killed process left is found by it


def part_beside(path: str | os.PathLike[str]) -> Path:
    """Name a hidden neighbour that no other writer uses."""
    final = Path(path)
    return final.with_name(f".{final.name}.{secrets.token_hex(6)}{PART}")


@contextmanager
def atomic(path: str | os.PathLike[str], *, durable: bool = False) -> Iterator[Path]:
    """Give a place to write to; it becomes `path` when the block ends well, and nothing stays if it does not.

    Args:
        path: the final name, in a folder that exists; what stands there is replaced.
        durable: bring bytes and name to the disk, so that they survive a power cut as well as a kill.
    """
    final, part = Path(path), part_beside(path)
    try:
        yield part
        if durable:
            _to_disk(part)
        part.replace(final)
        if durable:
            _to_disk(final.parent)
    finally:
        part.unlink(missing_ok=True)


def write_atomic(path: str | os.PathLike[str], data: bytes, *, durable: bool = False) -> None:
    """Write a file whole or not at all."""
    with atomic(path, durable=durable) as part:
        part.write_bytes(data)


def _to_disk(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows has no handle of a folder
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
