# SPDX-License-Identifier: Apache-2.0
"""Frames to pixels and back in one kernel each, where torch would pass over the picture three and seven times.

A frame's 256 grey levels have 256 pixel values: the kernel looks them up in a table that the plain function made, hence
the same bits. The way back adds, multiplies and rounds as the plain one does, each step on its own: a multiplication
fused with the addition after it would round once where torch rounds twice, so fusing is turned off.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LEVELS = 4096  # numbers of a program that looks up
ROW = 1024  # numbers of a row that a program rounds
WHOLE = tl.constexpr(2.0**23)  # above it float32 has whole numbers only: adding it rounds, ties to even


@triton.jit
def look_up_kernel(frames_ptr, table_ptr, out_ptr, count, P: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * P + tl.arange(0, P)
    there = at < count
    level = tl.load(frames_ptr + at, mask=there, other=0)
    tl.store(out_ptr + at, tl.load(table_ptr + level.to(tl.int32)), mask=there)


@triton.jit
def frames_kernel(
    x_ptr, out_ptr, frames, height, width, x_b, x_c, x_t, x_h, x_w, C: tl.constexpr, P: tl.constexpr
):  # fmt: skip
    """A piece of one row of one frame: numbers in the order in which they are written."""
    row = tl.program_id(0)
    y = row % height
    t = (row // height) % frames
    clip = row // (height * frames)
    at = tl.program_id(1) * P + tl.arange(0, P)
    there = at < C * width
    start = x_ptr + clip.to(tl.int64) * x_b + t.to(tl.int64) * x_t + y.to(tl.int64) * x_h
    place = start + (at % C).to(tl.int64) * x_c + (at // C).to(tl.int64) * x_w
    x = tl.load(place, mask=there, other=0.0).to(tl.float32)
    x = tl.minimum(tl.maximum(x, -1.0), 1.0)
    level = ((x + 1.0) * 127.5 + WHOLE) - WHOLE
    tl.store(out_ptr + row.to(tl.int64) * (C * width) + at, level.to(tl.int32).to(tl.uint8), mask=there)


def look_up(frames_BTHWC: Tensor, table: Tensor) -> Tensor:
    """[B, C, T, H, W]: the table's number for each grey level, laid in memory as the frames are."""
    out = torch.empty(frames_BTHWC.shape, dtype=table.dtype, device=table.device)
    count = out.numel()
    look_up_kernel[(triton.cdiv(count, LEVELS),)](frames_BTHWC, table, out, count, P=LEVELS, num_warps=8)
    return out.permute(0, 4, 1, 2, 3)


def frames_of(x_BCTHW: Tensor) -> Tensor:
    """[B, T, H, W, C] uint8; pixels may lie in any order and with gaps, such as those that a crop leaves."""
    B, C, T, H, W = x_BCTHW.shape
    out = torch.empty(B, T, H, W, C, dtype=torch.uint8, device=x_BCTHW.device)
    block = min(ROW, triton.next_power_of_2(C * W))
    frames_kernel[(B * T * H, triton.cdiv(C * W, block))](
        x_BCTHW, out, T, H, W, *x_BCTHW.stride(), C=C, P=block, num_warps=4, enable_fp_fusion=False
    )
    return out
