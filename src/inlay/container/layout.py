# SPDX-License-Identifier: Apache-2.0
"""The fixed-size records of a token file, each under a checksum (see FORMAT.md)."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from inlay.errors import CutShortError, TokenFileError

MAGIC = b"\x89INL\r\n\x1a\n"  # like PNG's: a 7-bit channel, text mode and `type` on Windows each break it visibly
END_MAGIC = b"\x89INLEND\n"
CHUNK_MARKER = b"chnk"
INDEX_MARKER = b"indx"
MAJOR, MINOR = 1, 2  # a file says the least minor version that has all it uses

MAX_HEADER_BYTES = 1 << 16
MAX_CHUNKS = 1 << 24
MAX_SLOTS = 1 << 10  # in one chunk
MAX_CELLS = 1 << 24  # in one chunk: 33 frames of 8K video are 5 million
MAX_VALUES = 1 << 28  # in one chunk, cells times channels

KEY, TIMES = 1, 2  # chunk flags

_PREFIX = struct.Struct("<8sHHI")
_CHUNK = struct.Struct("<4sIHHIIII")
_ENTRY = struct.Struct("<QIIIHH")
_INDEX = struct.Struct("<4sI")
_FOOTER = struct.Struct("<QI")
_CRC = struct.Struct("<I")

PREFIX_BYTES = _PREFIX.size
CRC_BYTES = _CRC.size
CHUNK_HEAD_BYTES = _CHUNK.size + CRC_BYTES
ENTRY_BYTES = _ENTRY.size
FOOTER_BYTES = _FOOTER.size + CRC_BYTES + len(END_MAGIC)


def seal(data: bytes) -> bytes:
    """The data with their CRC-32 behind them."""
    return data + _CRC.pack(zlib.crc32(data))


def sealed(data: bytes) -> bool:
    """Does the CRC-32 at the end fit the bytes before it?"""
    return len(data) >= CRC_BYTES and _CRC.pack(zlib.crc32(data[:-CRC_BYTES])) == data[-CRC_BYTES:]


def pack_prefix(json_bytes: int, minor: int = 0) -> bytes:
    return _PREFIX.pack(MAGIC, MAJOR, minor, json_bytes)


def unpack_prefix(data: bytes) -> tuple[str, int]:
    """(version, bytes of the JSON header that follows); refuses what is not a token file of this major version."""
    if data[: len(MAGIC)] != MAGIC:
        raise TokenFileError(f"not a token file: {_what(data)}")
    if len(data) < PREFIX_BYTES:
        raise CutShortError(f"the file ends inside its header, after {len(data)} bytes; fetch it again")
    _, major, minor, json_bytes = _PREFIX.unpack(data)
    if major != MAJOR:
        raise TokenFileError(
            f"token file of format version {major}.{minor}, this library reads {MAJOR}.x; "
            f"install the version of inlay that wrote it, or fetch the file again if it should be {MAJOR}.x"
        )
    if json_bytes > MAX_HEADER_BYTES:
        raise TokenFileError(
            f"the header promises {json_bytes:,} bytes of JSON, at most {MAX_HEADER_BYTES:,} are allowed"
        )
    return f"{major}.{minor}", json_bytes


def _what(data: bytes) -> str:
    """In words, what a file with the wrong beginning probably is."""
    if not data:
        return "the file is empty; fetch it again"
    if data.startswith((b"\x89INL\n", b"\x89INL\r\r\n", b"\x09INL", b"INL")):
        return "its first bytes look damaged by a transfer in text mode; fetch it again in binary mode"
    if data[4:8] == b"ftyp" or data.startswith((b"\x1aE\xdf\xa3", b"RIFF", b"\x00\x00\x01", b"GIF8")):
        return "it looks like a video; make tokens of it first with: inlay encode"
    if data.startswith((b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"BZh")):
        return "it looks like an archive; unpack it first"
    return f"it begins with {data[:8].hex(' ')} instead of {MAGIC.hex(' ')}; give a file made by inlay encode"


@dataclass(frozen=True, kw_only=True)
class ChunkHead:
    """What a chunk says of itself before its data."""

    number: int
    key: bool
    times: bool
    slots: int
    frames: int
    tokens: int
    mask_bytes: int
    value_bytes: int

    @property
    def time_bytes(self) -> int:
        return 8 * self.frames if self.times else 0

    @property
    def length(self) -> int:
        """All bytes of the chunk, from its marker to its checksum."""
        return CHUNK_HEAD_BYTES + self.time_bytes + self.mask_bytes + self.value_bytes + CRC_BYTES

    @property
    def flags(self) -> int:
        return KEY * self.key + TIMES * self.times

    def pack(self) -> bytes:
        sizes = (self.slots, self.frames, self.tokens, self.mask_bytes, self.value_bytes)
        return seal(_CHUNK.pack(CHUNK_MARKER, self.number, self.flags, *sizes))

    @staticmethod
    def unpack(data: bytes) -> ChunkHead | None:
        """None where there is no intact head of a chunk."""
        if len(data) != CHUNK_HEAD_BYTES or not data.startswith(CHUNK_MARKER) or not sealed(data):
            return None
        _, number, flags, slots, frames, tokens, mask_bytes, value_bytes = _CHUNK.unpack(data[: _CHUNK.size])
        if flags & ~(KEY | TIMES):
            return None
        return ChunkHead(
            number=number, key=bool(flags & KEY), times=bool(flags & TIMES), slots=slots, frames=frames, tokens=tokens,
            mask_bytes=mask_bytes, value_bytes=value_bytes,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the index: where a chunk is, and what it holds."""

    number: int
    offset: int
    length: int
    frames: int
    tokens: int
    slots: int
    flags: int

    @staticmethod
    def of(head: ChunkHead, offset: int) -> Entry:
        return Entry(
            number=head.number, offset=offset, length=head.length, frames=head.frames, tokens=head.tokens,
            slots=head.slots, flags=head.flags,
        )  # fmt: skip

    @property
    def key(self) -> bool:
        return bool(self.flags & KEY)


