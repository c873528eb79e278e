# SPDX-License-Identifier: Apache-2.0
"""Read and write names below a folder or an fsspec address; what is written is whole or not there."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import IO, Any

from inlay.errors import OutputError, UsageError, check_kind, require
from inlay.files import PART, atomic, check_folder
from inlay.scale.layout import JOB, SHARDS

Place = str | PathLike[str]  # a path, or an address fsspec knows
LEFTOVERS = (f"*{PART}", "*.attempts")
LOCK = f"{JOB}/lock"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def as_text(name: str, place: Place) -> str:
    """A place as text; refuses what is none."""
    check_kind(place, (str, os.PathLike), f"{name} is a path or an address; several go into a list (.txt, one a line)")
    return str(os.fspath(place))


def check_scratch(error: OSError) -> None:
    """Raise, if it was the disk for temporary files that was full: that says nothing against the video."""
    if error.errno in _FULL:
        raise OutputError(
            f"cannot write to {tempfile.gettempdir()}: {error.strerror or error}; make room there (or set TMPDIR) and "
            "run the same command again to go on"
        ) from error


def is_address(place: str) -> bool:
    return "://" in place and not place.startswith("file://")


def filesystem(address: str) -> tuple[Any, str]:
    """The fsspec file system of a path or address, and the path in it."""
    fsspec = require("fsspec", extra="scale")
    if not is_address(address):  # a file name may hold what would be an operator in an address
        return fsspec.filesystem("file"), os.path.abspath(address.removeprefix("file://"))  # noqa: PTH100 - keeps links
    try:
        return fsspec.core.url_to_fs(address)
    except (ImportError, ValueError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(f"{address}: cannot be opened: {reason}; give a path, or an address fsspec knows") from error


@contextmanager
def open_bytes(place: str) -> Iterator[IO[bytes]]:
    """A binary file one can seek in; its file system is held while it is open, since that of an archive would close."""
    fs, path = filesystem(place)
    with fs.open(path, "rb") as file:
        yield file


def open_store(place: str) -> Store:
    return Store(place) if is_address(place) else FolderStore(place)


class Store:
    """An fsspec address. Files are made here and put there whole; an object store shows an object once it is whole."""

    def __init__(self, place: str) -> None:
        self.place = place.rstrip("/") or place
        self.fs, self.base = filesystem(self.place)

    def __str__(self) -> str:
        return self.place

    def path(self, name: str) -> str:
        return f"{self.base}/{name}"

    def prepare(self) -> None:
        """Make the folder."""
        with self.writing(self.place), contextlib.suppress(NotImplementedError):
            self.fs.makedirs(self.base, exist_ok=True)

    def clear(self) -> None:
        """Remove what an interrupted job left half-written: nothing ever is."""

    def has_files(self) -> bool:
        return bool(self.fs.isdir(self.base) and self.fs.ls(self.base, detail=False))

    def size(self, name: str) -> int | None:
        try:
            self.fs.invalidate_cache()
            return self.fs.info(self.path(name))["size"]
        except (FileNotFoundError, NotADirectoryError):  # OUT may be a file: `prepare` says so
            return None

    def read_text(self, name: str) -> str | None:
        try:
            return self.fs.cat_file(self.path(name)).decode("utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write_text(self, name: str, text: str) -> None:
        with self.written(name) as part:
            part.write_text(text, encoding="utf-8", newline="\n")

    def note(self, name: str, text: str) -> None:
        """A remark that may be lost: not brought to disk."""
        with self.writing(name):
            self.fs.pipe_file(self.path(name), text.encode())

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self.path(name))

    @contextmanager
    def written(self, name: str) -> Iterator[Path]:
        """A path to write to; it becomes `name` when the block ends well, and nothing stays if it does not."""
        with tempfile.TemporaryDirectory(prefix="inlay-") as folder, self.writing(name):
            part = Path(folder) / Path(name).name
            yield part
            self.fs.makedirs(self.path(name).rpartition("/")[0], exist_ok=True)
            self.fs.put_file(str(part), self.path(name))

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, OutputError) as error:  # the job stops, because no other video would fare better
            cause = error.__cause__ if isinstance(error, OutputError) else error
            raise OutputError(
                f"cannot write {name} in {self.place}: {getattr(cause, 'strerror', None) or error}; nothing of it was "
                "kept: see to it and run the same command again to go on"
            ) from error

    @contextmanager
    def locked(self, name: str = LOCK) -> Iterator[None]:
        """One job at a time; but object stores have no locks: two jobs write the same bytes twice, and lose nothing."""
        yield


class FolderStore(Store):
    """A local folder. What is written goes beside its name, to disk, and only then to its name."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.root = Path(place.removeprefix("file://"))

    def prepare(self) -> None:
        check_folder(self.root)
        super().prepare()

    def clear(self) -> None:
        """Remove what an interrupted job left half-written; only who holds the lock may."""
        with self.writing(self.place):
            for folder in (self.root, self.root / SHARDS, self.root / JOB):
                for pattern in LEFTOVERS:
                    for path in folder.glob(pattern):
                        path.unlink(missing_ok=True)

    @contextmanager
    def written(self, name: str) -> Iterator[Path]:
        final = self.root / name
        with self.writing(name):
            final.parent.mkdir(parents=True, exist_ok=True)
            with atomic(final, durable=True) as part:
                yield part

    @contextmanager
    def locked(self, name: str = LOCK) -> Iterator[None]:
        """One job at a time; the lock goes with the process that holds it, however that ends."""
        try:
            import fcntl
        except ImportError:  # no such locks on this system
            yield
            return
        path = self.root / name
        with self.writing(name):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("w")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(f"another job is writing to {self.place}; wait for it, or give another OUT") from error
            except OSError:  # a file system without locks
                pass
            yield
