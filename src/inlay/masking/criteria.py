# SPDX-License-Identifier: Apache-2.0
"""Two slots in, a distance for each cell out.

Legend: B batch, C channels, T slots, H W grid. All arithmetic is float32 whatever the latents are, so that a
decision does not depend on the precision of the run.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.errors import ShapeError
from inlay.types import describe

Distance = Callable[[Tensor, Tensor], Tensor]


def latent_l1(a_BCHW: Tensor, b_BCHW: Tensor) -> Tensor:
    """Mean absolute difference over channels: the paper's criterion."""
    return (a_BCHW.float() - b_BCHW.float()).abs().mean(1)


def latent_l2(a_BCHW: Tensor, b_BCHW: Tensor) -> Tensor:
    """Root of the mean squared difference over channels, so that its scale is latent-l1's."""
    return (a_BCHW.float() - b_BCHW.float()).square().mean(1).sqrt()


def latent_cosine(a_BCHW: Tensor, b_BCHW: Tensor) -> Tensor:
    """One minus the cosine of the angle between the two cells, in [0, 2]; equal cells are at distance zero."""
    a, b = a_BCHW.float(), b_BCHW.float()
    distance = (1 - F.cosine_similarity(a, b, dim=1, eps=1e-12)).clamp_min(0)
    return torch.where((a == b).all(1), torch.zeros_like(distance), distance)


# pixel-l1 is latent-l1 measured on the pooled pixels of `pixel_grid` instead of on the latents
CRITERIA: dict[str, Distance] = {
    "latent-l1": latent_l1,
    "latent-l2": latent_l2,
    "latent-cosine": latent_cosine,
    "pixel-l1": latent_l1,
}


def pixel_grid(x_BCTHW: Tensor, grid: tuple[int, int, int]) -> Tensor:
    """Pixels pooled onto the latent grid, one value a cell and colour: Appendix F of the paper.

    Space: the mean of each block. Time: slot 0 is frame 0, slot k is the mean of the g frames folded into it,
    g = (T - 1) / (t - 1).
    """
    t, h, w = grid
    T, H, W = x_BCTHW.shape[2:]
    g = (T - 1) // (t - 1) if t > 1 else 1
    if H % h or W % w or 1 + g * (t - 1) != T:
        raise ShapeError(f"pixels {describe(x_BCTHW)} do not fold onto a grid of {t}x{h}x{w} cells")
    x = x_BCTHW.float()
    x = x.reshape(*x.shape[:3], h, H // h, w, W // w).mean((4, 6))
    rest = x[:, :, 1:].unflatten(2, (t - 1, g)).mean(3) if t > 1 else x[:, :, 1:]
    return torch.cat([x[:, :, :1], rest], dim=2)
