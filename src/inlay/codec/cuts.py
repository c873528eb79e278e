# SPDX-License-Identifier: Apache-2.0
"""Latents and pixels of a stream in, the frame where a new scene begins out.

The latents are there anyway. Seen coarsely, a slot that differs from the one before as much as unrelated places differ
may begin a new scene; it does if one of its frames differs from the frame before, over half the picture, far more than
frames did lately. There the scene begins. Fast motion passes the first test alone, what starts to move the second.

Legend: B batch, C channels, T slots or frames, H W grid or pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

import torch.nn.functional as F
from torch import Tensor

COARSE = 4  # blocks a side in which slots are compared
THUMB = 16  # and frames
UNRELATED = 0.65  # share of the distance of unrelated places
JUMP = 3.5  # times the usual change from frame to frame
RECENT = 8  # frames that tell what is usual
CALM = 0.01  # the least change that counts as usual; pixels range from -1 to 1
LEAST = 0.05  # what changes less begins no scene


@dataclass(kw_only=True)
class CutFinder:
    """Remembers one slot, one frame and the latest changes since the last key chunk, all of them coarse."""

    slot_BCHW: Tensor | None = None
    frame_BCHW: Tensor | None = None
    jumps: list[float] = field(default_factory=list)

    def find(self, z_BCTHW: Tensor, x_BCTHW: Tensor, *, first: int, stride: int) -> int | None:
        """The frame of this chunk at which a new scene begins, or None. Slot 0 stands for `first` frames."""
        end = 0
        for t, z_BCHW in enumerate(z_BCTHW.unbind(2)):
            begin, end = end, first + t * stride
            slot_BCHW = _coarse(z_BCHW, COARSE)
            jumps = self._jumps(x_BCTHW[:, :, begin:end])
            if self._unrelated(slot_BCHW) and self.jumps:  # a scene is at least two slots long
                frame = max(range(len(jumps)), key=jumps.__getitem__)
                if jumps[frame] > max(JUMP * max(median(self.jumps), CALM), LEAST):
                    return begin + frame
            self.slot_BCHW, self.jumps = slot_BCHW, (self.jumps + jumps)[-RECENT:]
        return None

    def _unrelated(self, slot_BCHW: Tensor) -> bool:
        last_BCHW = self.slot_BCHW
        if last_BCHW is None:
            return False
        elsewhere = last_BCHW.roll((COARSE // 2, COARSE // 2), (2, 3))
        change, most = (float((slot_BCHW - other).abs().mean()) for other in (last_BCHW, elsewhere))
        return change >= UNRELATED * most and change > 0

    def _jumps(self, x_BCTHW: Tensor) -> list[float]:
        """How much each frame differs from the one before it, in half of its places at least."""
        jumps = []
        for frame_BCHW in x_BCTHW.unbind(2):
            thumb = _coarse(frame_BCHW, THUMB)
            if self.frame_BCHW is not None:
                jumps.append(float((thumb - self.frame_BCHW).abs().mean(1).median()))
            self.frame_BCHW = thumb
        return jumps


def _coarse(x_BCHW: Tensor, blocks: int) -> Tensor:
    return F.adaptive_avg_pool2d(x_BCHW.float(), blocks)
