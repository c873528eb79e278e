# SPDX-License-Identifier: Apache-2.0
"""Take a token file apart, change what it says, and make its checksums right again: what no accident would do."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass, field
from typing import Any

from inlay.container.layout import (
    CHUNK_HEAD_BYTES,
    CHUNK_MARKER,
    CRC_BYTES,
    END_MAGIC,
    INDEX_MARKER,
    MINOR,
    PREFIX_BYTES,
    ChunkHead,
    pack_prefix,
    seal,
)

HEAD = struct.Struct("<4sIHHIIII")
ENTRY = struct.Struct("<QIIIHH")
SIZES = (0, 1, 2, 3, 5, 8, 33, 255, 256, 1023, 1024, 4095, 65535, 65536, 2**24, 2**31, 2**32 - 1)
WHOLE = (-1, 0, 1, 2, 3, 4, 7, 8, 15, 16, 64, 256, 257, 4096, 4097, 65535, 65536, 65537, 2**31, 2**53, 2**60, 10**30)
ODD: tuple[Any, ...] = (None, True, False, 0.5, -1.5, 1e308, "", "1", "x" * 201, "\x1b[2J", "\ud800", [], {}, [1, 2, 3])
RATES = (
    "25/1",
    "30000/1001",
    "1/3600",
    "10000/1",
    "1/3601",
    "10001/1",
    "0/1",
    "25/0",
    "9" * 18 + "/1",
    "1/" + "9" * 18,
)
TEXTS = ("mini", "taesd", "ltx-video", "os:abort", "../x", "golden", "clips", "dual-cache", "stateful", "lit", "hold")
STEP_WORDS = ("0000", "0001", "0080", "7180", "7200", "7f80", "7fc0", "bf80", "3F80", "zzzz", "٣٣٣٣", "3f8")
TIMES = (0.0, -1.0, 1e9, 1e10, float("nan"), float("inf"), 19_999.0, 20_001.0)


@dataclass(kw_only=True)
class Chunk:
    """A chunk in its parts; the head says what `numbers` says, true or not."""

    numbers: list[int]  # number, flags, slots, frames, tokens, mask bytes, value bytes
    body: bytes

    def pack(self) -> bytes:
        number, flags, slots, frames, tokens, mask, values = self.numbers
        sizes = (number & 0xFFFFFFFF, flags & 0xFFFF, slots & 0xFFFF, *(n & 0xFFFFFFFF for n in (frames, tokens)))
        head = HEAD.pack(CHUNK_MARKER, *sizes, mask & 0xFFFFFFFF, values & 0xFFFFFFFF)
        return seal(seal(head) + self.body)


@dataclass(kw_only=True)
class Parts:
    """A token file in its parts."""

    header: dict[str, Any]
    chunks: list[Chunk]
    lies: dict[int, list[int]] = field(default_factory=dict)  # chunk -> what the index says of it instead

    @staticmethod
    def of(data: bytes) -> Parts:
        (length,) = struct.unpack_from("<I", data, 12)
        header = json.loads(data[PREFIX_BYTES : PREFIX_BYTES + length])
        at, chunks = PREFIX_BYTES + length + CRC_BYTES, []
        while (head := ChunkHead.unpack(data[at : at + CHUNK_HEAD_BYTES])) is not None:
            sizes = [head.slots, head.frames, head.tokens, head.mask_bytes, head.value_bytes]
            body = data[at + CHUNK_HEAD_BYTES : at + head.length - CRC_BYTES]
            chunks.append(Chunk(numbers=[head.number, head.flags, *sizes], body=body))
            at += head.length
        return Parts(header=header, chunks=chunks)

    def pack(self, *, totals: bool = True) -> bytes:
        """The bytes, with every checksum right; `totals`: with the header's sums right as well."""
        chunks = [chunk.pack() for chunk in self.chunks]
        header = dict(self.header)
        if totals:
            header |= {"chunks": len(chunks), "frames": sum(c.numbers[3] for c in self.chunks), "file_bytes": 10**9}
        size = len(_json(header))
        tail = CRC_BYTES + len(INDEX_MARKER) + 4 + ENTRY.size * len(chunks) + 16 + len(END_MAGIC)
        if totals:
            header["file_bytes"] = PREFIX_BYTES + size + CRC_BYTES + sum(map(len, chunks)) + tail
        text = _json(header).ljust(size)
        start = seal(pack_prefix(len(text), MINOR * ("steps" in header)) + text)
        at, lines = len(start), []
        for i, (chunk, data) in enumerate(zip(self.chunks, chunks, strict=True)):
            flags, slots, frames, tokens = self.lies.get(i, chunk.numbers[1:5])
            lines.append(
                ENTRY.pack(at, len(data), *(n & 0xFFFFFFFF for n in (frames, tokens)), slots & 0xFFFF, flags & 0xFFFF)
            )
            at += len(data)
        index = seal(INDEX_MARKER + struct.pack("<I", len(chunks)) + b"".join(lines))
        return start + b"".join(chunks) + index + seal(struct.pack("<QI", at, len(index))) + END_MAGIC


def _json(header: dict[str, Any]) -> bytes:
    return json.dumps(header, separators=(",", ":")).encode()


