# SPDX-License-Identifier: Apache-2.0
"""Cosmos's convolutions over time with what they read fetched by the GPU's copy engine, for cosmos_profile.py.

Frames and weights are read as blocks by descriptors: no program computes addresses, and its registers are left to the
product. `lasting`: as many programs as processors, each of which makes tile after tile, so that what the next tile
needs is on its way while this one is written.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from inlay.kernels.norm_triton import MOMENTS, remember_moments
from inlay.kernels.taps_triton import Taps, Tile, finish


class Way(NamedTuple):
    tile: Tile
    lasting: bool = False


WAYS = (
    Way(Tile(128, 128, 64, 4, 3)),
    Way(Tile(128, 128, 64, 4, 4)),
    Way(Tile(128, 256, 64, 8, 3)),
    Way(Tile(128, 256, 64, 8, 4)),
    Way(Tile(256, 128, 64, 8, 3)),
    Way(Tile(128, 256, 64, 8, 3), lasting=True),
    Way(Tile(128, 256, 64, 8, 4), lasting=True),
    Way(Tile(256, 128, 64, 8, 4), lasting=True),
    Way(Tile(128, 128, 64, 8, 4), lasting=True),
)


@triton.jit
def block_kernel(
    x_desc, past_desc, w_desc, bias_ptr, add_ptr, out_ptr, moments_ptr, T, T_IN, cells,
    C: tl.constexpr, N: tl.constexpr, KT: tl.constexpr, ST: tl.constexpr, BEFORE: tl.constexpr, UP_T: tl.constexpr,
    ALONE: tl.constexpr, PAST: tl.constexpr, ADD: tl.constexpr, NORM: tl.constexpr, EVEN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """`taps_kernel` over time, its blocks fetched by descriptors."""
    tiles_m, tiles_n = tl.cdiv(cells, BM), tl.cdiv(N, BN)
    tile_n = tl.program_id(0) % tiles_n
    tile_m = tl.program_id(0) // tiles_n % tiles_m
    frame = tl.program_id(0) // (tiles_n * tiles_m)
    clip, t = frame // T, frame % T
    phase = tl.program_id(1)
    if ALONE and (t == 0) & (phase == 0):
        return
    steps: tl.constexpr = C // BK
    total = tl.zeros((BM, BN), tl.float32)
    oldest, begin = ST * t - BEFORE, 0
    if PAST:
        begin = tl.minimum(tl.maximum(-oldest, 0), KT)
        for step in range(begin * steps):
            tap, k = step // steps, step % steps * BK
            a = past_desc.load([(clip * BEFORE + BEFORE + oldest + tap) * cells + tile_m * BM, k])
            b = w_desc.load([(phase * KT + tap) * C + k, tile_n * BN])
            total = tl.dot(a, b, total)
    for step in range(begin * steps, KT * steps):
        tap, k = step // steps, step % steps * BK
        a = x_desc.load([(clip * T_IN + tl.maximum(oldest + tap, 0)) * cells + tile_m * BM, k])
        b = w_desc.load([(phase * KT + tap) * C + k, tile_n * BN])
        total = tl.dot(a, b, total)
    told = KT - 1
    if PAST:
        told = tl.minimum(oldest + KT - 1, KT - 1)
    made = clip * (T * UP_T - ALONE) + t * UP_T + phase - ALONE
    row, column = tile_m * BM + tl.arange(0, BM), tile_n * BN + tl.arange(0, BN)
    finish(
        total, bias_ptr + told * N, add_ptr, out_ptr, moments_ptr, made.to(tl.int64), row, row, column, 0, tile_m,
        tile_n, cells, N, 1, ADD, NORM, EVEN, BM, BN,
    )  # fmt: skip


@triton.jit
def lasting_kernel(
    x_desc, w_desc, bias_ptr, add_ptr, out_ptr, moments_ptr, T, frames, cells, programs,
    C: tl.constexpr, N: tl.constexpr, KT: tl.constexpr, BEFORE: tl.constexpr,
    ADD: tl.constexpr, NORM: tl.constexpr, EVEN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The beginning of a video, one frame for each; a program makes tile after tile."""
    tiles_m, tiles_n = tl.cdiv(cells, BM), tl.cdiv(N, BN)
    steps: tl.constexpr = C // BK
    for tile in tl.range(tl.program_id(0), frames * tiles_m * tiles_n, programs, flatten=True):
        tile_n = tile % tiles_n
        tile_m = tile // tiles_n % tiles_m
        frame = tile // (tiles_n * tiles_m)
        clip, t = frame // T, frame % T
        total = tl.zeros((BM, BN), tl.float32)
        for step in range(KT * steps):
            tap, k = step // steps, step % steps * BK
            a = x_desc.load([(clip * T + tl.maximum(t - BEFORE + tap, 0)) * cells + tile_m * BM, k])
            b = w_desc.load([tap * C + k, tile_n * BN])
            total = tl.dot(a, b, total)
        row, column = tile_m * BM + tl.arange(0, BM), tile_n * BN + tl.arange(0, BN)
        finish(
            total, bias_ptr + (KT - 1) * N, add_ptr, out_ptr, moments_ptr, frame.to(tl.int64), row, row, column, 0,
            tile_m, tile_n, cells, N, 1, ADD, NORM, EVEN, BM, BN,
        )  # fmt: skip


