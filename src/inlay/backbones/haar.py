# SPDX-License-Identifier: Apache-2.0
"""Video <-> wavelet bands of p x p x p blocks: the first and the last step of Cosmos, one matrix each.

Legend: B batch, C channels, T frames or blocks along time, H W height and width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Haar(nn.Module):
    """Every block of 3 colours and p^3 pixels becomes 3 p^3 numbers: log2(p) levels of the 3-D Haar transform.

    A level turns a 2 x 2 x 2 block into 8 bands (sum or difference along time, height, width; the mean first), and is
    applied to all bands of the level before. Bands are the slow index of a channel, colours the fast one.
    """

    forth: Tensor
    back: Tensor

    def __init__(self, patch: int) -> None:
        super().__init__()
        self.patch = patch
        bands = haar_matrix(patch)
        colours = torch.eye(3)
        self.register_buffer("forth", torch.kron(bands, colours), persistent=False)
        self.register_buffer("back", torch.kron(bands.t().contiguous() * patch**3, colours), persistent=False)

    def split(self, x_BCTHW: Tensor) -> Tensor:
        """[B * T/p, 3 p^3, H/p, W/p], channels last in memory."""
        p = self.patch
        B, C, T, H, W = x_BCTHW.shape
        blocks = x_BCTHW.reshape(B, C, T // p, p, H // p, p, W // p, p).permute(0, 2, 4, 6, 3, 5, 7, 1)
        y = F.linear(blocks.reshape(B * (T // p), H // p, W // p, C * p**3), self.forth.to(x_BCTHW.dtype))
        return y.permute(0, 3, 1, 2)

    def join(self, y: Tensor, T: int) -> Tensor:
        """The inverse: T blocks along time to [B, 3, T p, H, W]."""
        p = self.patch
        blocks = F.linear(y.permute(0, 2, 3, 1), self.back.to(y.dtype))
        _, H, W, _ = blocks.shape
        blocks = blocks.reshape(-1, T, H, W, p, p, p, 3).permute(0, 7, 1, 4, 2, 5, 3, 6)
        return blocks.reshape(-1, 3, T * p, H * p, W * p)


def haar_matrix(patch: int) -> Tensor:
    """[p^3 bands, p^3 pixels (t, y, x)]; its first row is the mean of the block."""
    pair = torch.tensor([[0.5, 0.5], [0.5, -0.5]], dtype=torch.float64)
    level = torch.einsum("ai,bj,ck->abcijk", pair, pair, pair)  # (band along t, y, x), (pixel t, y, x)
    matrix, side = torch.ones(1, 1, 1, 1, dtype=torch.float64), 1
    while (
        side < patch
    ):  # the new level sees whole blocks of the levels before as its pixels: its offset is the slow one
        matrix = torch.einsum("abcijk,ntyx->abcnitjykx", level, matrix)
        side *= 2
        matrix = matrix.reshape(-1, side, side, side)
    return matrix.reshape(patch**3, patch**3).float()
