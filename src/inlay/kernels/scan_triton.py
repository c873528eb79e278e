# SPDX-License-Identifier: Apache-2.0
"""Latents in, keep mask and last reference out: the whole scan over time in one Triton kernel that reads z once.

A program owns some places of one clip and walks through their slots with the reference in registers. Channels are
added in pairs of neighbours, pairs of pairs and so on, as `masking.criteria.tree_sum` adds them: the same additions in
the same order, hence the same bits. Products are taken in double precision, where they are exact, so that a compiler
that fuses them with an addition changes nothing.

Legend: P places of one clip (H*W), N channels padded to a power of two.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CODES = {"latent-l1": 0, "latent-l2": 1, "latent-cosine": 2}
TILE = 512  # numbers of one slot that a program of one warp holds: 16 a thread, and no barrier in the tree


@triton.jit
def tree(x_PN, P: tl.constexpr, LEVELS: tl.constexpr):
    for _ in tl.static_range(LEVELS):
        even, odd = tl.split(tl.reshape(x_PN, (P, x_PN.shape[1] // 2, 2)))
        x_PN = even + odd
    return tl.reshape(x_PN, (P,))


@triton.jit
def distance(a_PN, b_PN, C: tl.constexpr, CODE: tl.constexpr, P: tl.constexpr, LEVELS: tl.constexpr):
    if CODE == 0:
        return tree(tl.abs(a_PN - b_PN), P, LEVELS) * (1.0 / C)
    if CODE == 1:
        d = (a_PN - b_PN).to(tl.float64)
        return tl.sqrt(tree(d * d, P, LEVELS) * (1.0 / C)).to(tl.float32)
    a, b = a_PN.to(tl.float64), b_PN.to(tl.float64)
    norms = tl.sqrt(tree(a * a, P, LEVELS)) * tl.sqrt(tree(b * b, P, LEVELS))
    score = (1.0 - tree(a * b, P, LEVELS) / tl.where(norms > 1e-12, norms, 1e-12)).to(tl.float32)
    same = tl.min((a_PN == b_PN).to(tl.int32), axis=1) == 1
    return tl.where(same | (score < 0), 0.0, score)


@triton.jit
def scan_kernel(
    z_ptr, start_ptr, keep_ptr, end_ptr, tau, places, blocks,
    z_b, z_c, z_t, z_p, start_b, start_c, start_p, end_b, end_c, end_p,
    C: tl.constexpr, T: tl.constexpr, CODE: tl.constexpr, PREVIOUS: tl.constexpr, STARTED: tl.constexpr,
    P: tl.constexpr, N: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    clip = (tl.program_id(0) // blocks).to(tl.int64)
    place = (tl.program_id(0) % blocks) * P + tl.arange(0, P)
    channel = tl.arange(0, N)
    inside = place < places
    there = inside[:, None] & (channel < C)[None, :]
    z_at = z_ptr + clip * z_b + place[:, None].to(tl.int64) * z_p + channel[None, :] * z_c
    keep_at = keep_ptr + clip * T * places + place
    z = tl.load(z_at, mask=there, other=0.0)
    if STARTED:
        start_at = start_ptr + clip * start_b + place[:, None].to(tl.int64) * start_p + channel[None, :] * start_c
        reference = tl.load(start_at, mask=there, other=0.0).to(tl.float32)
    else:
        reference = z.to(tl.float32)
        tl.store(keep_at, tl.full((P,), 1, tl.int8), mask=inside)
        z = tl.load(z_at + z_t, mask=there & (T > 1), other=0.0)
    for t in range(0 if STARTED else 1, T):
        ahead = tl.load(z_at + (t + 1) * z_t, mask=there & (t + 1 < T), other=0.0)  # on its way while this one is used
        now = z.to(tl.float32)
        kept = distance(now, reference, C, CODE, P, LEVELS) >= tau
        tl.store(keep_at + t * places, kept.to(tl.int8), mask=inside)
        reference = now if PREVIOUS else tl.where(kept[:, None], now, reference)
        z = ahead
    end_at = end_ptr + clip * end_b + place[:, None].to(tl.int64) * end_p + channel[None, :] * end_c
    tl.store(end_at, reference.to(end_ptr.dtype.element_ty), mask=there)


def launch(
    z_BCTHW: Tensor, start_BCHW: Tensor | None, *, criterion: str, previous: bool, tau: float
) -> tuple[Tensor, Tensor]:
    """[B, T, H, W] bool, and what the next slot is to be compared with."""
    B, C, T, H, W = z_BCTHW.shape
    z = places_last(z_BCTHW)
    start = None if start_BCHW is None else places_last(start_BCHW)
    keep = torch.empty(B, T, H, W, dtype=torch.bool, device=z.device)
    end = torch.empty_like(z[:, :, 0])
    levels = (C - 1).bit_length()
    block = max(16, TILE >> levels)
    blocks = triton.cdiv(H * W, block)
    started = end if start is None else start
    scan_kernel[(B * blocks,)](
        z, started, keep.view(torch.int8), end, float(tau), H * W, blocks,
        z.stride(0), z.stride(1), z.stride(2), z.stride(3), *started.stride(), *end.stride(),
        C=C, T=T, CODE=CODES[criterion], PREVIOUS=previous, STARTED=start is not None,
        P=block, N=1 << levels, LEVELS=levels, num_warps=max(1, (block << levels) // TILE),
    )  # fmt: skip
    return keep, end.unflatten(2, (H, W))


def places_last(x: Tensor) -> Tensor:
    """[..., H, W] seen as [..., P]; copied only where rows do not follow one another."""
    return x.flatten(-2) if x.stride(-2) == x.shape[-1] * x.stride(-1) else x.contiguous().flatten(-2)
