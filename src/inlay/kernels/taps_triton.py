# SPDX-License-Identifier: Apache-2.0
"""Convolutions of Cosmos as one product each: no copy of what comes in, nothing left to add to what comes out.

    over time       the frames before a chunk are read where they lie; before a video stands its first frame
    down in space   zeros beyond the right and lower edge are not written first
    up in space     each cell becomes a square of four, and each corner is written to its place

Bias and residual are added before a number is rounded. Frames are [B*T, C, H, W], channels last in memory. A program
makes BM cells of BN output channels; for every tap of the kernel it reads its cells moved by that tap.

Legend: B clips, T frames, C channels in, N channels out, P frames of the past, K taps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

BM, BN, BK = 128, 256, 64  # cells, channels out, channels in of one step
FEW = 16  # channels in come in multiples of this
WARPS, STAGES, GROUP = 8, 3, 8  # GROUP: rows of tiles that share the channels out they have read


@triton.jit
def taps_kernel(
    x_ptr, past_ptr, w_ptr, bias_ptr, add_ptr, out_ptr, cells, T, H, W, T_IN, H_IN, W_IN,
    C: tl.constexpr, N: tl.constexpr, KT: tl.constexpr, KS: tl.constexpr, ST: tl.constexpr, SS: tl.constexpr,
    BEFORE: tl.constexpr, UP: tl.constexpr, PAST: tl.constexpr, ADD: tl.constexpr, WIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(cells, BM), tl.cdiv(N, BN)
    first = tl.program_id(0) // (GROUP * tiles_n) * GROUP
    high = tl.minimum(tiles_m - first, GROUP)
    within = tl.program_id(0) % (GROUP * tiles_n)
    corner = tl.program_id(1)
    down, right = corner // UP, corner % UP
    row = (first + within % high) * BM + tl.arange(0, BM)
    column = within // high * BN + tl.arange(0, BN)
    x, y, frame = row % W, (row // W) % H, row // (W * H)
    clip, t = frame // T, frame % T
    if WIDE:  # more numbers than 32 bits can count
        clip, frame = clip.to(tl.int64), frame.to(tl.int64)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(KT * KS * KS * (C // BK)):
        tap, k = step // (C // BK), step % (C // BK) * BK
        from_t = ST * t + tap // (KS * KS) - BEFORE
        from_y = SS * y + tap // KS % KS + down - (UP - 1)
        from_x = SS * x + tap % KS + right - (UP - 1)
        there = (from_y >= 0) & (from_y < H_IN) & (from_x >= 0) & (from_x < W_IN) & (row < cells)
        place = from_y * W_IN + from_x
        source = x_ptr + ((clip * T_IN + tl.maximum(from_t, 0)) * (H_IN * W_IN) + place) * C
        if PAST:
            earlier = past_ptr + ((clip * BEFORE + from_t + BEFORE) * (H_IN * W_IN) + place) * C
            source = tl.where(from_t < 0, earlier, source)
        a = tl.load(source[:, None] + k + inner[None, :], mask=there[:, None], other=0.0)
        rows = (corner * (KT * KS * KS) + tap) * C + k + inner
        b = tl.load(w_ptr + rows[:, None] * N + column[None, :], mask=(column < N)[None, :], other=0.0)
        total = tl.dot(a, b, total)
    inside = (row < cells)[:, None] & (column < N)[None, :]
    if PAST:  # a frame's bias follows how many of its taps lie in this chunk
        told = tl.minimum(ST * t + KT - 1 - BEFORE, KT - 1)
        bias = tl.load(bias_ptr + told[:, None] * N + column[None, :], mask=inside, other=0.0)
    else:
        bias = tl.load(bias_ptr + (KT - 1) * N + column, mask=column < N, other=0.0)[None, :]
    at = (((frame * H + y) * UP + down) * W + x) * UP + right
    place = at[:, None] * N + column[None, :]
    total += bias
    if ADD:
        total += tl.load(add_ptr + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=inside)


@dataclass(frozen=True, kw_only=True, eq=False)
class Taps:
    """A convolution in the form that the kernel reads."""

    weight: Tensor  # [corners, K, C, N]; K: over time, height, width
    bias: Tensor  # [KT, N] float32: row i is for frames of which i + 1 taps lie in the chunk
    kernel: tuple[int, int]  # over time, over height and over width
    stride: tuple[int, int] = (1, 1)
    up: int = 1

    @staticmethod
    def of(
        weight_NCTYX: Tensor, bias_N: Tensor, *, late_C: Tensor | None = None, stride: tuple[int, int] = (1, 1)
    ) -> Taps:
        """A convolution over time or over space.

        Args:
            weight_NCTYX: as torch has it, N times the corners where it makes more than one.
            late_C: the bias of the convolution before, which the frames of this chunk come without; those of the past
                have it.
        """
        N, C, KT, KS, _ = weight_NCTYX.shape
        taps = weight_NCTYX.permute(2, 3, 4, 1, 0).reshape(1, KT * KS * KS, C, N)
        bias = bias_N.float().expand(KT, -1)
        if late_C is not None:
            by_tap = torch.einsum("nct,c->tn", weight_NCTYX[..., 0, 0].float(), late_C.float())
            bias = bias + by_tap.flip(0).cumsum(0)
        return Taps(weight=taps.contiguous(), bias=bias.contiguous(), kernel=(KT, KS), stride=stride)

    @staticmethod
    def of_corners(weight_NCYX: Tensor, bias_N: Tensor, up: int) -> Taps:
        """A convolution of which every cell becomes a square of `up` times `up`, corner by corner."""
        N, C, K, _ = weight_NCYX.shape
        each = weight_NCYX.view(up * up, N // up**2, C, K * K).permute(0, 3, 2, 1).contiguous()
        return Taps(weight=each, bias=bias_N.float()[None].contiguous(), kernel=(1, K), up=up)


def convolve(y: Tensor, taps: Taps, T: int, *, past_BPSC: Tensor | None = None, add: Tensor | None = None) -> Tensor:
    """[B*T', N, H', W'] of [B*T, C, H, W], channels last in memory.

    Args:
        T: frames of a clip.
        past_BPSC: the frames before; without them the first frame stands before itself.
        add: added to the result, of its shape.
    """
    F, C, H_in, W_in = y.shape
    corners, _, _, N = taps.weight.shape
    (KT, KS), (ST, SS) = taps.kernel, taps.stride
    before = KT - 1 if past_BPSC is None else past_BPSC.shape[1]
    T_out = (T + before - KT) // ST + 1
    H, W = (n if SS == 1 else n // SS for n in (H_in, W_in))
    x = y.contiguous(memory_format=torch.channels_last)
    frames = F // T * T_out
    out = torch.empty(
        frames, N, H * taps.up, W * taps.up, dtype=y.dtype, device=y.device, memory_format=torch.channels_last
    )
    cells = frames * H * W
    past = x if past_BPSC is None else past_BPSC.contiguous()
    more = out if add is None else add.contiguous(memory_format=torch.channels_last)
    size_n, size_k = min(BN, max(16, triton.next_power_of_2(N))), min(BK, C & -C)  # steps share C evenly
    grid = (triton.cdiv(cells, BM) * triton.cdiv(N, size_n), corners)
    taps_kernel[grid](
        x, past, taps.weight, taps.bias, more, out, cells, T_out, H, W, T, H_in, W_in,
        C=C, N=N, KT=KT, KS=KS, ST=ST, SS=SS, BEFORE=before, UP=taps.up, PAST=past_BPSC is not None,
        ADD=add is not None, WIDE=max(x.numel(), out.numel()) >= 2**31, BM=BM, BN=size_n, BK=size_k, GROUP=GROUP,
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out
