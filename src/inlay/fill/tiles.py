# SPDX-License-Identifier: Apache-2.0
"""A large grid in overlapping windows, blended: memory follows the window, not the grid."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

TileFill = Callable[[Tensor, Tensor, Tensor], Tensor]


def starts(size: int, window: int, overlap: int) -> list[int]:
    """Where windows begin so that they cover `size`, the last one flush with the end.

    >>> starts(90, 32, 8)
    [0, 24, 48, 58]
    """
    if size <= window:
        return [0]
    return [*range(0, size - window, window - overlap), size - window]


def tiled(fill: TileFill, z_BCTHW: Tensor, keep_BTHW: Tensor, tau_B: Tensor, *, window: int, overlap: int) -> Tensor:
    """`fill` window by window; where windows overlap their answers are cross-faded."""
    H, W = z_BCTHW.shape[3:]
    if window >= H and window >= W:
        return fill(z_BCTHW, keep_BTHW, tau_B)
    total = torch.zeros_like(z_BCTHW, dtype=torch.float32)
    weight = torch.zeros(H, W, device=z_BCTHW.device)
    for y in starts(H, window, overlap):
        for x in starts(W, window, overlap):
            rows, columns = slice(y, min(y + window, H)), slice(x, min(x + window, W))
            part = fill(z_BCTHW[..., rows, columns], keep_BTHW[..., rows, columns], tau_B)
            ramp = _ramp(part.shape[3], overlap, z_BCTHW)[:, None] * _ramp(part.shape[4], overlap, z_BCTHW)
            total[..., rows, columns] += part.float() * ramp
            weight[rows, columns] += ramp
    return (total / weight).to(z_BCTHW.dtype)


def _ramp(size: int, overlap: int, like: Tensor) -> Tensor:
    """1 in the middle, falling to 1 / (overlap + 1) at both ends."""
    distance = torch.arange(1, size + 1, device=like.device, dtype=torch.float32)
    return torch.minimum(distance, distance.flip(0)).clamp_max(overlap + 1) / (overlap + 1)