def convolve_blocks(
    y: Tensor, taps: Taps, T: int, way: Way, *, past_BPSC: Tensor | None = None, add: Tensor | None = None,
    norm: bool = False,
) -> Tensor:  # fmt: skip
    """`convolve` over time."""
    F, C, H, W = y.shape
    _, _, _, N = taps.weight.shape
    (KT, KS), (ST, SS), (up_t, up) = taps.kernel, taps.stride, taps.up
    assert (KS, SS, up) == (1, 1, 1)
    before = KT - 1 if past_BPSC is None else past_BPSC.shape[1]
    alone = int(up_t > 1 and past_BPSC is None)
    made = (T + before - KT) // ST + 1
    tile = way.tile.fitted(C, N)
    x = y.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).view(-1, C)
    frames = F // T * (made * up_t - alone)
    out = torch.empty(frames, N, H, W, dtype=y.dtype, device=y.device, memory_format=torch.channels_last)
    past = x if past_BPSC is None else past_BPSC.contiguous().view(-1, C)
    more = out if add is None else add.contiguous(memory_format=torch.channels_last)
    tiles = triton.cdiv(H * W, tile.cells) * triton.cdiv(N, tile.channels_out)
    moments = torch.empty(frames, tiles if norm else 0, MOMENTS, dtype=torch.float32, device=y.device)
    block = [tile.cells, tile.channels_in]
    weight = taps.weight.view(-1, N)
    x_desc = TensorDescriptor.from_tensor(x, block)
    w_desc = TensorDescriptor.from_tensor(weight, [tile.channels_in, tile.channels_out])
    even = H * W % tile.cells == 0 and N % tile.channels_out == 0
    shape = {"BM": tile.cells, "BN": tile.channels_out, "BK": tile.channels_in}
    speed = {"num_warps": tile.warps, "num_stages": tile.stages}
    if way.lasting and past_BPSC is None and ST == up_t == 1:
        programs = torch.cuda.get_device_properties(y.device).multi_processor_count if y.is_cuda else 3
        lasting_kernel[(min(programs, frames * tiles),)](
            x_desc, w_desc, taps.bias, more, out, moments, made, frames, H * W, programs,
            C=C, N=N, KT=KT, BEFORE=before, ADD=add is not None, NORM=norm, EVEN=even, **shape, **speed,
        )  # fmt: skip
    else:
        block_kernel[F // T * made * tiles, up_t](
            x_desc, TensorDescriptor.from_tensor(past, block), w_desc, taps.bias, more, out, moments, made, T, H * W,
            C=C, N=N, KT=KT, ST=ST, BEFORE=before, UP_T=up_t, ALONE=alone, PAST=past_BPSC is not None,
            ADD=add is not None, NORM=norm, EVEN=even, **shape, **speed,
        )  # fmt: skip
    if norm:
        remember_moments(out, moments)
    return out
