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

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from inlay.codec.transfer import Transfer

COARSE = 4  # blocks a side in which slots are compared
THUMB = 16  # and frames
UNRELATED = 0.65  # share of the distance of unrelated places
JUMP = 3.5  # times the usual change from frame to frame
RECENT = 8  # frames that tell what is usual
CALM = 0.01  # the least change that counts as usual; pixels range from -1 to 1
LEAST = 0.05  # what changes less begins no scene
GREY = 256  # thumbs are kept in this many steps a grey level

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Glimpse:
    """What is remembered since the last key chunk: one slot and one frame, coarse, and the latest changes."""

    slot_CHW: Floats | None = None
    thumb_HWC: Floats | None = None
    jumps: tuple[float, ...] = ()


class Evidence:
    """The slots and the frames of a chunk, coarse, on their way from the device.

    They are compared on the CPU, in numpy: a few thousand numbers are nothing for a GPU, and torch's threads cost more
    than the work.
    """

    def __init__(self, z_BCTHW: Tensor, frames_FHWC: Tensor) -> None:
        slots_TCHW = F.adaptive_avg_pool2d(z_BCTHW[0].transpose(0, 1).float(), COARSE)
        self._transfer = Transfer(slots_TCHW, thumbs(frames_FHWC))

    def find_cut(self, before: Glimpse, *, first: int, stride: int) -> tuple[int | None, Glimpse]:
        """The frame of the chunk at which a new scene begins, or None, and what is remembered then.

        Args:
            first: frames that slot 0 stands for; later ones stand for `stride`.
        """
        slots_TCHW, thumbs_FHWC = (tensor.numpy().astype(np.float64) for tensor in self._transfer.arrived())
        changes, mosts = _slot_changes(slots_TCHW, before.slot_CHW)
        jumps = _frame_changes(thumbs_FHWC, before.thumb_HWC)
        recent, end = list(before.jumps), 0
        for t, (change, most) in enumerate(zip(changes, mosts, strict=True)):
            begin, end = end, min(first + t * stride, len(thumbs_FHWC))
            fresh = jumps[max(begin, 1 if before.thumb_HWC is None else 0) : end]  # the first frame of all has none
            if change >= UNRELATED * most and change > 0 and recent and fresh:
                place = max(range(len(fresh)), key=fresh.__getitem__)
                if fresh[place] > max(JUMP * max(median(recent), CALM), LEAST):
                    return end - len(fresh) + place, Glimpse()
            recent = (recent + fresh)[-RECENT:]
        return None, Glimpse(slot_CHW=slots_TCHW[-1], thumb_HWC=thumbs_FHWC[-1], jumps=tuple(recent))


def thumbs(frames_FHWC: Tensor) -> Tensor:
    """[F, h, w, 3] int32 means of blocks, in 1/256 of a grey level: whole numbers, so they are the same anywhere."""
    frames, height, width, _ = frames_FHWC.shape
    rows, columns = min(THUMB, height), min(THUMB, width)
    tall, wide = height // rows, width // columns
    cut = frames_FHWC[:, : rows * tall, : columns * wide]
    lines = cut.reshape(frames, rows, tall, columns * wide * 3).sum(2, dtype=torch.int32)
    sums = lines.view(frames, rows, columns, wide, 3).sum(3, dtype=torch.int64)
    return (sums * GREY).div(tall * wide, rounding_mode="floor").int()


def _slot_changes(slots_TCHW: Floats, last_CHW: Floats | None) -> tuple[list[float], list[float]]:
    """How much each slot differs from the one before it, and from unrelated places of that one."""
    earlier = np.concatenate([slots_TCHW[:1] if last_CHW is None else last_CHW[None], slots_TCHW[:-1]])
    elsewhere = np.roll(earlier, (COARSE // 2, COARSE // 2), (2, 3))
    change_T, most_T = (np.abs(slots_TCHW - other).mean((1, 2, 3)) for other in (earlier, elsewhere))
    return change_T.tolist(), most_T.tolist()


def _frame_changes(thumbs_FHWC: Floats, last_HWC: Floats | None) -> list[float]:
    """How much each frame differs from the one before it in half of its places at least, on the scale of -1 to 1."""
    earlier = np.concatenate([thumbs_FHWC[:1] if last_HWC is None else last_HWC[None], thumbs_FHWC[:-1]])
    change_FN = np.abs(thumbs_FHWC - earlier).sum(3).reshape(len(thumbs_FHWC), -1)
    middle = (change_FN.shape[1] - 1) // 2
    return [float(change) / (3 * GREY * 127.5) for change in np.partition(change_FN, middle, axis=1)[:, middle]]
