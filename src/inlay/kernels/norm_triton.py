# SPDX-License-Identifier: Apache-2.0
"""The norm of a frame and the SiLU after it in two kernels, with channels last in memory and left so.

Torch's own group norm first turns such a frame round, and hands it on with channels first: the convolution after it
turns it back. Here the frame is read twice and written once.

    moments   mean and squared distance from it of each part of a frame
    apply     those of the whole frame, put together; each number moved, stretched, and through SiLU if asked

Legend: P numbers of a step, STEPS of a part, PARTS of a frame (padded to a power of two), C channels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

STEP, STEPS = 4096, 4  # numbers that a program works on together, and how often


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
    place = moments_ptr + (frame * tl.num_programs(0) + part) * 2
    tl.store(place, mean)
    tl.store(place + 1, tl.maximum(distance, 0.0))


@triton.jit
def apply_kernel(
    x_ptr, moments_ptr, weight_ptr, bias_ptr, out_ptr, count, eps,
    SILU: tl.constexpr, C: tl.constexpr, PARTS: tl.constexpr, P: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    part, frame = tl.program_id(0), tl.program_id(1).to(tl.int64)
    parts = tl.num_programs(0)
    own = tl.arange(0, PARTS)
    place = moments_ptr + (frame * parts + own) * 2
    means = tl.load(place, mask=own < parts, other=0.0)
    distances = tl.load(place + 1, mask=own < parts, other=0.0)
    numbers = tl.maximum(tl.minimum(count - own * (P * STEPS), P * STEPS), 0).to(tl.float32)
    mean = tl.sum(means * numbers, axis=0) / count
    off = means - mean
    variance = (tl.sum(distances, axis=0) + tl.sum(numbers * off * off, axis=0)) / count
    scale = 1.0 / tl.sqrt(variance + eps)
    for step in tl.static_range(STEPS):
        at = part * (P * STEPS) + step * P + tl.arange(0, P)
        there = at < count
        x = tl.load(x_ptr + frame * count + at, mask=there, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + at % C).to(tl.float32)
        bias = tl.load(bias_ptr + at % C).to(tl.float32)
        y = (x - mean) * scale * weight + bias
        if SILU:
            y = y / (1.0 + tl.exp(-y))
        tl.store(out_ptr + frame * count + at, y.to(out_ptr.dtype.element_ty), mask=there)


def frame_norm(y_NCHW: Tensor, weight: Tensor, bias: Tensor, eps: float, *, silu: bool) -> Tensor:
    """[N, C, H, W], channels last in memory: each frame less its mean, over its deviation; then SiLU, if asked for."""
    y = y_NCHW.contiguous(memory_format=torch.channels_last)
    out = torch.empty_like(y)
    frames, channels, height, width = y.shape
    count = channels * height * width
    parts = triton.cdiv(count, STEP * STEPS)
    moments = torch.empty(frames, parts, 2, dtype=torch.float32, device=y.device)
    grid, sizes = (parts, frames), {"P": STEP, "STEPS": STEPS, "num_warps": 8}
    moments_kernel[grid](y, moments, count, **sizes)
    apply_kernel[grid](
        y, moments, weight, bias, out, count, eps, SILU=silu, C=channels, PARTS=triton.next_power_of_2(parts), **sizes
    )
    return out