def pack_tail(entries: list[Entry], offset: int) -> bytes:
    """The index, which begins at `offset`, and the footer that points to it."""
    lines = [_ENTRY.pack(e.offset, e.length, e.frames, e.tokens, e.slots, e.flags) for e in entries]
    index = seal(_INDEX.pack(INDEX_MARKER, len(entries)) + b"".join(lines))
    return index + seal(_FOOTER.pack(offset, len(index))) + END_MAGIC


def unpack_footer(data: bytes) -> tuple[int, int] | None:
    """(offset, length) of the index; None where there is no intact footer."""
    if len(data) != FOOTER_BYTES or not data.endswith(END_MAGIC) or not sealed(data[: -len(END_MAGIC)]):
        return None
    offset, length = _FOOTER.unpack(data[: _FOOTER.size])
    return offset, length


def unpack_index(data: bytes, first: int, last: int) -> list[Entry] | None:
    """The entries, chunks that follow each other from byte `first` to byte `last`; None where the index is damaged."""
    if not data.startswith(INDEX_MARKER) or not sealed(data) or len(data) < _INDEX.size + CRC_BYTES:
        return None
    _, count = _INDEX.unpack(data[: _INDEX.size])
    body = data[_INDEX.size : -CRC_BYTES]
    if count * _ENTRY.size != len(body):
        return None
    entries = [
        Entry(number=i, offset=offset, length=length, frames=frames, tokens=tokens, slots=slots, flags=flags)
        for i, (offset, length, frames, tokens, slots, flags) in enumerate(_ENTRY.iter_unpack(body))
    ]
    ends = [first, *(e.offset + e.length for e in entries)]
    return entries if ends == [*(e.offset for e in entries), last] else None
