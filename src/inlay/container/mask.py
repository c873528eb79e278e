# SPDX-License-Identifier: Apache-2.0
"""A keep mask [T, H, W] as bytes: one adaptive bit a cell, coded wave by wave.

Cell (t, y, x) belongs to wave x + 2y + 4t. Its neighbours to the left and above in its own slot, and all of those
in the slot before, lie in earlier waves: so a whole wave is coded at once, and nothing is lost against raster order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from inlay.container.coder import TOTAL, SymbolDecoder, SymbolEncoder
from inlay.errors import TokenFileError

_FULL = struct.Struct("<H")  # leading slots with every cell kept: they need no bits
MASK_HEAD_BYTES = _FULL.size
CONTEXTS = 90

Mask = NDArray[np.bool_]
Index = NDArray[np.int64]


def pack_mask(mask_THW: Mask) -> bytes:
    """The mask section of a chunk."""
    partial = np.flatnonzero(~mask_THW.all(axis=(1, 2)))
    full = int(partial[0]) if len(partial) else len(mask_THW)
    head = _FULL.pack(full)
    if full == len(mask_THW):
        return head
    walk = _Walk(mask_THW.shape, full)
    walk.field[1:, 1:-1, 1:-1] = mask_THW
    order, wave = walk.all_waves()
    context, bits = walk.all_contexts().ravel()[order], mask_THW[full:].ravel()[order]
    encoder = SymbolEncoder()
    encoder.bits(bits, walk.ones_in_waves(context, bits, wave))  # all waves at once: whoever encodes knows every cell
    return head + encoder.words()


def unpack_mask(data: bytes, shape: tuple[int, int, int]) -> Mask:
    """The inverse of `pack_mask`."""
    if len(data) < _FULL.size:
        raise TokenFileError(f"a mask section has at least {_FULL.size} bytes; found {len(data)}")
    (full,) = _FULL.unpack_from(data)
    if full > shape[0]:
        raise TokenFileError(f"the mask section speaks of {full} full slots, the chunk has {shape[0]}")
    walk = _Walk(shape, full)
    walk.field[1 : 1 + full, 1:-1, 1:-1] = 1
    if full < shape[0]:
        decoder = SymbolDecoder(data[_FULL.size :])
        for cells in walk.waves():
            context = walk.contexts(cells)
            bits = decoder.bits(walk.ones(context))
            walk.flat[cells] = bits
            walk.learn(context, bits)
    elif len(data) > _FULL.size:
        raise TokenFileError(f"the mask section has {len(data) - _FULL.size} bytes that nothing refers to")
    return walk.field[1:, 1:-1, 1:-1].astype(bool)


class _Walk:
    """The state both directions share: a mask with a border of dropped cells, and counts of bits by context."""

    def __init__(self, shape: tuple[int, ...], full: int) -> None:
        T, H, W = shape
        self.shape, self.full = (T, H, W), full
        self.field = np.zeros((T + 1, H + 2, W + 2), dtype=np.int16)
        self.flat = self.field.reshape(-1)
        self.row, self.slot = W + 2, (H + 2) * (W + 2)
        self.counts = np.zeros((2, CONTEXTS), dtype=np.int64)

    def waves(self) -> Iterator[Index]:
        """Places in the bordered mask, wave by wave, of the slots that are coded; within a wave in (t, y, x) order."""
        T, H, W = self.shape
        t, y = np.mgrid[self.full : T, :H].reshape(2, -1)
        rows = np.argsort(2 * y + 4 * t, kind="stable")
        t, y = t[rows], y[rows]
        first = 2 * y + 4 * (t - self.full)  # the wave of each row's first cell
        start = (t + 1) * self.slot + (y + 1) * self.row + 1
        for wave in range(int(first[-1]) + W):
            low, high = np.searchsorted(first, (wave - W, wave), side="right")  # the rows this wave crosses
            if low < high:
                yield np.sort(start[low:high] + wave - first[low:high])

    def all_waves(self) -> tuple[Index, Index]:
        """The cells of the slots that are coded, in (t, y, x) order, sorted as `waves` gives them; and their waves."""
        T, H, W = self.shape
        t, y, x = np.ogrid[: T - self.full, :H, :W]
        wave = (x + 2 * y + 4 * t).ravel()
        wave = wave.astype(np.uint16) if wave[-1] < 1 << 16 else wave  # which are sorted in linear time
        order = np.argsort(wave, kind="stable")
        return order, wave[order]

    def all_contexts(self) -> Index:
        """[slots, H, W] what `contexts` gives for every cell of the slots that are coded."""
        own, before = self.field[1 + self.full :], self.field[self.full : -1]
        mid, low, high = slice(1, -1), slice(None, -2), slice(2, None)
        near = own[:, mid, low] + own[:, low, mid]
        diagonal = own[:, low, low] + own[:, low, high]
        ahead = before[:, mid, high] + before[:, high, low] + before[:, high, mid] + before[:, high, high]
        return (((near * 3 + diagonal) * 2 + before[:, mid, mid]) * 5 + ahead).astype(np.int64)

    def contexts(self, cells: Index) -> Index:
        """Of 90, by kept neighbours: 2 near, 2 diagonal, the same cell before, 4 ahead in the slot before."""
        at, row, before = self.flat, self.row, cells - self.slot
        near = at[cells - 1] + at[cells - row]
        diagonal = at[cells - row - 1] + at[cells - row + 1]
        ahead = at[before + 1] + at[before + row - 1] + at[before + row] + at[before + row + 1]
        return (((near * 3 + diagonal) * 2 + at[before]) * 5 + ahead).astype(np.int64)

    def ones(self, context: Index) -> Index:
        """The frequency of a one: (ones + 1/2) / (bits + 1) of what this context has seen, in whole numbers."""
        zeros, ones = self.counts[:, context]
        return _frequency(zeros, ones)

    def ones_in_waves(self, context: Index, bits: Mask, wave: Index) -> Index:
        """The same for the cells of `all_waves`: each wave knows what the waves before it held."""
        seen = wave.astype(np.int64) * CONTEXTS + context
        waves = int(wave[-1]) + 1
        held = (np.bincount(seen[b], minlength=waves * CONTEXTS).reshape(waves, CONTEXTS) for b in (~bits, bits))
        zeros, ones = (np.cumsum(h, axis=0) - h for h in held)
        return _frequency(zeros.ravel()[seen], ones.ravel()[seen])

    def learn(self, context: Index, bits: Mask) -> None:
        self.counts[1] += np.bincount(context[bits], minlength=CONTEXTS)
        self.counts[0] += np.bincount(context[~bits], minlength=CONTEXTS)


def _frequency(zeros: Index, ones: Index) -> Index:
    return 1 + (TOTAL - 2) * (2 * ones + 1) // (2 * (zeros + ones) + 2)
