# SPDX-License-Identifier: Apache-2.0
"""Read files and folders at a local path or an address alike."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from inlay.errors import InlayError, TokenFileError, UsageError, require
from inlay.scale.store import filesystem

_CURE = "see that it exists and can be reached"


def join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


def exists(place: str) -> bool:
    with _reached(place) as (fs, path):
        return bool(fs.exists(path))


def is_folder(place: str) -> bool:
    with _reached(place) as (fs, path):
        return bool(fs.isdir(path))


def find(folder: str, suffixes: tuple[str, ...]) -> list[str]:
    """The files below a folder with one of these endings, sorted."""
    with _reached(folder) as (fs, path):
        return sorted(join(folder, name[len(path) :].lstrip("/")) for name in fs.find(path) if name.endswith(suffixes))


def read(place: str, offset: int = 0, size: int | None = None) -> bytes:
    """The bytes from `offset` on, all or `size` of them; of a remote file only these are fetched."""
    with _reached(place) as (fs, path):
        return bytes(fs.cat_file(path, start=offset, end=None if size is None else offset + size))


@contextmanager
def opened(place: str) -> Iterator[BinaryIO]:
    """A binary file one can seek in."""
    with _reached(place) as (fs, path), fs.open(path, "rb") as file:
        yield file


@contextmanager
def parquet(place: str) -> Iterator[Any]:
    """An open `pyarrow.parquet.ParquetFile`."""
    pq, arrow = require("pyarrow.parquet", extra="scale"), require("pyarrow", extra="scale")
    try:
        with opened(place) as file:
            yield pq.ParquetFile(file)
    except arrow.ArrowException as error:
        raise TokenFileError(f"{place} is not a whole Parquet file ({error}); fetch it again") from error


def as_file(data: bytes, name: str) -> BinaryIO:
    """Bytes as a file with a name, so that errors can say which."""
    file = io.BytesIO(data)
    file.name = name
    return file


@contextmanager
def _reached(place: str) -> Iterator[tuple[Any, str]]:
    """The file system of a place and the path in it; whatever that may raise, as one line."""
    try:
        yield filesystem(place)
    except InlayError:
        raise
    except FileNotFoundError as error:
        raise UsageError(f"{place} does not exist; {_CURE}") from error
    except OSError as error:
        raise TokenFileError(f"{place} cannot be read: {error.strerror or error}; {_CURE}") from error
