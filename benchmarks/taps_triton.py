# SPDX-License-Identifier: Apache-2.0
"""A convolution over space or over past frames as one product in Triton, to be timed against cuDNN.

Frames are [F, H, W, C] in memory. A program makes BM cells of BN output channels; for every tap of the kernel it reads
its cells moved by that tap. Outside of a frame stand zeros, before the first frame of a clip that frame itself, which
the convolution over time of Cosmos otherwise needs a copy of everything for. Bias and residual are added at the end;
where that is asked for, a program also leaves mean and squared distance of what it has made, for the norm that follows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def taps_kernel(
    x_ptr, w_ptr, bias_ptr, add_ptr, out_ptr, moments_ptr, cells, T, H, W,
    C: tl.constexpr, N: tl.constexpr, DT: tl.constexpr, DY: tl.constexpr, DX: tl.constexpr, ADD: tl.constexpr,
    SUM: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(cells, BM), tl.cdiv(N, BN)
    first = tl.program_id(0) // (GROUP * tiles_n) * GROUP
    high = tl.minimum(tiles_m - first, GROUP)
    within = tl.program_id(0) % (GROUP * tiles_n)
    tile_m, tile_n = first + within % high, within // high
    row = tile_m * BM + tl.arange(0, BM)
    column = tile_n * BN + tl.arange(0, BN)
    x, y, frame = row % W, (row // W) % H, row // (W * H)
    t = frame % T
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(DT * DY * DX * (C // BK)):
        tap, k = step // (C // BK), step % (C // BK) * BK
        dt, dy, dx = tap // (DY * DX) - (DT - 1), tap // DX % DY - DY // 2, tap % DX - DX // 2
        source = frame - t + tl.maximum(t + dt, 0)
        there = (y + dy >= 0) & (y + dy < H) & (x + dx >= 0) & (x + dx < W) & (row < cells)
        at = ((source * H + y + dy) * W + x + dx) * C + k
        a = tl.load(x_ptr + at[:, None] + inner[None, :], mask=there[:, None], other=0.0)
        b = tl.load(w_ptr + (tap * C + k + inner)[:, None] * N + column[None, :], mask=(column < N)[None, :], other=0.0)
        total = tl.dot(a, b, total)
    total += tl.load(bias_ptr + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
    place = row[:, None] * N + column[None, :]
    inside = (row < cells)[:, None] & (column < N)[None, :]
    if ADD:
        total += tl.load(add_ptr + place, mask=inside, other=0.0).to(tl.float32)
    made = total.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + place, made, mask=inside)
    if SUM:  # tiles lie in one frame and are whole
        seen = made.to(tl.float32)
        mean = tl.sum(seen) / (BM * BN)
        off = seen - mean
        target = moments_ptr + (tile_m * tiles_n + tile_n) * 2
        tl.store(target, mean)
        tl.store(target + 1, tl.sum(off * off))


CONFIGS = {  # BM, BN, BK, warps, stages
    "128x256x64": (128, 256, 64, 8, 3),
    "128x128x64": (128, 128, 64, 8, 4),
    "256x128x64": (256, 128, 64, 8, 3),
}


def taps_of(weight: Tensor) -> Tensor:
    """[taps, C, N] of a convolution's [N, C, DT, DY, DX]."""
    return weight.permute(2, 3, 4, 1, 0).reshape(-1, weight.shape[1], weight.shape[0]).contiguous()


def convolve(
    x_FHWC: Tensor, taps: Tensor, bias: Tensor, frames: int, size: tuple[int, int, int], *, config: str,
    add_FHWN: Tensor | None = None, sums: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """[F, H, W, N]; clips of `frames` frames, a kernel of `size` taps over time, height and width.

    Args:
        add_FHWN: added to the result.
        sums: also return [F, parts, 2], mean and squared distance from it of each part of a frame; None where the
            tiles do not fit into frames.
    """
    F, H, W, C = x_FHWC.shape
    N = taps.shape[2]
    BM, BN, BK, warps, stages = CONFIGS[config]
    BN, BK = min(BN, max(16, triton.next_power_of_2(N))), min(BK, C & -C)  # steps must share C evenly
    out = torch.empty(F, H, W, N, dtype=x_FHWC.dtype, device=x_FHWC.device)
    cells, parts = F * H * W, triton.cdiv(H * W, BM) * triton.cdiv(N, BN)
    sums = sums and (H * W) % BM == 0 and N % BN == 0
    moments = torch.empty(F, parts, 2, dtype=torch.float32, device=x_FHWC.device) if sums else None
    grid = (triton.cdiv(cells, BM) * triton.cdiv(N, BN),)
    taps_kernel[grid](
        x_FHWC, taps, bias, out if add_FHWN is None else add_FHWN, out, out if moments is None else moments,
        cells, frames, H, W, C=C, N=N, DT=size[0], DY=size[1], DX=size[2], ADD=add_FHWN is not None, SUM=sums,
        BM=BM, BN=BN, BK=BK, GROUP=8, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out, moments
