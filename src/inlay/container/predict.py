# SPDX-License-Identifier: Apache-2.0
"""Guess the next whole numbers of the q8 coder, and their spread, from tokens already coded; whole numbers only.

Legend: N tokens, C channels, F features (neighbours), M modes (0: first token of its cell, 1: the cell has a past).
The rules here are what FORMAT.md fixes: encoder and decoder both follow them. How weights are chosen is in fit.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inlay.container.coder import TABLES, square_width

Ints = NDArray[np.int64]
Places = NDArray[np.int32]
Whole = NDArray[np.signedinteger[Any]]  # of 64 bits, or of 32 where that is enough

# (y, x) of the neighbours; in its own slot a token sees only what comes earlier in wave x + 2y + 4t
OWN_SLOT = ((0, -1), (-1, 0), (-1, 1), (-1, -1))
SLOT_BEFORE = ((0, 0), (0, -1), (-1, 0), (-1, 1), (-1, -1), (0, 1), (1, 0))
FEATURES = len(OWN_SLOT) + len(SLOT_BEFORE)
HOLD = len(OWN_SLOT)  # the feature that is the same cell's last kept token

MODES = 2
MODE_FEATURES = (len(OWN_SLOT), FEATURES)  # a cell without a past has no use for the slot before
WEIGHT_ONE = 64  # a weight of 1.0
BOUND = 1 << 23  # guesses are clipped to this, so that no file can make the arithmetic overflow
ENERGY_WEIGHTS = (2, 2, 1, 1, 2)  # left, above, above right, above left; the same cell's last token
LEVELS = (4, 6, 8, 10, 12, 14, 16, 19, 22, 26, 32)  # energies (16 is one width) that part the contexts
CONTEXTS = len(LEVELS) + 2  # context 0: nothing around to judge by
SMALL = 1 << 20  # numbers below this can be weighed in 32 bits, which takes half the time
_CONTEXT_OF = 1 + np.searchsorted(LEVELS, np.arange(256), side="right")  # mean energy -> context
# 65536 times the 1/16ths of each table's width in one step
_GAINS = np.array([isqrt((20480 << 32) // square_width(table)) for table in range(TABLES)], dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """Which token is where, for the N tokens of a chunk in (t, y, x) order."""

    last: Places  # [N, FEATURES]: the last token kept there; of OWN_SLOT up to this slot, of the rest to the one before
    fresh: Places  # [N, 4]: the token kept there in this very slot
    order: Ints  # [N]: tokens wave by wave; within a wave in (t, y, x) order
    ends: Ints  # [waves]: where each wave ends in `order`

    @property
    def seen(self) -> NDArray[np.bool_]:
        """[N]: has this cell had a token before?"""
        return self.last[:, HOLD] < len(self.last)


def neighbours(mask_THW: NDArray[np.bool_]) -> Neighbours:
    T, H, W = mask_THW.shape
    t, y, x = mask_THW.nonzero()
    none = len(t)
    last = np.full((T + 1, H + 2, W + 2), none, dtype=np.int32)
    fresh = last.copy()
    fresh[t + 1, y + 1, x + 1] = np.arange(none)
    for slot in range(1, T + 1):
        last[slot] = np.where(fresh[slot] < none, fresh[slot], last[slot - 1])
    own = [(1, *place) for place in OWN_SLOT]
    before = [(0, *place) for place in SLOT_BEFORE]
    wave = x + 2 * y + 4 * t
    order = np.argsort(wave, kind="stable")
    return Neighbours(
        last=_gather(last, t, y, x, own + before),
        fresh=_gather(fresh, t, y, x, own),
        order=order,
        ends=np.append(np.flatnonzero(np.diff(wave[order])) + 1, none) if none else np.zeros(0, dtype=np.int64),
    )


def _gather(field: Places, t: Ints, y: Ints, x: Ints, places: list[tuple[int, int, int]]) -> Places:
    found = np.empty((len(t), len(places)), dtype=np.int32)
    for i, (dt, dy, dx) in enumerate(places):
        found[:, i] = field[t + dt, y + 1 + dy, x + 1 + dx]
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """What one chunk tells the decoder about its numbers."""

    centres: Ints  # [C] subtracted before anything else
    weights: Ints  # [M, F, C] or [M, F, 1], in 64ths
    base: Ints  # [M, C] table of each channel
    shift: Ints  # [CONTEXTS] added to it

    def guess(self, past: Whole, around: Places, mode: Ints, *, narrow: bool = False) -> Ints:
        """[n, C]: the weighted neighbours; `past` [N + 1, C] are the numbers so far, `around` [n, F] which of them.

        Args:
            narrow: the numbers are so small that sums of 32 bits hold them; quicker. A decoder cannot know that.
        """
        kind = np.int32 if narrow else np.int64
        weights: Whole = self.weights.astype(kind, copy=False)
        weighted = np.zeros((len(around), past.shape[1]), dtype=kind)
        for feature in range(around.shape[1]):  # one after the other: a block of all of them would not stay in a cache
            weighted += past.take(around[:, feature], axis=0) * weights[:, feature].take(mode, axis=0)
        return np.clip((weighted + WEIGHT_ONE // 2) >> 6, -BOUND, BOUND)

    def energy(self, residual: Ints, mode: Ints) -> Ints:
        """[n, C]: the size of residuals in 1/16ths of their channel's width, at most 255."""
        return np.minimum((np.abs(residual) * _GAINS[self.base[mode]]) >> 16, 255)

    def tables(self, context: Ints, mode: Ints) -> Ints:
        """[n, C]: the table each number is coded with."""
        return np.clip(self.base[mode] + self.shift[context], 0, TABLES - 1)


def contexts(energies: Whole, around: Places) -> Ints:
    """[n, C]: the mean energy around, 3 parts the channel's own and 5 parts that of all, sorted into levels.

    `energies` [N + 1, C] has zeros in its last row; `around` [n, 5] are the tokens that ENERGY_WEIGHTS weigh.
    """
    parts = np.array(ENERGY_WEIGHTS, dtype=energies.dtype)
    none, channels = len(energies) - 1, energies.shape[1]
    count = ((around < none) * parts).sum(axis=1, dtype=energies.dtype)[:, None]
    own = np.zeros((len(around), channels), dtype=energies.dtype)
    for part, place in zip(ENERGY_WEIGHTS, around.T, strict=True):
        own += energies.take(place, axis=0) * part
    everyone = own.sum(axis=1, keepdims=True, dtype=energies.dtype)
    mean = (3 * channels * own + 5 * everyone) // (8 * channels * np.maximum(count, 1))
    return np.where(count > 0, _CONTEXT_OF.take(mean), 0)


def energy_sources(near: Neighbours) -> Places:
    """[N, 5]: the tokens whose energy a token looks at."""
    hold = near.last[:, len(OWN_SLOT)]
    return np.concatenate([near.fresh, hold[:, None]], axis=1)
