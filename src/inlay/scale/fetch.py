# SPDX-License-Identifier: Apache-2.0
"""A source in, something that can be decoded and the hash of its bytes out; copies are gone when closed."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, cast

from inlay.errors import VideoError
from inlay.scale.sources import SourceItem
from inlay.scale.store import check_scratch, is_address
from inlay.scale.tars import open_bytes

BLOCK = 1 << 20
IN_MEMORY = 1 << 26  # bytes of a copy that stay off the disk
PATIENCE = (0.5, 2.0, 8.0)  # seconds before an address that failed is tried again


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """What `open_video` takes, and the SHA-256 of the bytes."""

    media: str | BinaryIO
    sha256: str


@contextmanager
def fetched(item: SourceItem) -> Iterator[Fetched]:
    """A local file is read where it lies; a member of a tar, or what an address leads to, is copied first."""
    if item.problem is not None:
        raise VideoError(item.problem)
    if item.offset is None and not is_address(item.address):
        yield from _local(item)
        return
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY, prefix="inlay-") as copy:
        sha256 = _copied(item, cast(IO[bytes], copy))
        copy.seek(0)
        yield Fetched(media=cast(BinaryIO, copy), sha256=sha256)


def _local(item: SourceItem) -> Iterator[Fetched]:
    path = Path(item.address)
    try:
        found = path.stat()
        if item.version and (found.st_size, str(found.st_mtime_ns)) != (item.size_bytes, item.version):
            raise VideoError("the file has changed since the job began")
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            yield Fetched(media=item.address if _is_text(item.address) else file, sha256=sha256)
    except OSError as error:
        raise VideoError(f"cannot be read: {error.strerror or error}") from error


def _copied(item: SourceItem, copy: IO[bytes]) -> str:
    for pause in (*PATIENCE, None):
        copy.seek(0)
        copy.truncate()
        try:
            return _copy(item, copy)
        except OSError as error:
            check_scratch(error)
            if pause is None or isinstance(error, FileNotFoundError) or not is_address(item.address):
                raise VideoError(f"cannot be read: {error}") from error
            time.sleep(pause)
    raise AssertionError("the last try returns or raises")


def _copy(item: SourceItem, copy: IO[bytes]) -> str:
    digest, left = hashlib.sha256(), item.size_bytes if item.offset is not None else None
    with open_bytes(item.address) as file:
        file.seek(item.offset or 0)
        while left is None or left > 0:
            block = file.read(BLOCK if left is None else min(BLOCK, left))
            if not block:
                break
            digest.update(block)
            copy.write(block)
            left = None if left is None else left - len(block)
    if left:
        raise VideoError(f"its tar ends {left:,} bytes before it does")
    return digest.hexdigest()


def _is_text(path: str) -> bool:
    """Names that are not valid text cannot be handed to a video library."""
    try:
        return os.fsencode(path).decode("utf-8") == path
    except UnicodeDecodeError:
        return False
