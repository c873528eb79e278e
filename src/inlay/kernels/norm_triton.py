# SPDX-License-Identifier: Apache-2.0
"""The norm of a frame and the SiLU after it in two kernels, with channels last in memory and left so.

Torch's own group norm first turns such a frame round, and hands it on with channels first: the convolution after it
turns it back. Here the frame is read twice and written once.

    moments   mean, squared distance from it and count of each part of a frame
    apply     those of the whole frame, put together; each number moved, stretched, and through SiLU if asked

The kernel that makes a frame may have taken its moments already; then the frame is read once.

Legend: P numbers or R cells of a step, STEPS of a part, PARTS of a frame and WIDE channels (padded to a power of two),
C channels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

STEP, STEPS = 4096, 4  # numbers that a program works on together, and how often
MOMENTS = 3  # of a part: mean, squared distance from it, count
TAKEN = WeakTensorKeyDictionary()  # frames -> their moments, [frames, parts, MOMENTS]


@triton.jit
def moments_kernel(x_ptr, moments_ptr, count, P: tl.constexpr, STEPS: tl.constexpr):
    part, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    total = tl.zeros((P,), tl.float32)
    squares = tl.zeros((P,), tl.float32)
    begin = part * (P * STEPS)
    for step in tl.static_range(STEPS):
        at = begin + step * P + tl.arange(0, P)
        x = tl.load(x_ptr + frame * count + at, mask=at < count, other=0.0).to(tl.float32)
        total += x
        squares += x * x
    number = tl.minimum(count - begin, P * STEPS).to(tl.float32)
    mean = tl.sum(total, axis=0) / number
    distance = tl.sum(squares, axis=0) - number * mean * mean
    place = moments_ptr + (frame * tl.num_programs(0) + part) * 3
    tl.store(place, mean)
    tl.store(place + 1, tl.maximum(distance, 0.0))
    tl.store(place + 2, number)


@triton.jit
def apply_kernel(
    x_ptr, moments_ptr, weight_ptr, bias_ptr, out_ptr, cells, parts, eps,
    SILU: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr, PARTS: tl.constexpr, R: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    frame = tl.program_id(1).to(tl.int64)
    own = tl.arange(0, PARTS)
    place = moments_ptr + (frame * parts + own) * 3
    means = tl.load(place, mask=own < parts, other=0.0)
    distances = tl.load(place + 1, mask=own < parts, other=0.0)
    numbers = tl.load(place + 2, mask=own < parts, other=0.0)
    count = cells.to(tl.float32) * C
    mean = tl.sum(means * numbers, axis=0) / count
    off = means - mean
    variance = (tl.sum(distances, axis=0) + tl.sum(numbers * off * off, axis=0)) / count
    channel = tl.arange(0, WIDE)
    times = tl.load(weight_ptr + channel, mask=channel < C, other=0.0).to(tl.float32) / tl.sqrt(variance + eps)
    plus = tl.load(bias_ptr + channel, mask=channel < C, other=0.0).to(tl.float32) - mean * times
    for step in tl.static_range(STEPS):
        cell = (tl.program_id(0) * STEPS + step) * R + tl.arange(0, R)
        at = cell[:, None] * C + channel[None, :]
        there = (cell < cells)[:, None] & (channel < C)[None, :]
        x = tl.load(x_ptr + frame * cells * C + at, mask=there, other=0.0).to(tl.float32)
        y = x * times[None, :] + plus[None, :]
        if SILU:
            y = y / (1.0 + tl.exp(-y))
        tl.store(out_ptr + frame * cells * C + at, y.to(out_ptr.dtype.element_ty), mask=there)


def frame_norm(y_NCHW: Tensor, weight: Tensor, bias: Tensor, eps: float, *, silu: bool) -> Tensor:
    """[N, C, H, W], channels last in memory: each frame less its mean, over its deviation; then SiLU, if asked for."""
    y = y_NCHW.contiguous(memory_format=torch.channels_last)
    out = torch.empty_like(y)
    frames, channels, height, width = y.shape
    cells = height * width
    moments = TAKEN.get(y_NCHW)
    if moments is None:
        parts = triton.cdiv(channels * cells, STEP * STEPS)
        moments = torch.empty(frames, parts, MOMENTS, dtype=torch.float32, device=y.device)
        moments_kernel[parts, frames](y, moments, channels * cells, P=STEP, STEPS=STEPS, num_warps=8)
    parts, wide = moments.shape[1], triton.next_power_of_2(channels)
    rows = max(1, STEP // wide)
    apply_kernel[triton.cdiv(cells, rows * STEPS), frames](
        y, moments, weight, bias, out, cells, parts, eps,
        SILU=silu, C=channels, WIDE=wide, PARTS=triton.next_power_of_2(parts), R=rows, STEPS=STEPS, num_warps=8,
    )  # fmt: skip
    return out


def remember_moments(frames: Tensor, moments: Tensor) -> None:
    """So that a norm of these very frames need not take them; nobody may write to the frames meanwhile."""
    TAKEN[frames] = moments
