# SPDX-License-Identifier: Apache-2.0
"""The three kernels that with the library's matrix products make a window block of LIT: neighbours, norm, attention.

    near_norm   h + depthwise 3x3 of h, and its norm            one pass in place of convolution, addition and norm
    norm        the norm of h
    attention   reads q, k, v where they lie, turns them, asks only for cells that exist

A bias that a matrix product left out (`bias_a`, `bias_b`) is added wherever h is read. Sums are float32.

Legend: P cells of a program, D width, M queries, K keys, e half a head, s cells a side of a window, o its offset.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
import triton
import triton.language as tl
from torch import Tensor

CELLS = 8  # cells a program of `near_norm` and `norm` takes
QUERIES, KEYS, WARPS, STAGES = 64, 64, 4, 2
LOG2E = 1.4426950408889634
TAPS: WeakKeyDictionary[torch.nn.Conv2d, tuple[object, Tensor]] = WeakKeyDictionary()


@triton.jit
def row(ptr, P: tl.constexpr, D: tl.constexpr):
    """[P, D]: the same D numbers for every cell, read where they are used: moving them between threads costs more."""
    return tl.load(tl.broadcast_to(ptr + tl.arange(0, D)[None, :], (P, D))).to(tl.float32)


@triton.jit
def normed(x_PD, gain_ptr, shift_ptr, P: tl.constexpr, D: tl.constexpr, EPS: tl.constexpr):
    centred = x_PD - (tl.sum(x_PD, axis=1) / D)[:, None]
    scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / D + EPS)
    return centred * scale[:, None] * row(gain_ptr, P, D) + row(shift_ptr, P, D)


@triton.jit
def biases(a_ptr, b_ptr, COUNT: tl.constexpr, P: tl.constexpr, D: tl.constexpr):
    total = tl.zeros((P, D), tl.float32)
    if COUNT > 0:
        total += row(a_ptr, P, D)
    if COUNT > 1:
        total += row(b_ptr, P, D)
    return total


@triton.jit
def near_norm_kernel(
    h_ptr, a_ptr, b_ptr, taps_ptr, bias_ptr, gain_ptr, shift_ptr, new_ptr, norm_ptr, cells, H, W,
    COUNT: tl.constexpr, EPS: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    cell = tl.program_id(0) * P + tl.arange(0, P)
    d = tl.arange(0, D)
    y, x = (cell // W) % H, cell % W
    there = cell < cells
    pending = biases(a_ptr, b_ptr, COUNT, P, D)
    at = cell[:, None].to(tl.int64) * D + d[None, :]
    total = tl.load(h_ptr + at, mask=there[:, None], other=0.0).to(tl.float32) + pending + row(bias_ptr, P, D)
    for tap in tl.static_range(9):
        dy, dx = tap // 3 - 1, tap % 3 - 1
        inside = there & (y + dy >= 0) & (y + dy < H) & (x + dx >= 0) & (x + dx < W)
        value = tl.load(h_ptr + at + (dy * W + dx) * D, mask=inside[:, None], other=0.0).to(tl.float32)
        total += tl.where(inside[:, None], value + pending, 0.0) * row(taps_ptr + tap * D, P, D)
    total = total.to(new_ptr.dtype.element_ty).to(tl.float32)  # the norm is that of what is stored
    tl.store(new_ptr + at, total.to(new_ptr.dtype.element_ty), mask=there[:, None])
    out = normed(total, gain_ptr, shift_ptr, P, D, EPS)
    tl.store(norm_ptr + at, out.to(norm_ptr.dtype.element_ty), mask=there[:, None])


@triton.jit
def norm_kernel(
    h_ptr, a_ptr, b_ptr, gain_ptr, shift_ptr, norm_ptr, cells,
    COUNT: tl.constexpr, EPS: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    cell = tl.program_id(0) * P + tl.arange(0, P)
    at = cell[:, None].to(tl.int64) * D + tl.arange(0, D)[None, :]
    there = (cell < cells)[:, None]
    x = tl.load(h_ptr + at, mask=there, other=0.0).to(tl.float32) + biases(a_ptr, b_ptr, COUNT, P, D)
    out = normed(x, gain_ptr, shift_ptr, P, D, EPS)
    tl.store(norm_ptr + at, out.to(norm_ptr.dtype.element_ty), mask=there)


@triton.jit
def turned(ptr, row, token, there, cos_ptr, sin_ptr, e, HALF: tl.constexpr):
    """Both halves of a head, turned by their positions."""
    a = tl.load(ptr + row[:, None] + e[None, :], mask=there[:, None], other=0.0)
    b = tl.load(ptr + row[:, None] + HALF + e[None, :], mask=there[:, None], other=0.0)
    place = token[:, None] * HALF + e[None, :]
    cos = tl.load(cos_ptr + place, mask=there[:, None], other=0.0)
    sin = tl.load(sin_ptr + place, mask=there[:, None], other=0.0)
    x, y = a.to(tl.float32), b.to(tl.float32)
    return (x * cos - y * sin).to(a.dtype), (x * sin + y * cos).to(a.dtype)


@triton.jit
def attention_kernel(
    qkv_ptr, cos_ptr, sin_ptr, out_ptr, scale, H, W, across, windows,
    T: tl.constexpr, S: tl.constexpr, OFFSET: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    M: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1)
    clip = (tl.program_id(2) // windows).to(tl.int64)
    window = tl.program_id(2) % windows
    top, left = (window // across) * S - OFFSET, (window % across) * S - OFFSET
    first_y, first_x = tl.maximum(top, 0), tl.maximum(left, 0)
    rows, columns = tl.minimum(top + S, H) - first_y, tl.minimum(left + S, W) - first_x
    ask = tl.program_id(0) * M + tl.arange(0, M)  # counts the cells that exist
    asked = ask < T * rows * columns
    if tl.program_id(0) * M < T * rows * columns:
        e = tl.arange(0, HALF)
        head_ptr = qkv_ptr + clip * T * H * W * 3 * D + head * 2 * HALF
        t, y, x = ask // (rows * columns), first_y + (ask // columns) % rows, first_x + ask % columns
        token = t * (S * S) + (y - top) * S + (x - left)
        row = (t * H + y) * W + x
        qa, qb = turned(head_ptr, row * (3 * D), token, asked, cos_ptr, sin_ptr, e, HALF)
        best = tl.full((M,), float("-inf"), tl.float32)
        total = tl.zeros((M,), tl.float32)
        out = tl.zeros((M, 2 * HALF), tl.float32)
        for start in range(0, T * S * S, K):
            key = start + tl.arange(0, K)
            read = key < T * S * S
            ky = tl.minimum(tl.maximum(top + (key // S) % S, 0), H - 1)  # beyond the border stands the border cell
            kx = tl.minimum(tl.maximum(left + key % S, 0), W - 1)
            at = (((key // (S * S)) * H + ky) * W + kx) * (3 * D)
            ka, kb = turned(head_ptr + D, at, key, read, cos_ptr, sin_ptr, e, HALF)
            both = tl.arange(0, 2 * HALF)
            v = tl.load(head_ptr + 2 * D + at[:, None] + both[None, :], mask=read[:, None], other=0.0)
            score = tl.dot(qa, tl.trans(ka), input_precision="ieee")
            score = tl.dot(qb, tl.trans(kb), score, input_precision="ieee") * scale
            score = tl.where(read[None, :], score, float("-inf"))
            higher = tl.maximum(best, tl.max(score, axis=1))
            weight = tl.exp2(score - higher[:, None])
            fade = tl.exp2(best - higher)
            total = total * fade + tl.sum(weight, axis=1)
            out = tl.dot(weight.to(v.dtype), v, out * fade[:, None], input_precision="ieee")
            best = higher
        both = tl.arange(0, 2 * HALF)
        place = (clip * T * H * W + row)[:, None] * D + head * 2 * HALF + both[None, :]
        tl.store(out_ptr + place, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask=asked[:, None])


def near_norm(
    h_BTHWD: Tensor, pending: list[Tensor], near: torch.nn.Conv2d, norm: torch.nn.LayerNorm
) -> tuple[Tensor, Tensor]:
    """(h + near(h), its norm), with the pending biases in both."""
    *_, H, W, D = h_BTHWD.shape
    cells = h_BTHWD.numel() // D
    new, out = torch.empty_like(h_BTHWD), torch.empty_like(h_BTHWD)
    a, b = padded(pending, norm.bias)
    near_norm_kernel[(triton.cdiv(cells, CELLS),)](
        h_BTHWD, a, b, taps(near), near.bias, norm.weight, norm.bias, new, out, cells, H, W,
        COUNT=len(pending), EPS=norm.eps, D=D, P=CELLS, num_warps=8 if D >= 256 else 4,
    )  # fmt: skip
    return new, out


def layer_norm(h_BTHWD: Tensor, pending: list[Tensor], norm: torch.nn.LayerNorm) -> Tensor:
    D = h_BTHWD.shape[-1]
    cells, out = h_BTHWD.numel() // D, torch.empty_like(h_BTHWD)
    a, b = padded(pending, norm.bias)
    norm_kernel[(triton.cdiv(cells, CELLS),)](
        h_BTHWD, a, b, norm.weight, norm.bias, out, cells, COUNT=len(pending), EPS=norm.eps, D=D, P=CELLS
    )
    return out


def taps(near: torch.nn.Conv2d) -> Tensor:
    """[9, D]: the weights of a depthwise 3x3 tap by tap, made once for weights that stay as they are."""
    w = near.weight
    mark = (w.data_ptr(), w.dtype, None if w.is_inference() else w._version)
    if near not in TAPS or TAPS[near][0] != mark:
        TAPS[near] = (mark, w.detach().view(-1, 9).t().contiguous())
    return TAPS[near][1]


def padded(pending: list[Tensor], any_one: Tensor) -> tuple[Tensor, Tensor]:
    """Two pointers; those beyond the count are not read."""
    a, b = [*pending, any_one, any_one][:2]
    return a, b


def attention(
    qkv_BTHWD: Tensor, rope: tuple[Tensor, Tensor], *, heads: int, window: int, offset: int,
    blocks: tuple[int, int, int, int] = (QUERIES, KEYS, WARPS, STAGES),
) -> Tensor:  # fmt: skip
    """[B, T, H, W, D]; `rope` are float32 tables [T * window * window, E / 2]."""
    B, T, H, W, D = qkv_BTHWD.shape
    D //= 3
    half = D // heads // 2
    out = torch.empty(B, T, H, W, D, dtype=qkv_BTHWD.dtype, device=qkv_BTHWD.device)
    down, across = (-(-(n + offset) // window) for n in (H, W))
    queries, keys, warps, stages = blocks
    grid = (triton.cdiv(T * min(window, H) * min(window, W), queries), heads, B * down * across)
    attention_kernel[grid](
        qkv_BTHWD, *rope, out, (2 * half) ** -0.5 * LOG2E, H, W, across, down * across,
        T=T, S=window, OFFSET=offset, D=D, HALF=half, M=queries, K=keys, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out
