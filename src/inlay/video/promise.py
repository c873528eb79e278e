# SPDX-License-Identifier: Apache-2.0
"""The size that a file states in its first bytes, by which a copy that was cut short is known."""

from __future__ import annotations

from collections.abc import Callable

Peek = Callable[[int, int], bytes]  # (offset, size) -> at most size bytes, fewer at the end

_MP4_FIRST = {b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp", b"pnot"}
_EBML, _SEGMENT = bytes.fromhex("1A45DFA3"), bytes.fromhex("18538067")
_MOST_BOXES = 100_000  # a fragmented mp4 of a day; bounds the walk over a hostile file


def promised_bytes(peek: Peek) -> int | None:
    """How long the file must be by its own account; None where the format does not say."""
    head = peek(0, 12)
    if head[4:8] in _MP4_FIRST:
        return max((end for _, end in _boxes(peek)), default=None)
    if head[:4] == _EBML:
        return _matroska(peek)
    if head[:4] == b"RIFF":
        size = int.from_bytes(head[4:8], "little")
        return size + 8 if 0 < size < 0xFFFFFFFF - 8 else None  # a recorder that never came back leaves 0 or all ones
    return None


def needs_seeking(head: bytes) -> bool:
    """An mp4 with its samples before its table of contents."""
    if head[4:8] not in _MP4_FIRST:
        return False
    kinds = [kind for kind, _ in _boxes(lambda offset, size: head[offset : offset + size])]
    return b"mdat" in kinds and not {b"moov", b"moof"} & set(kinds[: kinds.index(b"mdat")])


def _boxes(peek: Peek) -> list[tuple[bytes, int]]:
    """(kind, end) of the top-level boxes, as far as their headers can be seen."""
    found: list[tuple[bytes, int]] = []
    offset = 0
    while len(found) < _MOST_BOXES:
        header = peek(offset, 16)
        size, least = int.from_bytes(header[:4], "big"), 8
        if size == 1:
            size, least = int.from_bytes(header[8:16], "big"), 16
        if len(header) < 8 or not header[4:8].isalnum():  # rubbish after the last box promises nothing
            return found
        if size < least:  # 0: the box lasts to the end of the file, wherever that is
            return [*found, (header[4:8], offset + len(header))]
        offset += size
        found.append((header[4:8], offset))
    return found


def _matroska(peek: Peek) -> int | None:
    size, length = _ebml_size(peek(4, 8))
    if size is None:
        return None
    offset = 4 + length + size
    if peek(offset, 4) != _SEGMENT:
        return None
    size, length = _ebml_size(peek(offset + 4, 8))
    return None if size is None else offset + 4 + length + size


def _ebml_size(data: bytes) -> tuple[int | None, int]:
    """(value, bytes used) of a variable-length integer; None if unknown or cut."""
    if not data or data[0] == 0:
        return None, 0
    length = 9 - data[0].bit_length()
    if len(data) < length:
        return None, 0
    ones = (1 << (7 * length)) - 1
    value = int.from_bytes(data[:length], "big") & ones
    return (None if value == ones else value), length