def forged(data: bytes, rng: random.Random) -> bytes:
    """The file with one to four things changed, and every checksum right."""
    parts = Parts.of(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice(FORGERIES)(parts, rng)
    return parts.pack(totals=rng.random() < 0.9)


def forge_field(parts: Parts, rng: random.Random) -> None:
    name = rng.choice(list(parts.header))
    choices: tuple[Any, ...] = rng.choice((WHOLE, ODD, TEXTS, RATES))
    parts.header[name] = rng.choice(choices)
    if rng.random() < 0.05:
        del parts.header[name]


def forge_grid(parts: Parts, rng: random.Random) -> None:
    """Another size, whose grid fits: the promise is consistent."""
    stride = rng.choice((1, 8, 8, 8, 256))
    rows, columns = (rng.choice((1, 2, 3, 9) if rng.random() < 0.97 else (100, 1000, 4096)) for _ in range(2))
    parts.header |= {
        "grid": [rows, columns],
        "height": rows * stride,
        "width": columns * stride,
        "space_stride": stride,
    }


def forge_length(parts: Parts, rng: random.Random) -> None:
    """Another number of slots, with the frames that they make."""
    chunk, stride = rng.choice(parts.chunks), parts.header.get("time_stride")
    if type(stride) is int:
        chunk.numbers[2] = rng.choice((1, 2, 3, 9) if rng.random() < 0.99 else (100, 1024))
        chunk.numbers[3] = 1 + (chunk.numbers[2] - 1) * stride


def forge_tokens(parts: Parts, rng: random.Random) -> None:
    """No tokens at all, or as many as the cells."""
    chunk, grid = rng.choice(parts.chunks), parts.header.get("grid")
    if isinstance(grid, list) and len(grid) == 2 and all(type(n) is int for n in grid):
        chunk.numbers[4] = rng.choice((0, chunk.numbers[2] * grid[0] * grid[1]))
        if chunk.numbers[4] == 0:
            chunk.body, chunk.numbers[6] = chunk.body[: len(chunk.body) - chunk.numbers[6]], 0


def forge_head(parts: Parts, rng: random.Random) -> None:
    rng.choice(parts.chunks).numbers[rng.randrange(7)] = rng.choice((*SIZES, rng.randrange(64)))


def forge_body(parts: Parts, rng: random.Random) -> None:
    chunk = rng.choice(parts.chunks)
    body = bytearray(chunk.body)
    for _ in range(rng.choice((1, 2, 8, 32))):
        if body:
            body[rng.randrange(len(body))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    chunk.body = bytes(body)


def forge_times(parts: Parts, rng: random.Random) -> None:
    """Presentation times, of a chunk that had none too."""
    chunk = rng.choice(parts.chunks)
    frames = chunk.numbers[3]
    if not 0 < frames < 4096:
        return
    times = [k / 25 for k in range(frames)]
    times[rng.randrange(frames)] = rng.choice(TIMES)
    had = 8 * frames if chunk.numbers[1] & 2 else 0
    chunk.body, chunk.numbers[1] = struct.pack(f"<{frames}d", *times) + chunk.body[had:], chunk.numbers[1] | 2


def forge_order(parts: Parts, rng: random.Random) -> None:
    """Chunks twice, away, or in another order; numbered anew or not."""
    kind = rng.randrange(4)
    if kind == 0:
        parts.chunks.append(rng.choice(parts.chunks))
    elif kind == 1 and len(parts.chunks) > 1:
        parts.chunks.pop(rng.randrange(len(parts.chunks)))
    elif kind == 2:
        rng.shuffle(parts.chunks)
    else:
        parts.chunks = [Chunk(numbers=list(c.numbers), body=c.body) for c in parts.chunks * rng.choice((2, 8))]
    if rng.random() < 0.8:
        parts.chunks = [Chunk(numbers=[i, *c.numbers[1:]], body=c.body) for i, c in enumerate(parts.chunks)]


def forge_index(parts: Parts, rng: random.Random) -> None:
    """An index that says something else than the chunks."""
    i = rng.randrange(len(parts.chunks))
    parts.lies[i] = list(parts.chunks[i].numbers[1:5])
    parts.lies[i][rng.randrange(4)] = rng.choice(SIZES)


def forge_steps(parts: Parts, rng: random.Random) -> None:
    """Steps where there were none, too many or too few of them, out of their range, not hex; a place beside them."""
    channels = parts.header.get("channels")
    count = channels if type(channels) is int and 0 < channels < 4096 and rng.random() < 0.8 else rng.randrange(40)
    words = [
        rng.choice(STEP_WORDS) if rng.random() < 0.1 else f"{rng.randrange(0x3000, 0x4800):04x}" for _ in range(count)
    ]
    parts.header["steps"] = "".join(words)
    if rng.random() < 0.5:
        parts.header["step"] = rng.choice((0, 1, 2.5, 1e6, 1e7, -1, "2", None, True))
    if rng.random() < 0.2:
        parts.header["precision"] = rng.choice(("q8", "fp16"))


def forge_scale(parts: Parts, rng: random.Random) -> None:
    """Another size of the encoded picture, with a video that fits it or not; other key slots."""
    parts.header["scale"] = rng.choice(("1", "3/4", "1/2", "1/1", "2", "1/0", 1, 0.5, None, "9" * 300))
    if rng.random() < 0.5:
        parts.header["key_slots"] = rng.choice(("whole", "thin", "thick", "", True, None, ["thin"]))
    for side in ("width", "height"):
        if type(parts.header.get(side)) is int and rng.random() < 0.5:
            parts.header[side] = max(1, int(parts.header[side] * rng.choice((0.5, 0.75, 4 / 3, 2))))


FORGERIES = (
    forge_field,
    forge_scale,
    forge_steps,
    forge_grid,
    forge_length,
    forge_tokens,
    forge_head,
    forge_body,
    forge_body,
    forge_times,
    forge_order,
    forge_index,
)
