# SPDX-License-Identifier: Apache-2.0
"""The window blocks of LIT by its kernels, seven launches a block; Triton is imported on first use.

Legend: B batch, T slots, H W grid, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def fits(width: int, heads: int) -> bool:
    """Whether the kernels of window blocks take these sizes: powers of two, and heads of at least 32."""
    half = width // heads // 2
    return width & (width - 1) == 0 and half & (half - 1) == 0 and half >= 16


def window_blocks(blocks: Any, norm_out: nn.LayerNorm, h_BTHWD: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """norm_out of what the window blocks make of h, as `WindowBlock.forward` defines it; to rounding.

    The biases of the two products that add to h stay pending until h is next read, so the products add in place.
    """
    from inlay.kernels.lit_triton import attention, layer_norm, near_norm

    h = h_BTHWD.contiguous()
    pending: list[Tensor] = []
    for block in blocks:
        h, n = near_norm(h, pending, block.near, block.norm1)
        rows = h.view(-1, h.shape[-1])  # a view: products below add to h itself
        told = attention(block.qkv(n), rope, heads=block.heads, window=block.window, offset=block.offset)
        rows.addmm_(told.view_as(rows), block.proj.weight.t())
        n = layer_norm(h, [block.proj.bias], block.norm2).view_as(rows)
        rows.addmm_(activated(n, block.up), block.down.weight.t())
        pending = [block.proj.bias, block.down.bias]
    return layer_norm(h, pending, norm_out)


def activated(x_ND: Tensor, up: nn.Linear) -> Tensor:
    """gelu(up(x)); on CUDA in the product's own epilogue, whose gelu is the tanh one: 5e-4 off at most."""
    if x_ND.is_cuda:
        return torch._addmm_activation(up.bias, x_ND, up.weight.t(), use_gelu=True)
    return nn.functional.gelu(up(x_ND))
