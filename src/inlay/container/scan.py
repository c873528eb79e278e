# SPDX-License-Identifier: Apache-2.0
"""Read the bytes of a token file and list its chunks: through the index, or chunk by chunk if it is damaged."""

from __future__ import annotations

import io
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from inlay.container.chunk import check_head
from inlay.container.header import FileHeader
from inlay.container.layout import (
    CHUNK_HEAD_BYTES,
    CHUNK_MARKER,
    CRC_BYTES,
    FOOTER_BYTES,
    INDEX_MARKER,
    PREFIX_BYTES,
    TIMES,
    ChunkHead,
    Entry,
    sealed,
    unpack_footer,
    unpack_index,
    unpack_prefix,
)
from inlay.errors import CutShortError, TokenFileError, UsageError

SEARCH_BLOCK = 1 << 12

Source = str | PathLike[str] | bytes | bytearray | memoryview | BinaryIO
SEARCH_BUDGET = 4  # times the file's size, and a bit: bytes that a search for chunks may read in vain


class ByteSource:
    """Random access to the bytes of a token file."""

    def __init__(self, source: Source) -> None:
        self._own = True
        if isinstance(source, str | PathLike):
            self.name = str(source)
            self._file = _open(Path(source))
        elif isinstance(source, bytes | bytearray | memoryview):
            self.name = "token file"
            self._file = io.BytesIO(source)
        elif isinstance(source, io.TextIOBase):
            raise UsageError("a token file is read from a binary file; open it with 'rb'")
        elif hasattr(source, "read"):
            self.name = str(getattr(source, "name", "token file"))
            self._own = False
            self._file = source
            self._check_open()
            self._file = source if source.seekable() else io.BytesIO(source.read())
        else:
            raise UsageError(f"a token file is a path, bytes or a binary file; got {type(source).__name__}")
        self.size = self._file.seek(0, io.SEEK_END)

    def read(self, offset: int, size: int) -> bytes:
        """The bytes from `offset`, fewer where the file ends earlier."""
        self._check_open()
        if offset >= self.size:
            return b""
        try:
            self._file.seek(offset)
            return self._file.read(max(0, min(size, self.size - offset)))
        except OSError as error:
            raise TokenFileError(f"{self.name}: cannot be read: {error.strerror or error}") from error

    def _check_open(self) -> None:
        if getattr(self._file, "closed", False):
            raise UsageError(f"{self.name}: is closed; open it again")

    def find(self, marker: bytes, start: int) -> int:
        """Where `marker` next begins, at `start` or after; -1 if nowhere."""
        while start < self.size:
            found = self.read(start, SEARCH_BLOCK + len(marker) - 1).find(marker)
            if found >= 0:
                return start + found
            start += SEARCH_BLOCK
        return -1

    def close(self) -> None:
        if self._own:
            self._file.close()


def _open(path: Path) -> BinaryIO:
    if path.is_dir():
        raise TokenFileError(f"{path} is a folder, not a token file")
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise TokenFileError(f"{path} does not exist; check the name") from error
    except OSError as error:
        raise TokenFileError(f"{path}: cannot be read: {error.strerror or error}") from error


@dataclass(kw_only=True)
class Contents:
    """The chunks that a file has, and what is wrong with it."""

    header: FileHeader
    entries: list[Entry]
    losses: list[str] = field(default_factory=list)  # tokens are missing, or bytes are too many
    notes: list[str] = field(default_factory=list)  # the index had to be rebuilt; all tokens are there


def read_header(source: ByteSource) -> tuple[FileHeader, int]:
    """(header, where the first chunk begins)."""
    version, json_bytes = unpack_prefix(source.read(0, PREFIX_BYTES))
    end = PREFIX_BYTES + json_bytes + CRC_BYTES
    data = source.read(0, end)
    if len(data) < end:
        raise CutShortError(f"the file ends inside its header, after {len(data)} of {end} bytes; fetch it again")
    if not sealed(data):
        raise TokenFileError("the header fails its checksum; fetch the file again")
    return FileHeader.unpack(data[PREFIX_BYTES:-CRC_BYTES], version=version), end


def contents(source: ByteSource) -> Contents:
    """Everything there is to know before a chunk is decoded."""
    header, first = read_header(source)
    entries = _from_index(source, header, first)
    if entries is not None:
        return Contents(header=header, entries=entries)
    found = _from_chunks(source, header, first)
    _compare(found, header, source.size)
    return found


def read_head(source: ByteSource, entry: Entry, header: FileHeader) -> ChunkHead:
    """The head of a chunk, which must say what the index says and what the header allows."""
    head = ChunkHead.unpack(source.read(entry.offset, CHUNK_HEAD_BYTES))
    if head is None:
        raise TokenFileError("has a damaged head")
    problem = check_head(head, header)
    if problem is None and Entry.of(head, entry.offset) != entry:
        problem = "is not the chunk that the index promises"
    if problem is not None:
        raise TokenFileError(problem)
    return head


