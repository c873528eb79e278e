# SPDX-License-Identifier: Apache-2.0
"""Show on frames which cells are kept, and where two frames differ.

Both are shown by brightness, so that they do not depend on telling colours apart.

Legend: T frames, H W pixels, h w cells.
"""

from __future__ import annotations

import torch
from torch import Tensor

EDGE = torch.tensor([230, 159, 0], dtype=torch.uint8)  # an orange that all common kinds of colour vision tell from grey
LUMA = torch.tensor([0.299, 0.587, 0.114])
DIM = 0.4
GAIN = 4  # how much a difference is enlarged
RAMP = torch.tensor([[0, 32, 77], [65, 77, 107], [124, 123, 120], [188, 175, 111], [255, 234, 70]])  # dark to bright


def light(frames_THWC: Tensor, keep_Thw: Tensor, side: float) -> Tensor:
    """Frames with the dropped cells dark and grey, kept ones as they are, and a line between.

    Args:
        side: of a cell, in pixels.
    """
    row_H, column_W = (((torch.arange(n) + 0.5) / side).long() for n in frames_THWC.shape[1:3])
    keep_THW = keep_Thw[:, row_H][:, :, column_W]
    grey_THW = (frames_THWC.float() @ LUMA).mul_(DIM).to(torch.uint8)
    out = torch.where(keep_THW[..., None], frames_THWC, grey_THW[..., None])
    edge_THW = torch.zeros_like(keep_THW)
    edge_THW[:, 1:] |= keep_THW[:, 1:] != keep_THW[:, :-1]
    edge_THW[:, :, 1:] |= keep_THW[:, :, 1:] != keep_THW[:, :, :-1]
    out[edge_THW] = EDGE
    return out


def heat(share_HW: Tensor) -> Tensor:
    """[H, W, 3] uint8: dark blue for 0, yellow for 1, brighter all the way."""
    place = share_HW.float().clamp(0, 1) * (len(RAMP) - 1)
    low = place.long().clamp(max=len(RAMP) - 2)
    return torch.lerp(RAMP[low].float(), RAMP[low + 1].float(), (place - low)[..., None]).to(torch.uint8)


def difference(a_HWC: Tensor, b_HWC: Tensor) -> Tensor:
    """Mean absolute error over colours as heat, GAIN times enlarged: yellow is 64 levels or more."""
    return heat((a_HWC.float() - b_HWC.float()).abs().mean(-1) * GAIN / 255)
