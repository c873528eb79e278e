# SPDX-License-Identifier: Apache-2.0
"""A 3x3 convolution with a quarter of the multiplications: Winograd's F(4x4, 3x3) on a CPU.

    tiles of 6x6 ── B'dB ──► 36 matrix products [tiles, C] x [C, O] ── A'mA ──► tiles of 4x4

The library convolution runs near the CPU's peak, so only fewer operations can beat it. Rounding differs by about
4e-6 of the result. Convolutions that may be rounded to fewer bits run in 16 or 8 instead where the CPU has instructions
for that: in three quarters or half of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.kernels import bf16, int8
from inlay.kernels.prepared import prepared
from inlay.kernels.rule import Name, may_run

TILE, READ = 4, 6  # outputs and inputs a side of one tile
FEW = 16  # rows of a product; of fewer the library shares sums between threads, and last bits depend on their number
AT_ONCE = 64  # tiles transformed together: few enough to stay in the cache, enough for a good matrix product
NARROWEST = 64  # channels; below that transforms cost more than they save
_B = [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0],
      [0, 4, 0, -5, 0, 1]]  # fmt: skip
_G = [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6],
      [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]]  # fmt: skip
_A = [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]
INPUT = torch.kron(torch.tensor(_B, dtype=torch.float32), torch.tensor(_B, dtype=torch.float32))  # [36, 36]
OUTPUT = torch.kron(torch.tensor(_A, dtype=torch.float32), torch.tensor(_A, dtype=torch.float32))  # [16, 36]


Bits = Literal[32, 16, 8]


class Conv3x3(nn.Conv2d):
    """3x3 with a border of one; its parameters are those of nn.Conv2d.

    Args:
        bits: the fewest that factors may be rounded to without a trace in what becomes of the answer.
    """

    def __init__(self, channels: int, outputs: int, *, bits: Bits = 32) -> None:
        super().__init__(channels, outputs, 3, padding=1)
        self.bits = bits

    def forward(self, x_NCHW: Tensor, silu: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """The convolution, or `silu` of it, which in 8 bits is part of the product."""
        if self.bits == 8 and self.is_quick(x_NCHW, "int8"):
            return int8.convolve(x_NCHW, int8.packed(self), after="none" if silu is None else "swish")
        y_NCHW = self.convolved(x_NCHW)
        return y_NCHW if silu is None else silu(y_NCHW)

    def convolved(self, x_NCHW: Tensor) -> Tensor:
        if not self.is_quick(x_NCHW, "winograd"):
            return self.plain(x_NCHW)
        if self.bits <= 16 and self.is_quick(x_NCHW, "bf16"):
            return bf16.convolve(x_NCHW, self)
        return winograd(x_NCHW.permute(0, 2, 3, 1), prepared(self, kernels_of), self.bias).permute(0, 3, 1, 2)

    def plain(self, x_NCHW: Tensor) -> Tensor:
        """As nn.Conv2d has it; a picture of a few places gets columns of zeros, as its border is anyway."""
        batch, _, height, width = x_NCHW.shape
        if x_NCHW.device.type != "cpu" or batch * height * width >= FEW:
            return super().forward(x_NCHW)
        wider = F.pad(x_NCHW, (0, -(-FEW // (batch * height)) - width))
        return super().forward(wider)[..., :width]

    def is_quick(self, x_NCHW: Tensor, name: Name) -> bool:
        tensors = (x_NCHW, self.weight) if self.bias is None else (x_NCHW, self.weight, self.bias)
        return self.gains(x_NCHW) and may_run(name, tensors=tensors)

    def gains(self, x_NCHW: Tensor) -> bool:
        """Whether weights stay as they are, and channels and picture are large enough to be quicker."""
        wide = min(self.in_channels, self.out_channels) >= NARROWEST
        return not self.training and wide and min(x_NCHW.shape[2:]) >= 2 * TILE


def kernels_of(conv: nn.Conv2d) -> Tensor:
    """[36, C, O]: the transformed weights."""
    return transform_weights(conv.weight.detach())


def transform_weights(w_OCHW: Tensor) -> Tensor:
    """[36, C, O], in double precision up to the last rounding: it is done once."""
    g = torch.tensor(_G, dtype=torch.float64)
    u = torch.einsum("ai,ocij,bj->abco", g, w_OCHW.double(), g)
    return u.flatten(0, 1).float().contiguous()


def winograd(x_NHWC: Tensor, kernels_36CO: Tensor, bias_O: Tensor | None) -> Tensor:
    """The convolution with a border of zeros; [N, H, W, C] to [N, H, W, O]."""
    N, H, W, C = x_NHWC.shape
    h, w = -(-H // TILE), -(-W // TILE)
    x = F.pad(x_NHWC, (0, 0, 1, 1 + w * TILE - W, 1, 1 + h * TILE - H))
    out = x.new_empty(N, h, TILE, w, TILE, kernels_36CO.shape[2])
    image, line, cell, _ = x.stride()
    rows = max(1, -(-AT_ONCE // w))
    for top in range(0, h, rows):
        n = min(rows, h - top)
        shape, strides = (READ, READ, N, n, w, C), (line, cell, image, TILE * line, TILE * cell, 1)
        tiles = x.as_strided(shape, strides, x.storage_offset() + TILE * top * line).reshape(READ * READ, -1)
        products = torch.bmm((INPUT @ tiles).view(READ * READ, -1, C), kernels_36CO)
        y = (OUTPUT @ products.view(READ * READ, -1)).view(TILE, TILE, N, n, w, -1)
        out[:, top : top + n] = y.permute(2, 3, 0, 4, 1, 5)
    out = out.view(N, h * TILE, w * TILE, -1)
    if bias_O is not None:
        out += bias_O
    return out[:, :H, :W]
