# SPDX-License-Identifier: Apache-2.0
"""The two ends of `plus` as one kernel each: the features its blocks read, and the latents made of what they predict.

Every cell looks up the slots kept last and next at its place by itself, so nothing is scanned, gathered or stored
between: what `hold`, `linear`, `age` and `until_kept` say is made where it is used.

Legend: P cells of a program, N channels padded to a power of two; B T H W as elsewhere.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inlay.kernels.scan_triton import places_last

CELLS = 32  # cells a program takes


@triton.jit
def kept_around(keep_ptr, clip, t, place, there, places, T: tl.constexpr):
    """The slots kept last and next, the own one included; -1 and T where there is none."""
    last, following = tl.full(t.shape, -1, tl.int32), tl.full(t.shape, T, tl.int32)
    for s in range(T):
        kept = tl.load(keep_ptr + (clip * T + s) * places + place, mask=there, other=0) != 0
        last = tl.where(kept & (s <= t), s, last)
        following = tl.where(kept & (s >= t) & (following == T), s, following)
    return last, following


@triton.jit
def features_kernel(
    z_ptr, keep_ptr, tau_ptr, mean_ptr, std_ptr, out_ptr, cells, places, z_b, z_c, z_t, z_p: tl.constexpr,
    C: tl.constexpr, N: tl.constexpr, T: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    cell = tl.program_id(0) * P + tl.arange(0, P)
    there = cell < cells
    clip, t, place = (cell // (T * places)).to(tl.int64), (cell // places) % T, cell % places
    last, following = kept_around(keep_ptr, clip, t, place, there, places, T)
    c = tl.arange(0, N)
    read = there[:, None] & (c < C)[None, :]
    at = z_ptr + (clip * z_b + place * z_p)[:, None] + c[None, :] * z_c
    before = tl.load(at + last[:, None] * z_t, mask=read & (last >= 0)[:, None], other=0.0).to(tl.float32)
    after = tl.load(at + following[:, None] * z_t, mask=read & (following < T)[:, None], other=0.0).to(tl.float32)
    gone, to_go = (t - last).to(tl.float32), (following - t).to(tl.float32)
    share = tl.where(following < T, gone / tl.maximum(gone + to_go, 1.0), 0.0)  # 0 where the cell itself is kept
    drawn = before + share[:, None] * (after - before)
    mean = tl.load(mean_ptr + c, mask=c < C, other=0.0).to(tl.float32)
    std = tl.load(std_ptr + c, mask=c < C, other=0.0).to(tl.float32)
    scale = 1.0 / tl.where(c < C, std, 1.0)
    row = out_ptr + cell.to(tl.int64) * (2 * C + 4)
    kind = out_ptr.dtype.element_ty
    tl.store(row[:, None] + c[None, :], ((before - mean[None, :]) * scale[None, :]).to(kind), mask=read)
    tl.store(row[:, None] + C + c[None, :], ((drawn - mean[None, :]) * scale[None, :]).to(kind), mask=read)
    tau = tl.load(tau_ptr + clip, mask=there, other=0.0) * C / tl.sum(std, axis=0)
    tl.store(row + 2 * C, (last == t).to(kind), mask=there)
    tl.store(row + 2 * C + 1, (gone / 4).to(kind), mask=there)
    tl.store(row + 2 * C + 2, (to_go / 4).to(kind), mask=there)
    tl.store(row + 2 * C + 3, tau.to(kind), mask=there)


@triton.jit
def finish_kernel(
    z_ptr, keep_ptr, change_ptr, std_ptr, out_ptr, cells, places, z_b, z_c, z_t, z_p: tl.constexpr,
    C: tl.constexpr, N: tl.constexpr, T: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    cell = tl.program_id(0) * P + tl.arange(0, P)
    there = cell < cells
    clip, t, place = (cell // (T * places)).to(tl.int64), (cell // places) % T, cell % places
    last, _ = kept_around(keep_ptr, clip, t, place, there, places, T)
    c = tl.arange(0, N)
    read = there[:, None] & (c < C)[None, :]
    at = z_ptr + (clip * z_b + place * z_p + last * z_t)[:, None] + c[None, :] * z_c
    held = tl.load(at, mask=read & (last >= 0)[:, None], other=0.0).to(tl.float32)
    own = cell[:, None].to(tl.int64) * C + c[None, :]
    change = tl.load(change_ptr + own, mask=read, other=0.0).to(tl.float32)
    std = tl.load(std_ptr + c, mask=c < C, other=0.0).to(tl.float32)
    out = tl.where((last == t)[:, None], held, held + change * std[None, :])
    tl.store(out_ptr + own, out.to(out_ptr.dtype.element_ty), mask=read)


def features(z_BCTHW: Tensor, keep_BTHW: Tensor, tau_B: Tensor, mean_C: Tensor, std_C: Tensor) -> Tensor:
    """[B, T, H, W, 2C + 4], as `PlusLit.features` gives them, to rounding."""
    out = z_BCTHW.new_empty(*keep_BTHW.shape, 2 * z_BCTHW.shape[1] + 4)
    run(features_kernel, z_BCTHW, keep_BTHW, tau_B.contiguous(), mean_C, std_C, out)
    return out


def finish(z_BCTHW: Tensor, keep_BTHW: Tensor, change_BTHWC: Tensor, std_C: Tensor) -> Tensor:
    """[B, C, T, H, W]: kept cells as they are, the others held and changed."""
    out = torch.empty_like(change_BTHWC, memory_format=torch.contiguous_format)
    run(finish_kernel, z_BCTHW, keep_BTHW, change_BTHWC.contiguous(), std_C, out)
    return out.permute(0, 4, 1, 2, 3)


def run(kernel: triton.JITFunction, z_BCTHW: Tensor, keep_BTHW: Tensor, *tensors: Tensor) -> None:
    _, C, T, H, W = z_BCTHW.shape
    z, cells = places_last(z_BCTHW), keep_BTHW.numel()
    kernel[(triton.cdiv(cells, CELLS),)](
        z, keep_BTHW.contiguous().view(torch.int8), *tensors, cells, H * W, *z.stride(),
        C=C, N=1 << (C - 1).bit_length(), T=T, P=CELLS, num_warps=1 if C <= 16 else 4,
    )  # fmt: skip
