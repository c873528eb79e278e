# SPDX-License-Identifier: Apache-2.0
"""A local path or an address in, bytes and names out: the only place that knows the difference between the two."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from inlay.errors import InlayError, MissingError, TokenFileError, UsageError, require

Place = str | PathLike[str]
_CURE = "see that it exists and can be reached"


def is_remote(place: str) -> bool:
    return "://" in place


def join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}" if is_remote(folder) else str(Path(folder) / name)


def exists(place: str) -> bool:
    with _explained(place):
        if not is_remote(place):
            return Path(place).exists()
        fs, path = _remote(place)
        return bool(fs.exists(path))


def is_folder(place: str) -> bool:
    with _explained(place):
        if not is_remote(place):
            return Path(place).is_dir()
        fs, path = _remote(place)
        return bool(fs.isdir(path))


def find(folder: str, suffixes: tuple[str, ...]) -> list[str]:
    """The files below a folder with one of these endings, sorted."""
    with _explained(folder):
        if not is_remote(folder):
            return sorted(str(p) for p in Path(folder).rglob("*") if p.name.endswith(suffixes) and p.is_file())
        fs, path = _remote(folder)
        return sorted(fs.unstrip_protocol(name) for name in fs.find(path) if name.endswith(suffixes))


def read(place: str, offset: int = 0, size: int | None = None) -> bytes:
    """The bytes from `offset` on, all or `size` of them; of a remote file only these are fetched."""
    with _explained(place):
        if not is_remote(place):
            with Path(place).open("rb") as file:
                file.seek(offset)
                return file.read(-1 if size is None else size)
        fs, path = _remote(place)
        return bytes(fs.cat_file(path, start=offset, end=None if size is None else offset + size))


@contextmanager
def opened(place: str) -> Iterator[BinaryIO]:
    """A binary file one can seek in."""
    with _explained(place):
        if not is_remote(place):
            with Path(place).open("rb") as file:
                yield file
        else:
            fs, path = _remote(place)
            with fs.open(path, "rb") as file:
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


def _remote(place: str) -> tuple[Any, str]:
    fsspec = require("fsspec", extra="scale")
    try:
        return fsspec.core.url_to_fs(place)
    except ValueError as error:
        raise UsageError(f"{place}: {error}; give a path, or an address fsspec knows") from error
    except ImportError as error:
        raise MissingError(f"{place}: {error}") from error


@contextmanager
def _explained(place: str) -> Iterator[None]:
    """Whatever a file system may raise, as one line; what is ours already passes."""
    try:
        yield
    except InlayError:
        raise
    except FileNotFoundError as error:
        raise UsageError(f"{place} does not exist; {_CURE}") from error
    except OSError as error:
        raise TokenFileError(f"{place} cannot be read: {error.strerror or error}; {_CURE}") from error
