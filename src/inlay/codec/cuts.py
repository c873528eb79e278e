# SPDX-License-Identifier: Apache-2.0
"""Find the frame where a new scene begins.

The latents are there anyway. Seen coarsely, a slot that differs from the one before as much as unrelated places differ
may begin a new scene; it does if one of its frames differs from the frame before, over half the picture, far more than
frames did lately. There the scene begins. Fast motion passes the first test alone, what starts to move the second.

`look_at_frames` and `look_at_slots` measure on the device, with the network; `Evidence` judges a few numbers on the
CPU.

Legend: B batch, C channels, T slots, F frames, H W grid or pixels.
"""

from __future__ import annotations

from functools import cached_property
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.codec.transfer import Transfer
from inlay.kernels import may_run

COARSE = 4  # blocks a side in which slots are compared
THUMB = 16  # and frames
UNRELATED = 0.65  # share of the distance of unrelated places
JUMP = 3.5  # times the usual change from frame to frame
RECENT = 8  # frames that tell what is usual
CALM = 0.01  # the least change that counts as usual; pixels range from -1 to 1
LEAST = 0.05  # what changes less begins no scene
GREY = 256  # thumbs are kept in this many steps a grey level

Seen = list[Tensor]  # the last slot [B, 1, C, h, w] and the last frame [B, 1, h, w, 3] of a chunk, coarse
Jumps = tuple[float, ...]  # the latest changes from frame to frame


def look_at_frames(frames_BFHWC: Tensor, seen: Seen | None) -> tuple[Tensor, Tensor]:
    """[B, F] float64: how much frames differ from the ones before; and the last of them, coarse.

    Args:
        seen: of the chunk before; None: there is none, and the first frame differs by nothing.
    """
    last_thumb = None if seen is None else seen[1]
    pictures = frames_BFHWC.dtype == torch.uint8 and frames_BFHWC.shape[4] == 3 and frames_BFHWC.numel() > 0
    if pictures and may_run("cuts", tensors=(frames_BFHWC,)):
        from inlay.kernels.look_triton import jumps  # Triton is imported when it first runs

        return jumps(frames_BFHWC, last_thumb, side=THUMB, steps=GREY)
    return plain_jumps(frames_BFHWC, last_thumb)


def plain_jumps(frames_BFHWC: Tensor, last_thumb: Tensor | None) -> tuple[Tensor, Tensor]:
    """`look_at_frames` without its kernels."""
    thumbs = thumbnails(frames_BFHWC)
    last_thumb = thumbs[:, :1] if last_thumb is None else last_thumb
    moved = (thumbs - torch.cat([last_thumb, thumbs[:, :-1]], dim=1)).abs().sum(4).flatten(2)
    jump_BF = moved.median(dim=2).values.double() / (3 * GREY * 127.5)  # half of the places change at least so much
    return jump_BF, thumbs[:, -1:].clone()


def look_at_slots(z_BCTHW: Tensor, seen: Seen | None) -> tuple[Tensor, Tensor]:
    """[B, T + T] float64: how much slots differ from the ones before, and from unrelated places of those; and the last
    of them, coarse. Without a chunk before the first slot differs by nothing.
    """
    last_slot = None if seen is None else seen[0]
    if z_BCTHW.dtype == torch.float32 and z_BCTHW.numel() > 0 and may_run("cuts", tensors=(z_BCTHW,)):
        from inlay.kernels.look_triton import changes  # Triton is imported when it first runs

        return changes(z_BCTHW, last_slot, side=COARSE)
    return plain_changes(z_BCTHW, last_slot)


def plain_changes(z_BCTHW: Tensor, last_slot: Tensor | None) -> tuple[Tensor, Tensor]:
    """`look_at_slots` without its kernels."""
    slots = coarse_slots(z_BCTHW)
    last_slot = slots[:, :1] if last_slot is None else last_slot
    earlier = torch.cat([last_slot, slots[:, :-1]], dim=1)
    elsewhere = earlier.roll((COARSE // 2, COARSE // 2), (3, 4))
    change_BT, most_BT = ((slots - other).abs().mean((2, 3, 4)) for other in (earlier, elsewhere))
    return torch.cat([change_BT, most_BT], dim=1), slots[:, -1:].clone()


class Evidence:
    """What was measured of chunks that went through the network together, on its way from the device.

    Args:
        numbers_BN: of the slots, then of the frames.
    """

    def __init__(self, numbers_BN: Tensor, slots: int) -> None:
        self.slots = slots
        self._transfer = Transfer(numbers_BN)

    @cached_property
    def _numbers(self) -> list[list[float]]:
        with self._transfer.lent() as (numbers_BN,):
            return [row.tolist() for row in numbers_BN]

    def find_cut(self, row: int, recent: Jumps | None, *, first: int, stride: int) -> tuple[int | None, Jumps]:
        """The frame of a chunk at which a new scene begins, or None, and the latest changes.

        Args:
            row: which of the chunks.
            recent: the latest changes before it; None where no chunk came before it.
            first: frames that slot 0 stands for; later ones stand for `stride`.
        """
        numbers = self._numbers[row]
        changes, mosts, jumps = numbers[: self.slots], numbers[self.slots : 2 * self.slots], numbers[2 * self.slots :]
        usual, end = list(recent or ()), 0
        for t, (change, most) in enumerate(zip(changes, mosts, strict=True)):
            begin, end = end, min(first + t * stride, len(jumps))
            fresh = jumps[max(begin, 1 if recent is None else 0) : end]  # the first frame of all has none
            if change >= UNRELATED * most and change > 0 and usual and fresh:
                place = fresh.index(max(fresh))
                if fresh[place] > max(JUMP * max(median(usual), CALM), LEAST):
                    return end - len(fresh) + place, ()
            usual = (usual + fresh)[-RECENT:]
        return None, tuple(usual)


def coarse_slots(z_BCTHW: Tensor) -> Tensor:
    """[B, T, C, 4, 4] float64."""
    pooled: Tensor = F.adaptive_avg_pool2d(z_BCTHW.transpose(1, 2).flatten(0, 1).float(), COARSE)
    return pooled.view(len(z_BCTHW), -1, *pooled.shape[1:]).double()


def thumbnails(frames_BFHWC: Tensor) -> Tensor:
    """[B, F, h, w, 3] int32 means of blocks, in 1/256 of a grey level: whole numbers, so they are the same anywhere."""
    batch, frames, height, width, _ = frames_BFHWC.shape
    rows, columns = min(THUMB, height), min(THUMB, width)
    tall, wide = height // rows, width // columns
    cut = frames_BFHWC[:, :, : rows * tall, : columns * wide]
    lines = cut.reshape(batch, frames, rows, tall, columns * wide * 3).sum(3, dtype=torch.int32)
    sums = lines.view(batch, frames, rows, columns, wide, 3).sum(4, dtype=torch.int64)
    return (sums * GREY).div(tall * wide, rounding_mode="floor").int()
