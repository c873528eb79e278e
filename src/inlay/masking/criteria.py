# SPDX-License-Identifier: Apache-2.0
"""How far each cell is from its reference.

Legend: B batch, C channels, T slots, H W grid. Scores are float32 whatever the latents are, and additions have
one order, so that a decision depends neither on the precision of the run nor on the machine.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from inlay.errors import ShapeError
from inlay.types import describe

Distance = Callable[[Tensor, Tensor], Tensor]


def latent_l1(a_BCHW: Tensor, b_BCHW: Tensor) -> Tensor:
    """Mean absolute difference over channels: the paper's criterion."""
    return tree_sum((a_BCHW.float() - b_BCHW.float()).abs_()) * (1 / a_BCHW.shape[1])


def latent_l2(a_BCHW: Tensor, b_BCHW: Tensor) -> Tensor:
    """Root of the mean squared difference over channels, so that its scale is latent-l1's."""
    d = (a_BCHW.float() - b_BCHW.float()).double()
    return (tree_sum(d * d) * (1 / d.shape[1])).sqrt().float()


def latent_cosine(a_BCHW: Tensor, b_BCHW: Tensor) -> Tensor:
    """One minus the cosine of the angle between the two cells, in [0, 2]; equal cells are at distance zero."""
    a, b = a_BCHW.double(), b_BCHW.double()
    norms = tree_sum(a * a).sqrt() * tree_sum(b * b).sqrt()
    score = (1 - tree_sum(a * b) / torch.where(norms > 1e-12, norms, 1e-12)).float()
    return torch.where((a_BCHW == b_BCHW).all(1) | (score < 0), 0.0, score)


def tree_sum(x_BCHW: Tensor) -> Tensor:
    """[B, H, W]: channels added in pairs of neighbours, then pairs of pairs: one order on every device.

    A library's own sum adds in whatever order suits the machine, and a cell at the threshold would then be kept here
    and dropped there. Squares are summed in double precision, where a product of two float32 is exact and a compiler
    may fuse it with the addition without changing a bit.
    """
    while (C := x_BCHW.shape[1]) > 1:
        paired = x_BCHW[:, 0 : C - 1 : 2] + x_BCHW[:, 1::2]
        x_BCHW = torch.cat([paired, x_BCHW[:, -1:]], dim=1) if C % 2 else paired
    return x_BCHW[:, 0]


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
    rest = x[:, :, 1:].reshape(*x.shape[:2], t - 1, g, h, w).mean(3) if t > 1 else x[:, :, 1:]
    return torch.cat([x[:, :, :1], rest], dim=2)