def _from_index(source: ByteSource, header: FileHeader, first: int) -> list[Entry] | None:
    """None where the index is missing, damaged, or at odds with the header."""
    footer = unpack_footer(source.read(max(source.size - FOOTER_BYTES, 0), FOOTER_BYTES))
    if footer is None:
        return None
    offset, length = footer
    if offset + length + FOOTER_BYTES != source.size:
        return None
    entries = unpack_index(source.read(offset, length), first, offset)
    if not entries or (header.frames, header.chunks, header.file_bytes) != (
        sum(e.frames for e in entries),
        len(entries),
        source.size,
    ):
        return None
    return entries


def _from_chunks(source: ByteSource, header: FileHeader, first: int) -> Contents:
    """Walk from chunk to chunk; after a damaged head, look for the next intact one."""
    found = Contents(header=header, entries=[])
    at, budget = first, SEARCH_BUDGET * source.size + 256 * SEARCH_BLOCK
    while at < source.size and len(found.entries) != header.chunks and budget >= 0:
        head = ChunkHead.unpack(source.read(at, CHUNK_HEAD_BYTES))
        if head is None or not _plausible(head, found, header):
            if source.read(at, len(INDEX_MARKER)) == INDEX_MARKER:
                break
            at = source.find(CHUNK_MARKER, at + 1)
            budget -= SEARCH_BLOCK
            if at < 0:
                break
        elif at + head.length <= source.size and sealed(source.read(at, head.length)):
            found.entries.append(Entry.of(head, at))
            at += head.length
        else:
            budget -= head.length
            whole = at + head.length <= source.size
            at = at + head.length if whole else source.find(CHUNK_MARKER, at + 1)
            if at < 0:
                break
    return found


def _plausible(head: ChunkHead, found: Contents, header: FileHeader) -> bool:
    """Could this be a chunk that follows those found?"""
    after = found.entries[-1].number if found.entries else -1
    before = header.chunks if header.chunks is not None else head.number + 1
    return after < head.number < before and check_head(head, header) is None


def _compare(found: Contents, header: FileHeader, size: int) -> None:
    """Hold what was found against what the header promises."""
    numbers = [e.number for e in found.entries]
    if header.chunks is None or header.frames is None or header.file_bytes is None:
        found.losses.append(f"the file was never finished; it has {len(numbers)} intact chunks")
        return
    lost = sorted(set(range(min(header.chunks, (numbers[-1] if numbers else -1) + 2))) - set(numbers))
    promise = f"the header promises {header.file_bytes:,} bytes, the file has {size:,}"
    if len(numbers) < header.chunks:
        which = lost[0] if lost else len(numbers)
        state = "is missing or damaged" if size >= header.file_bytes else "is cut off or damaged"
        found.losses.append(f"chunk {which + 1} of {header.chunks} {state} ({len(numbers)} are intact); {promise}")
    elif sum(e.frames for e in found.entries) != header.frames:
        frames = sum(e.frames for e in found.entries)
        found.losses.append(f"the header promises {header.frames:,} frames, the chunks have {frames:,}")
    elif size > header.file_bytes:
        found.losses.append(f"{size - header.file_bytes:,} bytes follow the end; {promise}")
    else:
        found.notes.append("the index is missing or damaged; it was rebuilt from the chunks")


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """The chunks before the last key chunk of a part: there nothing carries over, so the rest can be made anew."""

    path: Path  # of the part
    header: FileHeader  # its totals are None
    entries: tuple[Entry, ...]
    end: int  # where the bytes of these chunks end

    @property
    def frames(self) -> int:
        return sum(entry.frames for entry in self.entries)

    @property
    def times(self) -> bool:
        return bool(self.entries[0].flags & TIMES)


def part_of(path: str | PathLike[str]) -> Path:
    """Where the bytes of a token file gather until it is whole."""
    place = Path(path)
    return place.with_name(f"{place.name}.part")


def unfinished(path: str | PathLike[str]) -> Unfinished | None:
    """What can be gone on from; None where there is nothing, or nothing before the last key chunk."""
    part = part_of(path)
    if not part.is_file() or part.stat().st_size == 0:
        return None
    source = ByteSource(part)
    try:
        found = contents(source)
    except CutShortError:  # killed before the first chunk
        return None
    except TokenFileError as error:
        raise UsageError(
            f"{part} is not an unfinished token file ({error}); remove it, or begin anew", about="force"
        ) from error
    finally:
        source.close()
    whole = [entry for number, entry in enumerate(found.entries) if entry.number == number]
    keys = [entry.number for entry in whole if entry.key]
    kept = tuple(whole[: keys[-1]]) if keys else ()
    if not kept:
        return None
    header = replace(found.header, frames=None, chunks=None, file_bytes=None)
    return Unfinished(path=part, header=header, entries=kept, end=kept[-1].offset + kept[-1].length)
