# SPDX-License-Identifier: Apache-2.0
"""FORMAT.md read to the letter: a plain decoder, cell by cell, without numpy's or the library's help, as the oracle."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace
from functools import cache
from itertools import product
from math import isqrt

import pytest
import torch

from inlay.container import as_stored, to_bytes
from tests.units.test_container import PlainDecoder, make_tokens

OWN = [(0, -1), (-1, 0), (-1, 1), (-1, -1)]
BEFORE = [(0, 0), (0, -1), (-1, 0), (-1, 1), (-1, -1), (0, 1), (1, 0)]
LEVELS = [4, 6, 8, 10, 12, 14, 16, 19, 22, 26, 32]

Cell = tuple[int, int, int]


def wave(cell: Cell) -> int:
    t, y, x = cell
    return x + 2 * y + 4 * t


def waves(cells: list[Cell]) -> list[list[Cell]]:
    return [[c for c in sorted(cells) if wave(c) == n] for n in sorted({wave(c) for c in cells})]


def plain_mask(data: bytes, shape: Cell) -> set[Cell]:
    (full,) = struct.unpack_from("<H", data)
    T, H, W = shape
    kept = set(product(range(full), range(H), range(W)))
    coder, seen = PlainDecoder(data[2:]), {}
    for cells in waves(list(product(range(full, T), range(H), range(W)))):
        learnt = []
        for t, y, x in cells:
            near = ((t, y, x - 1) in kept) + ((t, y - 1, x) in kept)
            diagonal = ((t, y - 1, x - 1) in kept) + ((t, y - 1, x + 1) in kept)
            ahead = sum((t - 1, y + dy, x + dx) in kept for dy, dx in ((0, 1), (1, -1), (1, 0), (1, 1)))
            context = ((near * 3 + diagonal) * 2 + ((t - 1, y, x) in kept)) * 5 + ahead
            n0, n1 = seen.get(context, (0, 0))
            one = 1 + (2**24 - 2) * (2 * n1 + 1) // (2 * n0 + 2 * n1 + 2)
            learnt.append(((t, y, x), context, coder.symbol([2**24 - one, one])))
        for cell, context, bit in learnt:
            n0, n1 = seen.get(context, (0, 0))
            seen[context] = (n0 + 1 - bit, n1 + bit)
            kept |= {cell} if bit else set()
    return kept


def square(table: int) -> int:
    return (2 + table % 2) << (table // 2)


@cache
def plain_table(table: int) -> list[int]:
    a = square(table)
    r = 8 + isqrt(a)
    w = [(a**3 << 64) // (a + 16 * i * i) ** 3 for i in [*range(-r, r + 1), r]]
    whole = sum(w)
    row = [1 + (2**24 - 2 * r - 2) * each // whole for each in w]
    row[r] += 2**24 - sum(row)
    return row


class PlainQ8:
    """The q8 section of FORMAT.md, number by number."""

    def __init__(self, data: bytes, kept: set[Cell], channels: int) -> None:
        self.kept, self.C = kept, channels
        sets, escapes = struct.unpack_from("<II", data)
        sizes = f"<{channels}H{channels}h{4 * sets}b{11 * sets}b{2 * channels}B13b{escapes}i"
        fields = list(struct.unpack_from(sizes, data, 8))
        take = lambda n: [fields.pop(0) for _ in range(n)]  # noqa: E731
        self.steps = [struct.unpack("<f", struct.pack("<I", s << 16))[0] for s in take(channels)]
        self.centres = take(channels)
        weights = [take(4 * sets), take(11 * sets)]
        self.weight = lambda mode, f, c: weights[mode][f * sets + (c if sets > 1 else 0)]
        self.base, self.shift, self.escapes = take(2 * channels), take(13), take(escapes)
        self.coder = PlainDecoder(data[8 + struct.calcsize(sizes) :])
        self.v: dict[Cell, list[int]] = {}
        self.energy: dict[Cell, list[int]] = {}

    def last(self, t: int, y: int, x: int) -> Cell | None:
        return next(((s, y, x) for s in range(t, -1, -1) if (s, y, x) in self.kept), None)

    def mode(self, cell: Cell) -> int:
        return int(self.last(cell[0] - 1, *cell[1:]) is not None)

    def guess(self, cell: Cell, c: int) -> int:
        t, y, x = cell
        around = [self.last(t, y + dy, x + dx) for dy, dx in OWN] + [
            self.last(t - 1, y + dy, x + dx) for dy, dx in BEFORE
        ]
        mode = self.mode(cell)
        total = sum(self.weight(mode, f, c) * self.v[n][c] for f, n in enumerate(around[: (4, 11)[mode]]) if n)
        return max(-(2**23), min(2**23, (total + 32) >> 6))

    def table(self, cell: Cell, c: int) -> int:
        t, y, x = cell
        around = [n if (n := (t, y + dy, x + dx)) in self.kept else None for dy, dx in OWN] + [self.last(t - 1, y, x)]
        there = [(w, self.energy[n]) for w, n in zip((2, 2, 1, 1, 2), around, strict=True) if n]
        context = 0
        if there:
            own = sum(w * e[c] for w, e in there)
            everyone = sum(w * sum(e) for w, e in there)
            mean = (3 * self.C * own + 5 * everyone) // (8 * self.C * sum(w for w, _ in there))
            context = 1 + sum(level <= mean for level in LEVELS)
        return max(0, min(43, self.base[self.mode(cell) * self.C + c] + self.shift[context]))

    def decode(self) -> dict[Cell, list[float]]:
        for cells in waves(list(self.kept)):
            numbers = [(cell, c) for cell in cells for c in range(self.C)]
            tables = {n: self.table(*n) for n in numbers}
            symbols = {n: self.coder.symbol(plain_table(tables[n])) for n in sorted(numbers, key=tables.__getitem__)}
            for cell, c in numbers:
                r = 8 + isqrt(square(tables[cell, c]))
                residual = symbols[cell, c] - r if symbols[cell, c] <= 2 * r else self.escapes.pop(0)
                gain = isqrt((20480 << 32) // square(self.base[self.mode(cell) * self.C + c]))
                self.energy.setdefault(cell, []).append(min(255, abs(residual) * gain >> 16))
                self.v.setdefault(cell, []).append(self.guess(cell, c) + residual)
        assert not self.escapes
        both = list(zip(self.centres, self.steps, strict=True))
        return {n: [(v + m) * s for v, (m, s) in zip(self.v[n], both, strict=True)] for n in sorted(self.kept)}


@pytest.mark.parametrize(("seed", "channels", "outliers"), [(0, 3, False), (1, 2, True), (2, 1, False)])
def test_a_file_decodes_by_the_letter(seed: int, channels: int, outliers: bool) -> None:
    tokens = make_tokens(4, 3, 5, channels=channels, seed=seed)
    tokens = replace(tokens, recipe=replace(tokens.recipe, steps=(0.0625,) * channels))
    if outliers:
        tokens.values[7] += 900
    data = to_bytes(tokens)
    (length,) = struct.unpack_from("<I", data, 12)
    header = json.loads(data[16 : 16 + length])
    assert zlib.crc32(data[: 16 + length]) == struct.unpack_from("<I", data, 16 + length)[0]
    at = 20 + length
    marker, _, flags, slots, frames, count, mask_bytes, value_bytes, _ = struct.unpack_from("<4sIHHIIIII", data, at)
    assert (marker, flags, slots, frames, count) == (b"chnk", 1, 4, 13, len(tokens))
    at += 32
    kept = plain_mask(data[at : at + mask_bytes], (slots, *header["grid"]))
    assert sorted(kept) == [tuple(p) for p in tokens.positions.tolist()]
    section = data[at + mask_bytes : at + mask_bytes + value_bytes]
    values = PlainQ8(section, kept, header["channels"]).decode()
    assert torch.equal(torch.tensor(list(values.values())), as_stored(tokens).values)
    assert (struct.unpack_from("<I", section, 4)[0] > 0) == outliers
