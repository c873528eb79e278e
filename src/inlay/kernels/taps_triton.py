# SPDX-License-Identifier: Apache-2.0
"""Convolutions of Cosmos as one product each: no copy of what comes in, nothing left to add to what comes out.

    over time       the frames before a chunk are read where they lie; before a video stands its first frame
    up in time      each frame becomes two, which see it and the frame before
    down in space   zeros beyond the right and lower edge are not written first
    up in space     each cell becomes a square of four, and each corner is written to its place

Bias and residual are added before a number is rounded. Where a norm follows, the moments of what was made are left for
it. Frames are [B*T, C, H, W], channels last in memory. A program makes BM cells of one frame, BN output channels of
each; for every tap of the kernel it reads its cells moved by that tap.

Legend: B clips, T frames, C channels in, N channels out, P frames of the past, K taps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from inlay.kernels.norm_triton import MOMENTS, remember_moments

FEW = 16  # channels in come in multiples of this


class Tile(NamedTuple):
    """What a program makes, and how."""

    cells: int = 128
    channels_out: int = 256
    channels_in: int = 64  # of one step
    warps: int = 8
    stages: int = 3

    def fitted(self, channels_in: int, channels_out: int) -> Tile:
        """No wider than what is made, and with steps that share the channels evenly."""
        wide = min(self.channels_out, max(FEW, triton.next_power_of_2(channels_out)))
        return self._replace(channels_out=wide, channels_in=min(self.channels_in, channels_in & -channels_in))


TILE = Tile()


@triton.jit
def taps_kernel(
    x_ptr, past_ptr, w_ptr, bias_ptr, add_ptr, out_ptr, moments_ptr, T, H, W, T_IN, H_IN, W_IN,
    C: tl.constexpr, N: tl.constexpr, KT: tl.constexpr, KS: tl.constexpr, ST: tl.constexpr, SS: tl.constexpr,
    BEFORE: tl.constexpr, UP_T: tl.constexpr, UP: tl.constexpr, ALONE: tl.constexpr, PAST: tl.constexpr,
    ADD: tl.constexpr, NORM: tl.constexpr, EVEN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    cells = H * W
    tiles_m, tiles_n = tl.cdiv(cells, BM), tl.cdiv(N, BN)
    tile_n = tl.program_id(0) % tiles_n
    tile_m = tl.program_id(0) // tiles_n % tiles_m
    frame = tl.program_id(0) // (tiles_n * tiles_m)
    clip, t = (frame // T).to(tl.int64), frame % T
    corner = tl.program_id(1)
    down, right, phase = corner // UP % UP, corner % UP, corner % UP_T
    if ALONE and (t == 0) & (phase == 0):  # the first frame of a video becomes one
        return
    row = tile_m * BM + tl.arange(0, BM)
    column = tile_n * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    y, x = row // W, row % W
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(KT * KS * KS * (C // BK)):
        tap, k = step // (C // BK), step % (C // BK) * BK
        from_t = ST * t + tap // (KS * KS) - BEFORE
        source = x_ptr + (clip * T_IN + tl.maximum(from_t, 0)) * (H_IN * W_IN) * C
        if PAST:
            earlier = past_ptr + (clip * BEFORE + from_t + BEFORE) * (H_IN * W_IN) * C
            source = tl.where(from_t < 0, earlier, source)
        if KS == 1 and SS == 1:
            place, there = row, row < cells
        else:
            from_y = SS * y + tap // KS % KS + down - (UP - 1)
            from_x = SS * x + tap % KS + right - (UP - 1)
            there = (from_y >= 0) & (from_y < H_IN) & (from_x >= 0) & (from_x < W_IN) & (row < cells)
            place = from_y * W_IN + from_x
        if EVEN and KS == 1 and SS == 1:
            a = tl.load(source + k + (place * C)[:, None] + inner[None, :])
        else:
            a = tl.load(source + k + (place * C)[:, None] + inner[None, :], mask=there[:, None], other=0.0)
        weight = w_ptr + ((corner * (KT * KS * KS) + tap) * C + k) * N
        if EVEN:
            b = tl.load(weight + inner[:, None] * N + column[None, :])
        else:
            b = tl.load(weight + inner[:, None] * N + column[None, :], mask=(column < N)[None, :], other=0.0)
        total = tl.dot(a, b, total)
    told = KT - 1
    if PAST:  # a frame's bias follows how many of its taps lie in this chunk
        told = tl.minimum(ST * t + KT - 1 - BEFORE, KT - 1)
    made = clip * (T * UP_T - ALONE) + t * UP_T + phase - ALONE
    finish(
        total, bias_ptr + told * N, add_ptr, out_ptr, moments_ptr, made, row,
        (y * UP + down) * (W * UP) + x * UP + right, column, corner % (UP * UP), tile_m, tile_n, cells,
        N, UP, ADD, NORM, EVEN, BM, BN,
    )  # fmt: skip


@triton.jit
def finish(
    total, bias_ptr, add_ptr, out_ptr, moments_ptr, made, row, place, column, corner, tile_m, tile_n, cells,
    N: tl.constexpr, UP: tl.constexpr, ADD: tl.constexpr, NORM: tl.constexpr, EVEN: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    """What is added, and where it is written; the moments of a tile."""
    at = (place * N)[:, None] + column[None, :]
    add_ptr += made * (cells * UP * UP) * N
    out_ptr += made * (cells * UP * UP) * N
    if EVEN:
        total += tl.load(bias_ptr + column)[None, :]
        if ADD:
            total += tl.load(add_ptr + at).to(tl.float32)
        tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty))
    else:
        inside = (row < cells)[:, None] & (column < N)[None, :]
        total += tl.load(bias_ptr + column, mask=column < N, other=0.0)[None, :]
        if ADD:
            total += tl.load(add_ptr + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), mask=inside)
        total = tl.where(inside, total, 0.0)
    if NORM:
        number = (tl.minimum(cells - tile_m * BM, BM) * tl.minimum(N - tile_n * BN, BN)).to(tl.float32)
        mean = tl.sum(total) / number
        distance = tl.maximum(tl.sum(total * total) - number * mean * mean, 0.0)
        tiles = tl.cdiv(cells, BM) * tl.cdiv(N, BN) * UP * UP
        part = (tile_m * tl.cdiv(N, BN) + tile_n) * (UP * UP) + corner
        own = moments_ptr + (made * tiles + part) * 3
        tl.store(own, mean)
        tl.store(own + 1, distance)
        tl.store(own + 2, number)


@dataclass(frozen=True, kw_only=True, eq=False)
class Taps:
    """A convolution in the form that the kernel reads."""

    weight: Tensor  # [corners, K, C, N]; K: over time, height, width
    bias: Tensor  # [KT, N] float32: row i is for frames of which i + 1 taps lie in the chunk
    kernel: tuple[int, int]  # over time, over height and over width
    stride: tuple[int, int] = (1, 1)
    up: tuple[int, int] = (1, 1)  # frames that one becomes; height and width of the square that a cell becomes

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
        return Taps(weight=each, bias=bias_N.float()[None].contiguous(), kernel=(1, K), up=(1, up))

    @staticmethod
    def of_phases(weight_UNCT: Tensor, bias_N: Tensor) -> Taps:
        """A convolution over time of which every frame becomes U."""
        U, _, _, KT = weight_UNCT.shape
        each, bias = weight_UNCT.permute(0, 3, 2, 1).contiguous(), bias_N.float().expand(KT, -1).contiguous()
        return Taps(weight=each, bias=bias, kernel=(KT, 1), up=(U, 1))


def convolve(
    y: Tensor, taps: Taps, T: int, *, past_BPSC: Tensor | None = None, add: Tensor | None = None, norm: bool = False
) -> Tensor:
    """[B*T', N, H', W'] of [B*T, C, H, W], channels last in memory.

    Args:
        T: frames of a clip.
        past_BPSC: the frames before; without them the first frame stands before itself.
        add: added to the result, of its shape.
        norm: a norm of these frames follows, and finds their moments taken.
    """
    F, C, H_in, W_in = y.shape
    _, _, _, N = taps.weight.shape
    (KT, KS), (ST, SS), (up_t, up) = taps.kernel, taps.stride, taps.up
    before = KT - 1 if past_BPSC is None else past_BPSC.shape[1]
    alone = int(up_t > 1 and past_BPSC is None)
    made = (T + before - KT) // ST + 1
    H, W = (n if SS == 1 else n // SS for n in (H_in, W_in))
    x = y.contiguous(memory_format=torch.channels_last)
    frames = F // T * (made * up_t - alone)
    out = torch.empty(frames, N, H * up, W * up, dtype=y.dtype, device=y.device, memory_format=torch.channels_last)
    past = x if past_BPSC is None else past_BPSC.contiguous()
    more = out if add is None else add.contiguous(memory_format=torch.channels_last)
    tile = TILE.fitted(C, N)
    tiles = triton.cdiv(H * W, tile.cells) * triton.cdiv(N, tile.channels_out)
    moments = torch.empty(frames, tiles * up**2 if norm else 0, MOMENTS, dtype=torch.float32, device=y.device)
    taps_kernel[F // T * made * tiles, up_t * up**2](
        x, past, taps.weight, taps.bias, more, out, moments, made, H, W, T, H_in, W_in,
        C=C, N=N, KT=KT, KS=KS, ST=ST, SS=SS, BEFORE=before, UP_T=up_t, UP=up, ALONE=alone,
        PAST=past_BPSC is not None, ADD=add is not None, NORM=norm,
        EVEN=H * W % tile.cells == 0 and N % tile.channels_out == 0,
        BM=tile.cells, BN=tile.channels_out, BK=tile.channels_in, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if norm:
        remember_moments(out, moments)
    return out
