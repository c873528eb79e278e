# SPDX-License-Identifier: Apache-2.0
"""Cosmos's convolutions over time with two frames a program, for comparison with those of the library.

Three taps of two frames see four frames, and share the weights: fewer numbers travel to a program for each product. For
cosmos_profile.py, which times both.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inlay.kernels.norm_triton import MOMENTS, remember_moments
from inlay.kernels.taps_triton import Taps, Tile, finish

PAIRS = (Tile(128, 128, 32, 8, 3), Tile(128, 128, 32, 8, 4), Tile(128, 128, 64, 8, 2))


@triton.jit
def pairs_kernel(
    x_ptr, past_ptr, w_ptr, bias_ptr, add_ptr, out_ptr, moments_ptr, T, cells,
    C: tl.constexpr, N: tl.constexpr, PAST: tl.constexpr, ADD: tl.constexpr, NORM: tl.constexpr, EVEN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Three taps over time, two frames a program: of the four frames that they see, each is read once."""
    tiles_m, tiles_n = tl.cdiv(cells, BM), tl.cdiv(N, BN)
    tile_n = tl.program_id(0) % tiles_n
    tile_m = tl.program_id(0) // tiles_n % tiles_m
    pair = tl.program_id(0) // (tiles_n * tiles_m)
    pairs = tl.cdiv(T, 2)
    clip, t = (pair // pairs).to(tl.int64), pair % pairs * 2
    row = tile_m * BM + tl.arange(0, BM)
    column = tile_n * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    size = cells * C
    now = x_ptr + (clip * T + t) * size
    before = x_ptr + (clip * T + tl.maximum(t - 1, 0)) * size
    oldest = x_ptr + (clip * T + tl.maximum(t - 2, 0)) * size
    after = x_ptr + (clip * T + tl.minimum(t + 1, T - 1)) * size
    if PAST:
        before = tl.where(t < 1, past_ptr + (clip * 2 + 1) * size, before)
        oldest = tl.where(t < 2, past_ptr + clip * 2 * size, oldest)
    place = row[:, None] * C + inner[None, :]
    weight = w_ptr + inner[:, None] * N + column[None, :]
    rows, columns = (row < cells)[:, None], (column < N)[None, :]
    one, two = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
    for k in range(0, C, BK):
        if EVEN:
            a, b = tl.load(oldest + k + place), tl.load(before + k + place)
            c, d = tl.load(now + k + place), tl.load(after + k + place)
            first, second = tl.load(weight + k * N), tl.load(weight + (C + k) * N)
            third = tl.load(weight + (2 * C + k) * N)
        else:
            a, b = tl.load(oldest + k + place, rows, 0.0), tl.load(before + k + place, rows, 0.0)
            c, d = tl.load(now + k + place, rows, 0.0), tl.load(after + k + place, rows, 0.0)
            first, second = tl.load(weight + k * N, columns, 0.0), tl.load(weight + (C + k) * N, columns, 0.0)
            third = tl.load(weight + (2 * C + k) * N, columns, 0.0)
        one = tl.dot(a, first, one)
        two = tl.dot(b, first, two)
        one = tl.dot(b, second, one)
        two = tl.dot(c, second, two)
        one = tl.dot(c, third, one)
        two = tl.dot(d, third, two)
    told, later = 2, 2
    if PAST:
        told, later = tl.minimum(t, 2), tl.minimum(t + 1, 2)
    made = clip * T + t
    finish(
        one, bias_ptr + told * N, add_ptr, out_ptr, moments_ptr, made, row, row, column, 0, tile_m, tile_n, cells,
        N, 1, ADD, NORM, EVEN, BM, BN,
    )  # fmt: skip
    if t + 1 < T:
        finish(
            two, bias_ptr + later * N, add_ptr, out_ptr, moments_ptr, made + 1, row, row, column, 0, tile_m, tile_n,
            cells, N, 1, ADD, NORM, EVEN, BM, BN,
        )  # fmt: skip


def convolve_pairs(
    y: Tensor, taps: Taps, T: int, tile: Tile, *, past_BPSC: Tensor | None = None, add: Tensor | None = None,
    norm: bool = False,
) -> Tensor:  # fmt: skip
    """`convolve` of three taps over time."""
    F, C, H, W = y.shape
    N = taps.weight.shape[-1]
    assert taps.kernel == (3, 1) and taps.stride == (1, 1) and taps.up == (1, 1)
    tile = tile.fitted(C, N)
    x = y.contiguous(memory_format=torch.channels_last)
    out = torch.empty(F, N, H, W, dtype=y.dtype, device=y.device, memory_format=torch.channels_last)
    tiles = triton.cdiv(H * W, tile.cells) * triton.cdiv(N, tile.channels_out)
    moments = torch.empty(F, tiles if norm else 0, MOMENTS, dtype=torch.float32, device=y.device)
    past = x if past_BPSC is None else past_BPSC.contiguous()
    more = out if add is None else add.contiguous(memory_format=torch.channels_last)
    pairs_kernel[(F // T * triton.cdiv(T, 2) * tiles,)](
        x, past, taps.weight, taps.bias, more, out, moments, T, H * W,
        C=C, N=N, PAST=past_BPSC is not None, ADD=add is not None, NORM=norm,
        EVEN=H * W % tile.cells == 0 and N % tile.channels_out == 0,
        BM=tile.cells, BN=tile.channels_out, BK=tile.channels_in, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if norm:
        remember_moments(out, moments)
    return out
