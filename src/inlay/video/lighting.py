# SPDX-License-Identifier: Apache-2.0
"""Frames and kept cells in, the same frames with dropped cells dark and grey out: one look for film, sheet and page.

The difference is one of brightness, so that it does not depend on telling colours apart.
"""

from __future__ import annotations

import torch
from torch import Tensor

EDGE = torch.tensor([230, 159, 0], dtype=torch.uint8)  # an orange that all common kinds of colour vision tell from grey
LUMA = torch.tensor([0.299, 0.587, 0.114])
DIM = 0.4


def light(frames_THWC: Tensor, keep_Thw: Tensor, stride: int) -> Tensor:
    """Frames with the dropped cells dark and grey, kept ones as they are, and a line between."""
    _, height, width, _ = frames_THWC.shape
    keep_THW = keep_Thw.repeat_interleave(stride, 1).repeat_interleave(stride, 2)[:, :height, :width]
    grey_THW = (frames_THWC.float() @ LUMA).mul_(DIM).to(torch.uint8)
    out = torch.where(keep_THW[..., None], frames_THWC, grey_THW[..., None])
    edge_THW = torch.zeros_like(keep_THW)
    edge_THW[:, 1:] |= keep_THW[:, 1:] != keep_THW[:, :-1]
    edge_THW[:, :, 1:] |= keep_THW[:, :, 1:] != keep_THW[:, :, :-1]
    out[edge_THW] = EDGE
    return out
