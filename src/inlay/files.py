# SPDX-License-Identifier: Apache-2.0
"""Write files whole or not at all: under a name beside the final one, then renamed; and only where a file may stand."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from inlay.errors import OutputError, UsageError

PART = ".part"  # how the names of unfinished files end; what a killed process left is found by it
SOURCE = ".source"  # after PART: what an unfinished token file was made from
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # how a system says that there is no room
CUE_BYTES = 200  # of a final name in that of its part: with the rest no more than any file system takes
KINDS = {  # what may stand where a file was expected -> what people call it
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def portable_name(text: str) -> str:
    """A name for a file, made from a name of something else, that Windows takes too: no colon, no separators.

    >>> portable_name("module:Class")
    'module-Class'
    """
    return re.sub(r'[<>:"/\\|?*\x00-\x1f]+', "-", text).rstrip(". ") or "unnamed"


def beside(folders: Sequence[Path], name: str, ending: str) -> Iterator[Path]:
    """Where a file that goes with a backbone may lie: under its name, or where that is a path or has a colon, under
    what a file can be called.

    >>> [str(p) for p in beside([Path("w")], "module:Class", "lit.safetensors")]
    ['w/module:Class.lit.safetensors', 'w/module-Class.lit.safetensors']
    """
    for folder in folders:
        for stem in dict.fromkeys((name, portable_name(Path(name).name))):
            yield folder / f"{stem}.{ending}"


def kind_of(path: Path) -> str | None:
    """What stands at a path, links followed, if it is not a regular file; None for a file, and where nothing stands.

    >>> kind_of(Path("/"))
    'a folder'
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return None
    return None if stat.S_ISREG(mode) else KINDS.get(stat.S_IFMT(mode), "no regular file")


def too_long(path: str | os.PathLike[str]) -> bool:
    """Whether the system takes no such name for its length.

    >>> too_long("a" * 10_000)
    True
    """
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno == errno.ENAMETOOLONG
    except ValueError:
        return False
    return False


def check_length(path: str | os.PathLike[str], *more: str) -> None:
    """Of a result: its name, and what its neighbours while it is made add to it, can be taken by the system."""
    if any(too_long(f"{os.fspath(path)}{end}") for end in ("", *more)):
        raise OutputError(f"{os.fspath(path)}: the name is too long; give a shorter one")


def check_output(
    path: str | os.PathLike[str], *, what: str = "a file", suffixes: tuple[str, ...] = (), force: bool = False
) -> Path:
    """The path of a result, or the reason why none can be written there; asked before any work is done.

    Args:
        what: the result, as errors call it.
        suffixes: how its name may end, in small letters; any by default.
        force: replace a file that is there. Nothing else is ever replaced.
    """
    final = Path(path)
    if not os.fspath(path):
        raise OutputError("the name of the output is empty; give the name of a file")
    check_length(final)
    if final.is_dir():
        raise OutputError(f"{final}: is a folder; give the name of a file")
    if suffixes and final.suffix.lower() not in suffixes:
        found = f"got {final.suffix!r}" if final.suffix else "it has none"
        raise UsageError(f"{final}: the name of {what} ends in {', '.join(suffixes)}; {found}")
    if not final.parent.is_dir():
        raise OutputError(f"{final}: the folder {final.parent} does not exist; make it first")
    if (kind := kind_of(final)) is not None:
        raise OutputError(f"{final}: is {kind}, and only files are written; give another name")
    if final.is_symlink() and not final.exists():
        raise OutputError(f"{final}: is a link to nothing; remove it, or give another name")
    if final.exists() and not force:
        raise UsageError(f"{final}: exists already; overwrite it, or give another name", about="force")
    if not os.access(final.parent, os.W_OK | os.X_OK):
        raise OutputError(f"{final}: the folder {final.parent} may not be written; check its permissions")
    return final


def check_part(path: Path) -> None:
    """Of an unfinished file whose name others can know: nothing is written through a link, nor into a device."""
    kind = "a link" if path.is_symlink() else kind_of(path)
    if kind is not None:
        raise OutputError(f"{path}: is {kind}, and unfinished results go there; remove it")


def open_part(path: Path, mode: str = "wb") -> BinaryIO:
    """Open an unfinished file that `check_part` passes; nobody can put a link there in between."""
    check_part(path)

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)

    with writing(path):
        return open(path, mode, opener=opener)  # type: ignore[return-value]


def part_beside(path: str | os.PathLike[str]) -> Path:
    """Name a hidden neighbour that no other writer uses."""
    final = Path(path)
    cue = os.fsencode(final.name)[:CUE_BYTES].decode(errors="ignore")
    return final.with_name(f".{cue}.{secrets.token_hex(6)}{PART}")


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say of a failed write what could not be written, and why."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{os.fspath(path)}: cannot be written: {error.strerror or error}") from error


@contextmanager
def using_scratch() -> Iterator[None]:
    """Say of a temporary file that cannot be written which folder has no room."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"the temporary folder {scratch_folder()}: cannot be written: {error.strerror or error}; make room there, "
            "or set TMPDIR to another"
        ) from error


def scratch_folder() -> str:
    """Where temporary files go; where they should, if they cannot."""
    try:
        return tempfile.gettempdir()
    except OSError:  # what it raises where there is no room for one
        return os.environ.get("TMPDIR", "of the system")


@contextmanager
def atomic(path: str | os.PathLike[str], *, durable: bool = False) -> Iterator[Path]:
    """Give a place to write to; it becomes `path` when the block ends well, and nothing stays if it does not.

    Args:
        path: the final name, in a folder that exists; a file that stands there is replaced.
        durable: bring bytes and name to the disk, so that they survive a power cut as well as a kill.
    """
    final, part = Path(path), part_beside(path)
    try:
        with writing(final):
            yield part
            if durable:
                _to_disk(part)
            if (kind := kind_of(final)) is not None:
                raise OutputError(f"{final}: is {kind}, and only files are written; give another name")
            part.replace(final)
            if durable:
                _to_disk(final.parent)
    finally:
        part.unlink(missing_ok=True)


def write_atomic(path: str | os.PathLike[str], data: bytes, *, durable: bool = False) -> None:
    """Write a file whole or not at all."""
    with atomic(path, durable=durable) as part:
        part.write_bytes(data)


def check_folder(folder: Path, *, about: str | tuple[str, ...] = ()) -> None:
    """Refuse a place for a folder where something else stands."""
    check_length(folder)
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder}: is {kind_of(folder) or 'a file'}; give the name of a folder", about=about)


@contextmanager
def made_folder(path: str | os.PathLike[str], *, notes: tuple[str, ...] = ()) -> Iterator[Path]:
    """A folder for results, made if need be; one made here goes again if the block fails and leaves no result in it.

    Args:
        notes: files in it that are no results.
    """
    folder = Path(path)
    check_folder(folder)
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    except BaseException:
        if new and {place.name for place in folder.glob("*")} <= set(notes):
            for name in notes:
                (folder / name).unlink(missing_ok=True)
        for place in new:
            with suppress(OSError):  # something is in it
                place.rmdir()
        raise


def _to_disk(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows has no handle of a folder
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
