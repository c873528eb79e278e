# SPDX-License-Identifier: Apache-2.0
"""Find the frame where a new scene begins.

The latents are there anyway. Seen coarsely, a slot that differs from the one before as much as unrelated places differ
may begin a new scene; it does if one of its frames differs from the frame before, over half the picture, far more than
frames did lately. There the scene begins. Fast motion passes the first test alone, what starts to move the second.

Legend: B batch (here 1), C channels, T slots, F frames, H W grid or pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

COARSE = 4  # blocks a side in which slots are compared
THUMB = 16  # and frames
UNRELATED = 0.65  # share of the distance of unrelated places
JUMP = 3.5  # times the usual change from frame to frame
RECENT = 8  # frames that tell what is usual
CALM = 0.01  # the least change that counts as usual; pixels range from -1 to 1
LEAST = 0.05  # what changes less begins no scene


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What a chunk shows, still on its device: one small table for one transfer."""

    table_3N: Tensor  # change of each slot, that of unrelated places, change of each frame; padded with zeros
    slots: int
    frames: int
    slot_CHW: Tensor  # the last ones, coarse
    frame_CHW: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class CutFinder:
    """What is remembered since the last key chunk: one slot, one frame, the latest changes, all of them coarse."""

    slot_CHW: Tensor | None = None
    frame_CHW: Tensor | None = None
    jumps: tuple[float, ...] = ()

    def look(self, z_BCTHW: Tensor, x_BCTHW: Tensor) -> Evidence:
        """Compare the slots and the frames of a chunk with those before them."""
        slots = _coarse(z_BCTHW[0].transpose(0, 1), COARSE)
        thumbs = _coarse(x_BCTHW[0].transpose(0, 1), THUMB)
        before = _shifted(slots, self.slot_CHW)
        elsewhere = before.roll((COARSE // 2, COARSE // 2), (2, 3))
        change_T = (slots - before).abs().mean((1, 2, 3))
        most_T = (slots - elsewhere).abs().mean((1, 2, 3))
        jump_F = (thumbs - _shifted(thumbs, self.frame_CHW)).abs().mean(1).flatten(1).median(1).values
        rows = [F.pad(row, (0, max(len(jump_F), len(change_T)) - len(row))) for row in (change_T, most_T, jump_F)]
        return Evidence(
            table_3N=torch.stack(rows),
            slots=len(slots),
            frames=len(thumbs),
            slot_CHW=slots[-1],
            frame_CHW=thumbs[-1],
        )

    def find(self, seen: Evidence, *, first: int, stride: int) -> tuple[int | None, CutFinder]:
        """The frame of the chunk at which a new scene begins, or None, and what is remembered then.

        Slot 0 of the chunk stands for `first` frames, later ones for `stride`.
        """
        changes, mosts, jumps = seen.table_3N.tolist()
        recent = list(self.jumps)
        end = 0
        for t in range(seen.slots):
            begin, end = end, min(first + t * stride, seen.frames)
            fresh = jumps[max(begin, 1 if self.frame_CHW is None else 0) : end]  # the first frame ever has none before
            known = t > 0 or self.slot_CHW is not None
            if known and changes[t] >= UNRELATED * mosts[t] and changes[t] > 0 and recent and fresh:
                place = max(range(len(fresh)), key=fresh.__getitem__)
                if fresh[place] > max(JUMP * max(median(recent), CALM), LEAST):
                    return end - len(fresh) + place, self
            recent = (recent + fresh)[-RECENT:]
        return None, CutFinder(slot_CHW=seen.slot_CHW, frame_CHW=seen.frame_CHW, jumps=tuple(recent))


def _shifted(x_NCHW: Tensor, last_CHW: Tensor | None) -> Tensor:
    """What came before each one; the very first stands before itself."""
    first = x_NCHW[:1] if last_CHW is None else last_CHW[None]
    return torch.cat([first, x_NCHW[:-1]])


def _coarse(x_NCHW: Tensor, blocks: int) -> Tensor:
    return F.adaptive_avg_pool2d(x_NCHW.float(), blocks)
