# SPDX-License-Identifier: Apache-2.0
"""A keep mask in, the tokens each token may look at, out: the order and the neighbourhood of the q8 coder.

Token N stands for "none": a neighbour outside the grid, or a cell that nothing has been kept for yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]

# (y, x) of the neighbours; in its own slot a token sees only what comes earlier in wave x + 2y + 4t
OWN_SLOT = ((0, -1), (-1, 0), (-1, 1), (-1, -1))
SLOT_BEFORE = ((0, 0), (0, -1), (-1, 0), (-1, 1), (-1, -1), (0, 1), (1, 0))
FEATURES = len(OWN_SLOT) + len(SLOT_BEFORE)
HOLD = len(OWN_SLOT)  # the feature that is the same cell's last kept token


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """Which token is where, for the N tokens of a chunk in (t, y, x) order."""

    last: (
        Index  # [N, FEATURES]: the last token kept there, up to this slot for OWN_SLOT, to the one before for the rest
    )
    fresh: Index  # [N, 4]: the token kept there in this very slot
    order: Index  # [N]: tokens wave by wave; within a wave in (t, y, x) order
    ends: Index  # [waves]: where each wave ends in `order`

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


def _gather(field: NDArray[np.int32], t: Index, y: Index, x: Index, places: list[tuple[int, int, int]]) -> Index:
    return np.stack([field[t + dt, y + 1 + dy, x + 1 + dx] for dt, dy, dx in places], axis=1).astype(np.int64)
