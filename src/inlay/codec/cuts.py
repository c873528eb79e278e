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

from inlay.codec.transfer import Transfer

COARSE = 4  # blocks a side in which slots are compared
THUMB = 16  # and frames
UNRELATED = 0.65  # share of the distance of unrelated places
JUMP = 3.5  # times the usual change from frame to frame
RECENT = 8  # frames that tell what is usual
CALM = 0.01  # the least change that counts as usual; pixels range from -1 to 1
LEAST = 0.05  # what changes less begins no scene


@dataclass(frozen=True, kw_only=True, eq=False)
class Glimpse:
    """What is remembered since the last key chunk: one slot and one frame, coarse, and the latest changes."""

    slot_CHW: Tensor | None = None
    frame_HWC: Tensor | None = None
    jumps: tuple[float, ...] = ()


class Evidence:
    """The slots and the frames of a chunk, coarse, on their way from the device."""

    def __init__(self, z_BCTHW: Tensor, frames_FHWC: Tensor) -> None:
        slots_TCHW = F.adaptive_avg_pool2d(z_BCTHW[0].transpose(0, 1).float(), COARSE)
        self._transfer = Transfer(slots_TCHW, thumbs(frames_FHWC))

    def find_cut(self, before: Glimpse, *, first: int, stride: int) -> tuple[int | None, Glimpse]:
        """The frame of the chunk at which a new scene begins, or None, and what is remembered then.

        Args:
            first: frames that slot 0 stands for; later ones stand for `stride`.
        """
        slots_TCHW, thumbs_FHWC = self._transfer.arrived()
        changes, mosts = _slot_changes(slots_TCHW, before.slot_CHW)
        jumps = _frame_changes(thumbs_FHWC, before.frame_HWC)
        recent, end = list(before.jumps), 0
        for t, (change, most) in enumerate(zip(changes, mosts, strict=True)):
            begin, end = end, min(first + t * stride, len(thumbs_FHWC))
            fresh = jumps[max(begin, 1 if before.frame_HWC is None else 0) : end]  # the first frame of all has none
            if change >= UNRELATED * most and change > 0 and recent and fresh:
                place = max(range(len(fresh)), key=fresh.__getitem__)
                if fresh[place] > max(JUMP * max(median(recent), CALM), LEAST):
                    return end - len(fresh) + place, Glimpse()
            recent = (recent + fresh)[-RECENT:]
        return None, Glimpse(slot_CHW=slots_TCHW[-1].clone(), frame_HWC=thumbs_FHWC[-1].clone(), jumps=tuple(recent))


def thumbs(frames_FHWC: Tensor) -> Tensor:
    """[F, h, w, 3] float64 means of blocks, in [0, 255]; whole numbers are added, so the sums are exact anywhere."""
    frames, height, width, _ = frames_FHWC.shape
    rows, columns = min(THUMB, height), min(THUMB, width)
    tall, wide = height // rows, width // columns
    cut = frames_FHWC[:, : rows * tall, : columns * wide]
    lines = cut.reshape(frames, rows, tall, columns * wide * 3).sum(2, dtype=torch.int32)
    return lines.view(frames, rows, columns, wide, 3).sum(3).double() / (tall * wide)


def _slot_changes(slots_TCHW: Tensor, last_CHW: Tensor | None) -> tuple[list[float], list[float]]:
    """How much each slot differs from the one before it, and from unrelated places of that one."""
    earlier = torch.cat([slots_TCHW[:1] if last_CHW is None else last_CHW[None], slots_TCHW[:-1]])
    elsewhere = earlier.roll((COARSE // 2, COARSE // 2), (2, 3))
    change_T, most_T = ((slots_TCHW - other).abs().mean((1, 2, 3)) for other in (earlier, elsewhere))
    return change_T.tolist(), most_T.tolist()


def _frame_changes(thumbs_FHWC: Tensor, last_HWC: Tensor | None) -> list[float]:
    """How much each frame differs from the one before it in half of its places at least, on the scale of -1 to 1."""
    earlier = torch.cat([thumbs_FHWC[:1] if last_HWC is None else last_HWC[None], thumbs_FHWC[:-1]])
    return ((thumbs_FHWC - earlier).abs().mean(3).flatten(1).median(1).values / 127.5).tolist()
