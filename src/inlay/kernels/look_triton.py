# SPDX-License-Identifier: Apache-2.0
"""What tells of cuts, in two kernels for the frames and two for the slots, where torch would launch some thirty.

    thumbs    sums of blocks of frames, whole numbers
    jumps     the median over a picture of how far a frame is from the one before, found bit by bit
    coarse    means of blocks of slots, added in double precision, so that the order of adding does not show
    changes   how far a slot is from the one before, and from that one moved by half a picture

Nothing here waits for the GPU. What the next chunk is compared with is written beside the rest: nobody copies it.

Legend: M columns of a program, Q numbers of a line of a block, P places, N channels, L numbers looked at together.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 2048  # numbers of a line, or of a block of a slot, that a program of `thumbs` and `coarse` reads together
COMPARED = 1024  # numbers of a slot that a program of `changes` compares together


@triton.jit
def thumbs_kernel(
    frames_ptr, thumbs_ptr, last_ptr, frames, rows, columns, tall, wide, f_b, f_f, f_h,
    STEPS: tl.constexpr, M: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    """M blocks of one row of blocks of one frame."""
    row = tl.program_id(0) % rows
    frame = tl.program_id(0) // rows
    clip, f = (frame // frames).to(tl.int64), frame % frames
    column, number = tl.program_id(1) * M + tl.arange(0, M), tl.arange(0, Q)
    there = (column < columns)[:, None] & (number < 3 * wide)[None, :]
    start = frames_ptr + clip * f_b + f.to(tl.int64) * f_f + (row * tall).to(tl.int64) * f_h
    at = start + column[:, None] * (3 * wide) + number[None, :]
    total = tl.zeros((M, Q), tl.int32)
    for y in tl.range(0, tall, loop_unroll_factor=8):
        total += tl.load(at + y * f_h, mask=there, other=0).to(tl.int32)
    place = (row * columns + column) * 3
    thumb = thumbs_ptr + frame.to(tl.int64) * (3 * rows * columns) + place
    last = last_ptr + clip * (3 * rows * columns) + place
    for colour in tl.static_range(3):
        own = tl.sum(tl.where((number % 3 == colour)[None, :], total, 0).to(tl.int64), axis=1)
        mean = (own * STEPS // (tall * wide)).to(tl.int32)
        tl.store(thumb + colour, mean, mask=column < columns)
        tl.store(last + colour, mean, mask=(column < columns) & (f == frames - 1))


@triton.jit
def jumps_kernel(
    thumbs_ptr, seen_ptr, out_ptr, frames, places,
    STARTED: tl.constexpr, BITS: tl.constexpr, WHOLE: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """One frame: the largest number that no more than half of the places fall short of is their median."""
    frame = tl.program_id(0)
    clip, f = (frame // frames).to(tl.int64), frame % frames
    place = tl.arange(0, P)
    there = place < places
    own = thumbs_ptr + frame.to(tl.int64) * (3 * places) + 3 * place
    other = own - tl.where(f > 0, 3 * places, 0)
    seen = seen_ptr + clip * (3 * places) + 3 * place
    moved = tl.zeros((P,), tl.int32)
    for colour in tl.static_range(3):
        before = tl.load(other + colour, mask=there, other=0)
        if STARTED:
            before = tl.where(f > 0, before, tl.load(seen + colour, mask=there & (f == 0), other=0))
        moved += tl.abs(tl.load(own + colour, mask=there, other=0) - before)
    median = tl.zeros((), tl.int32)
    for i in tl.static_range(BITS):
        more = median + (1 << (BITS - 1 - i))
        fewer = tl.sum((there & (moved < more)).to(tl.int32), axis=0)
        median = tl.where(fewer <= (places - 1) // 2, more, median)
    tl.store(out_ptr + frame, median.to(tl.float64) / WHOLE)


@triton.jit
def coarse_kernel(
    z_ptr, slots_ptr, last_ptr, C, T, H, W, z_b, z_c, z_t, z_h, z_w,
    SIDE: tl.constexpr, P: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """N channels of one block of one slot. Blocks overlap by a line where sides do not divide evenly."""
    block = tl.program_id(0) % (SIDE * SIDE)
    slot = tl.program_id(0) // (SIDE * SIDE)
    clip, t = (slot // T).to(tl.int64), slot % T
    y, x = block // SIDE, block % SIDE
    top, left = y * H // SIDE, x * W // SIDE
    tall, wide = ((y + 1) * H + SIDE - 1) // SIDE - top, ((x + 1) * W + SIDE - 1) // SIDE - left
    channel = tl.program_id(1) * N + tl.arange(0, N)
    own = z_ptr + clip * z_b + t.to(tl.int64) * z_t + channel[:, None].to(tl.int64) * z_c
    total = tl.zeros((N, P), tl.float64)
    for start in tl.range(0, tall * wide, P):
        place = start + tl.arange(0, P)
        at = (top + place // wide).to(tl.int64) * z_h + (left + place % wide).to(tl.int64) * z_w
        there = (channel < C)[:, None] & (place < tall * wide)[None, :]
        total += tl.load(own + at[None, :], mask=there, other=0.0).to(tl.float64)
    mean = tl.sum(total, axis=1) / (tall * wide)
    target = channel * (SIDE * SIDE) + block
    tl.store(slots_ptr + slot.to(tl.int64) * C * (SIDE * SIDE) + target, mean, mask=channel < C)
    tl.store(last_ptr + clip * C * (SIDE * SIDE) + target, mean, mask=(channel < C) & (t == T - 1))


@triton.jit
def changes_kernel(
    slots_ptr, seen_ptr, out_ptr, T, count, STARTED: tl.constexpr, SIDE: tl.constexpr, L: tl.constexpr
):  # fmt: skip
    """One slot."""
    slot = tl.program_id(0)
    clip, t = (slot // T).to(tl.int64), slot % T
    own = slots_ptr + slot.to(tl.int64) * count
    other = own - tl.where(t > 0, count, 0)
    seen = seen_ptr + clip * count
    changed, most = tl.zeros((L,), tl.float64), tl.zeros((L,), tl.float64)
    for start in tl.range(0, count, L):
        at = start + tl.arange(0, L)
        there = at < count
        y, x = at // SIDE % SIDE, at % SIDE
        elsewhere = at + ((y + SIDE // 2) % SIDE - y) * SIDE + (x + SIDE // 2) % SIDE - x
        now = tl.load(own + at, mask=there, other=0.0)
        near, far = tl.load(other + at, mask=there, other=0.0), tl.load(other + elsewhere, mask=there, other=0.0)
        if STARTED:
            first = there & (t == 0)
            near = tl.where(t > 0, near, tl.load(seen + at, mask=first, other=0.0))
            far = tl.where(t > 0, far, tl.load(seen + elsewhere, mask=first, other=0.0))
        changed += tl.abs(now - near)
        most += tl.abs(now - far)
    target = out_ptr + clip * (2 * T) + t
    tl.store(target, tl.sum(changed, axis=0) / count)
    tl.store(target + T, tl.sum(most, axis=0) / count)


def jumps(frames_BFHWC: Tensor, seen: Tensor | None, *, side: int, steps: int) -> tuple[Tensor, Tensor]:
    """[B, F] float64: how far each frame is from the one before, and the last one's blocks [B, 1, h, w, 3] int32.

    Args:
        frames_BFHWC: uint8, of three colours; lines may lie apart, as those of a crop do.
        seen: the blocks of the frame before the first; None: there is none.
        side: blocks a side, where a frame has as many lines.
        steps: of a grey level that blocks are kept in.
    """
    B, F, H, W, _ = frames_BFHWC.shape
    together = frames_BFHWC.stride()[3:] == (3, 1)
    frames = frames_BFHWC if together else frames_BFHWC.contiguous()
    rows, columns = min(side, H), min(side, W)
    thumbs = torch.empty(B, F, rows, columns, 3, dtype=torch.int32, device=frames.device)
    last = torch.empty(B, 1, rows, columns, 3, dtype=torch.int32, device=frames.device)
    out = torch.empty(B, F, dtype=torch.float64, device=frames.device)
    line = triton.next_power_of_2(W // columns * 3)
    block = max(1, min(triton.next_power_of_2(columns), TILE // line))
    with torch.cuda.device_of(frames):
        thumbs_kernel[(B * F * rows, triton.cdiv(columns, block))](
            frames, thumbs, last, F, rows, columns, H // rows, W // columns, *frames.stride()[:3],
            STEPS=steps, M=block, Q=line, num_warps=warps_for(block * line, each=16),
        )  # fmt: skip
        jumps_kernel[(B * F,)](
            thumbs, thumbs if seen is None else seen.contiguous(), out, F, rows * columns,
            STARTED=seen is not None, BITS=(3 * 255 * steps).bit_length(), WHOLE=3 * 127.5 * steps,
            P=triton.next_power_of_2(rows * columns), num_warps=1,
        )  # fmt: skip
    return out, last


def changes(z_BCTHW: Tensor, seen: Tensor | None, *, side: int) -> tuple[Tensor, Tensor]:
    """[B, T + T] float64: how far each slot is from the one before, and from that one moved by half a picture; and
    the last one's blocks [B, 1, C, side, side] float64.

    Args:
        z_BCTHW: in any layout.
        seen: the blocks of the slot before the first; None: there is none.
        side: blocks a side, an even number.
    """
    B, C, T, H, W = z_BCTHW.shape
    slots = torch.empty(B, T, C, side, side, dtype=torch.float64, device=z_BCTHW.device)
    last = torch.empty(B, 1, C, side, side, dtype=torch.float64, device=z_BCTHW.device)
    out = torch.empty(B, 2 * T, dtype=torch.float64, device=z_BCTHW.device)
    wide = min(16, triton.next_power_of_2(C))
    places = min(TILE // wide, triton.next_power_of_2(triton.cdiv(H, side) * triton.cdiv(W, side)))
    count = C * side * side
    together = min(COMPARED, triton.next_power_of_2(count))
    with torch.cuda.device_of(z_BCTHW):
        coarse_kernel[(B * T * side * side, triton.cdiv(C, wide))](
            z_BCTHW, slots, last, C, T, H, W, *z_BCTHW.stride(),
            SIDE=side, P=places, N=wide, num_warps=warps_for(places * wide, each=8),
        )  # fmt: skip
        changes_kernel[(B * T,)](
            slots, slots if seen is None else seen.contiguous(), out, T, count,
            STARTED=seen is not None, SIDE=side, L=together, num_warps=warps_for(together, each=4),
        )  # fmt: skip
    return out, last


def warps_for(numbers: int, *, each: int) -> int:
    """Warps for a program, of so many numbers a thread."""
    return max(1, min(8, numbers // (32 * each)))
