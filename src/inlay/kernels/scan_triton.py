# SPDX-License-Identifier: Apache-2.0
"""Latents in, keep mask and last reference out: the whole scan over time in one Triton kernel that reads z once.

A program owns some places of one clip and walks through their slots with the reference in registers. Channels are
added in pairs of neighbours, pairs of pairs and so on, as `masking.criteria.tree_sum` adds them: the same additions in
the same order, hence the same bits. Products are taken in double precision, where they are exact, so that a compiler
that fuses them with an addition changes nothing. That is dear, so criteria with products are first guessed in single
precision; a program in which a guess falls closer to tau than it can be off leaves a flag, and is run again exactly.

Legend: P places of one clip (H*W), N channels padded to a power of two.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CODES = {"latent-l1": 0, "latent-l2": 1, "latent-cosine": 2}
TILE = 512  # numbers of one slot that a warp holds: 16 a thread
GUESSED = ("latent-l2", "latent-cosine")
OFF = tl.constexpr(1e-5)  # twenty times what a sum in single precision is off by, of 256 channels


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
def guess(a_PN, b_PN, b_square_P, tau, C: tl.constexpr, CODE: tl.constexpr):
    """Whether a cell is kept, whether that is certain whatever the rounding, and the square of a; sums in any order."""
    if CODE == 1:
        d = a_PN - b_PN
        score = tl.sqrt(tl.sum(d * d, axis=1) * (1.0 / C))
        return score >= tau, (tl.abs(score - tau) > OFF * (score + tau)) & (tau > 1e-12), b_square_P
    a_square = tl.sum(a_PN * a_PN, axis=1)
    norms = tl.sqrt(a_square) * tl.sqrt(b_square_P)
    score = 1.0 - tl.sum(a_PN * b_PN, axis=1) / tl.maximum(norms, 1e-30)
    sized = (a_square > 1e-10) & (b_square_P > 1e-10) & (norms < 1e30)
    return score >= tau, sized & (tl.abs(score - tau) > OFF) & (tau > 2 * OFF), a_square


@triton.jit
def scan_kernel(
    z_ptr, start_ptr, keep_ptr, end_ptr, flag_ptr, tau, places, blocks,
    z_b, z_c, z_t, start_b, start_c, end_b, end_c, z_p: tl.constexpr, start_p: tl.constexpr, end_p: tl.constexpr,
    C: tl.constexpr, T: tl.constexpr, CODE: tl.constexpr, PREVIOUS: tl.constexpr, STARTED: tl.constexpr,
    GUESS: tl.constexpr, TOGETHER: tl.constexpr, P: tl.constexpr, N: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    clip = (tl.program_id(0) // blocks).to(tl.int64)
    place = (tl.program_id(0) % blocks) * P + tl.arange(0, P)
    if TOGETHER > 0:
        place = tl.max_contiguous(place, TOGETHER)  # of one thread, which holds all their channels
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
    square = tl.sum(reference * reference, axis=1)
    doubt = inside & False
    for t in range(0 if STARTED else 1, T):
        ahead = tl.load(z_at + (t + 1) * z_t, mask=there & (t + 1 < T), other=0.0)  # on its way while this one is used
        now = z.to(tl.float32)
        if GUESS:
            kept, certain, now_square = guess(now, reference, square, tau, C, CODE)
            square = now_square if PREVIOUS else tl.where(kept, now_square, square)
            doubt = doubt | (inside & ~certain)
        else:
            kept = distance(now, reference, C, CODE, P, LEVELS) >= tau
        tl.store(keep_at + t * places, kept.to(tl.int8), mask=inside)
        reference = now if PREVIOUS else tl.where(kept[:, None], now, reference)
        z = ahead
    end_at = end_ptr + clip * end_b + place[:, None].to(tl.int64) * end_p + channel[None, :] * end_c
    tl.store(end_at, reference.to(end_ptr.dtype.element_ty), mask=there)
    if GUESS:
        tl.store(flag_ptr + tl.program_id(0), tl.max(doubt.to(tl.int32), axis=0))


@triton.jit
def again_kernel(
    z_ptr, start_ptr, keep_ptr, end_ptr, flag_ptr, tau, places, blocks,
    z_b, z_c, z_t, start_b, start_c, end_b, end_c, z_p: tl.constexpr, start_p: tl.constexpr, end_p: tl.constexpr,
    C: tl.constexpr, T: tl.constexpr, CODE: tl.constexpr, PREVIOUS: tl.constexpr, STARTED: tl.constexpr,
    GUESS: tl.constexpr, TOGETHER: tl.constexpr, P: tl.constexpr, N: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    if tl.load(flag_ptr + tl.program_id(0)) != 0:
        scan_kernel(
            z_ptr, start_ptr, keep_ptr, end_ptr, flag_ptr, tau, places, blocks, z_b, z_c, z_t, start_b, start_c, end_b,
            end_c, z_p, start_p, end_p, C, T, CODE, PREVIOUS, STARTED, GUESS, TOGETHER, P, N, LEVELS,
        )  # fmt: skip


def launch(
    z_BCTHW: Tensor, start_BCHW: Tensor | None, *, criterion: str, previous: bool, tau: float, tile: int = TILE
) -> tuple[Tensor, Tensor]:
    """[B, T, H, W] bool, and what the next slot is to be compared with."""
    B, C, T, H, W = z_BCTHW.shape
    z = places_last(z_BCTHW)
    start = None if start_BCHW is None else places_last(start_BCHW)
    keep = torch.empty(B, T, H, W, dtype=torch.bool, device=z.device)
    end = torch.empty_like(z[:, :, 0])
    levels = (C - 1).bit_length()
    together = (2 if levels <= 4 else 1) if z.stride(3) == 1 and C > 1 else 0
    block = 32 * max(together, tile >> (levels + 5)) if together else max(16, tile >> levels)
    warps = 1 if together else max(1, (block << levels) // max(tile, TILE))
    blocks = triton.cdiv(H * W, block)
    started = end if start is None else start
    guessed = criterion in GUESSED
    flags = torch.empty(B * blocks if guessed else 1, dtype=torch.int32, device=z.device)
    for kernel, guessing in ((scan_kernel, True), (again_kernel, False)) if guessed else ((scan_kernel, False),):
        kernel[(B * blocks,)](
            z, started, keep.view(torch.int8), end, flags, float(tau), H * W, blocks,
            *z.stride()[:3], *started.stride()[:2], *end.stride()[:2], z.stride(3), started.stride(2), end.stride(2),
            C=C, T=T, CODE=CODES[criterion], PREVIOUS=previous, STARTED=start is not None,
            GUESS=guessing, TOGETHER=together, P=block, N=1 << levels, LEVELS=levels, num_warps=warps,
        )  # fmt: skip
    return keep, end.unflatten(2, (H, W))


def places_last(x: Tensor) -> Tensor:
    """[..., H, W] seen as [..., P]; copied only where rows do not follow one another."""
    return x.flatten(-2) if x.stride(-2) == x.shape[-1] * x.stride(-1) else x.contiguous().flatten(-2)
