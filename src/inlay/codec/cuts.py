# SPDX-License-Identifier: Apache-2.0
"""Find the frame where a new scene begins.

The latents are there anyway. Seen coarsely, a slot that differs from the one before as much as unrelated places differ
may begin a new scene; it does if one of its frames differs from the frame before, over half the picture, far more than
frames did lately. There the scene begins. Fast motion passes the first test alone, what starts to move the second.

Legend: B batch (here 1), C channels, T slots, F frames, H W grid or pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
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
class Glimpse:
    """The last slot and the last frame of a chunk, coarse: what the next chunk is compared with."""

    slot_CHW: Tensor
    frame_CHW: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """What a chunk shows, still on its device: a table for one transfer."""

    table_3N: Tensor  # change of each slot, that of unrelated places, change of each frame; padded with zeros
    slots: int
    frames: int
    begins: bool  # nothing came before it
    last: Glimpse


def look(z_BCTHW: Tensor, x_BCTHW: Tensor, before: Glimpse | None) -> Evidence:
    """Compare the slots and the frames of a chunk with those before them."""
    slots = _coarse(z_BCTHW[0].transpose(0, 1), COARSE)
    thumbs = _coarse(x_BCTHW[0].transpose(0, 1), THUMB)
    earlier = _shifted(slots, None if before is None else before.slot_CHW)
    elsewhere = earlier.roll((COARSE // 2, COARSE // 2), (2, 3))
    change_T = (slots - earlier).abs().mean((1, 2, 3))
    most_T = (slots - elsewhere).abs().mean((1, 2, 3))
    step_FCHW = thumbs - _shifted(thumbs, None if before is None else before.frame_CHW)
    jump_F = step_FCHW.abs().mean(1).flatten(1).median(1).values
    rows = [F.pad(row, (0, max(len(jump_F), len(change_T)) - len(row))) for row in (change_T, most_T, jump_F)]
    return Evidence(
        table_3N=torch.stack(rows),
        slots=len(slots),
        frames=len(thumbs),
        begins=before is None,
        last=Glimpse(slot_CHW=slots[-1], frame_CHW=thumbs[-1]),
    )


def find_cut(
    seen: Evidence, recent: Sequence[float], *, first: int, stride: int
) -> tuple[int | None, tuple[float, ...]]:
    """The frame of a chunk at which a new scene begins, or None, and the latest changes from frame to frame.

    Args:
        recent: the latest changes before the chunk, since the last key chunk.
        first: frames that slot 0 stands for; later ones stand for `stride`.
    """
    changes, mosts, jumps = seen.table_3N.tolist()
    latest = list(recent)
    end = 0
    for t in range(seen.slots):
        begin, end = end, min(first + t * stride, seen.frames)
        fresh = jumps[max(begin, 1 if seen.begins else 0) : end]  # the first frame of all has none before it
        known = t > 0 or not seen.begins
        if known and changes[t] >= UNRELATED * mosts[t] and changes[t] > 0 and latest and fresh:
            place = max(range(len(fresh)), key=fresh.__getitem__)
            if fresh[place] > max(JUMP * max(median(latest), CALM), LEAST):
                return end - len(fresh) + place, ()
        latest = (latest + fresh)[-RECENT:]
    return None, tuple(latest)


def _shifted(x_NCHW: Tensor, last_CHW: Tensor | None) -> Tensor:
    """What came before each one; the very first stands before itself."""
    first = x_NCHW[:1] if last_CHW is None else last_CHW[None]
    return torch.cat([first, x_NCHW[:-1]])


def _coarse(x_NCHW: Tensor, blocks: int) -> Tensor:
    return F.adaptive_avg_pool2d(x_NCHW.float(), blocks)
