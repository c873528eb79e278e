# SPDX-License-Identifier: Apache-2.0
"""Move kept cells to the front, in their order, in one Triton kernel beside one sum.

A program owns some places of one slot. Where its first kept cell goes is the number of cells kept before it: those of
earlier slots, which are summed first, and those of earlier places of its own slot, which it counts itself.

Legend: P places of a program, N channels padded to a power of two; B C T H W as elsewhere.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inlay.kernels.scan_triton import places_last

NUMBERS = 2048  # that a program moves at most
COUNTED = tl.constexpr(1024)  # places looked at together


@triton.jit
def pack_kernel(
    z_ptr, keep_ptr, kept_ptr, out_ptr, count_ptr, places, blocks, z_b, z_c, z_t, z_p: tl.constexpr,
    C: tl.constexpr, N: tl.constexpr, T: tl.constexpr, SLOTS: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0) % blocks
    slot = tl.program_id(0) // blocks
    t = slot % T
    clip = (slot // T).to(tl.int64)
    slots = tl.arange(0, SLOTS)
    before = tl.sum(tl.load(kept_ptr + clip * T + slots, mask=slots < t, other=0), axis=0)
    own = keep_ptr + slot.to(tl.int64) * places
    begin = block * P
    for start in range(0, begin, COUNTED):
        earlier = start + tl.arange(0, COUNTED)
        before += tl.sum((tl.load(own + earlier, mask=earlier < begin, other=0) != 0).to(tl.int64), axis=0)
    place = begin + tl.arange(0, P)
    kept = tl.load(own + place, mask=place < places, other=0) != 0
    target = before + tl.cumsum(kept.to(tl.int32), axis=0) - 1
    channel = tl.arange(0, N)
    moves = kept[:, None] & (channel < C)[None, :]
    z_at = z_ptr + clip * z_b + t.to(tl.int64) * z_t + place[:, None].to(tl.int64) * z_p + channel[None, :] * z_c
    out_at = out_ptr + (clip * T * places + target)[:, None] * C + channel[None, :]
    tl.store(out_at, tl.load(z_at, mask=moves, other=0.0), mask=moves)
    last = (t == T - 1) & (block == blocks - 1)
    tl.store(count_ptr + clip, before + tl.sum(kept.to(tl.int64), axis=0), mask=last)


def pack(z_BCTHW: Tensor, keep_BTHW: Tensor) -> tuple[Tensor, Tensor]:
    """[B, T * H * W, C] kept cells first, then whatever the memory held, and [B] int64 how many are kept."""
    B, C, T, H, W = z_BCTHW.shape
    z, keep = places_last(z_BCTHW), keep_BTHW.contiguous()
    packed = torch.empty(B, T * H * W, C, dtype=z.dtype, device=z.device)
    counts = torch.empty(B, dtype=torch.int64, device=z.device)
    wide = triton.next_power_of_2(C)
    block = max(16, min(128, NUMBERS // wide))
    blocks = triton.cdiv(H * W, block)
    pack_kernel[(B * T * blocks,)](
        z, keep.view(torch.int8), keep.flatten(2).sum(2), packed, counts, H * W, blocks, *z.stride(),
        C=C, N=wide, T=T, SLOTS=triton.next_power_of_2(T), P=block, num_warps=4,
    )  # fmt: skip
    return packed, counts
