# SPDX-License-Identifier: Apache-2.0
"""The whole scan over time, mask and last reference, in one Triton kernel that reads the latents once.

A program owns some places of one clip and walks through their slots with the reference in registers. Channels are
added in pairs of neighbours, pairs of pairs and so on, as `masking.criteria.tree_sum` adds them: the same additions in
the same order, hence the same bits. Products are taken in double precision, where they are exact, so that a compiler
that fuses them with an addition changes nothing. That is dear, so criteria with products are first guessed in single
precision; a block of places in which a guess falls closer to tau than it can be off leaves a flag, and is run again
exactly, by few programs that look at many flags each: starting a program for every block costs a tenth of the scan.
Wide latents with channels first are guessed under every criterion: there a thread of a warp holds every n-th
channel, so that the warp reads whole sectors, and neighbours would have to change threads to be added first. Their next
slots wait in shared memory, because registers are short.

Legend: P places of one clip (H*W), N channels padded to a power of two.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CODES = {"latent-l1": 0, "latent-l2": 1, "latent-cosine": 2}
TILE = 512  # numbers of one slot that a warp holds: 16 a thread
WIDE = 2048  # the same at most where wide latents have their channels first
STAGE = 16384  # bytes of a slot that may wait in shared memory, three at once
GUESSED = ("latent-l2", "latent-cosine")  # half as many: quicker there, as measured
FLAGS = tl.constexpr(16)  # looked at by one program


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
def total(x_PN, FIRST: tl.constexpr):
    """Channels added in two rounds, in each of them in any order: what one thread holds in the first."""
    P: tl.constexpr = x_PN.shape[0]
    N: tl.constexpr = x_PN.shape[1]
    if N > 8 and FIRST:
        x_PN = tl.sum(tl.reshape(x_PN, (P, N // 4, 4)), axis=1)
    elif N > 8:
        x_PN = tl.sum(tl.reshape(x_PN, (P, N // 8, 8)), axis=2)
    return tl.sum(x_PN, axis=1)


@triton.jit
def guess(a_PN, b_PN, b_size_P, tau, C: tl.constexpr, CODE: tl.constexpr, FIRST: tl.constexpr):
    """Whether a cell is kept, the size of a, and by how much the first is certain."""
    N: tl.constexpr = a_PN.shape[1]
    additions: tl.constexpr = N if N <= 8 else N // 4 + 4 if FIRST else N // 8 + 8  # one after the other, at most
    off: tl.constexpr = 1e-6 + 2 * (additions + 1) * 2.0**-24  # two such sums together are off by less
    if CODE < 2:
        d = a_PN - b_PN
        found = total(d * d if CODE == 1 else tl.abs(d), FIRST)
        bound = (tau * tau if CODE == 1 else tau) * C
        return found >= bound, b_size_P, tl.abs(found - bound) - (off / 2) * (found + bound)
    a_size_P = tl.sqrt(total(a_PN * a_PN, FIRST))
    sizes, alike = a_size_P * b_size_P, total(a_PN * b_PN, FIRST)
    bound = sizes * (1.0 - tau)
    return alike <= bound, a_size_P, lesser(tl.abs(alike - bound) - off * sizes, a_size_P - 1e-5)


@triton.jit
def lesser(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)  # what is not a number is never certain


@triton.jit
def one_slot(
    z, reference, size_P, sure_P, tau, C: tl.constexpr, CODE: tl.constexpr, PREVIOUS: tl.constexpr,
    GUESS: tl.constexpr, TOGETHER: tl.constexpr, P: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """What is kept of a slot, and what the next one is compared with."""
    now = z.to(tl.float32)
    if GUESS:
        kept, now_size_P, margin_P = guess(now, reference, size_P, tau, C, CODE, TOGETHER > 0)
        size_P = now_size_P if PREVIOUS else tl.where(kept, now_size_P, size_P)
        sure_P = lesser(sure_P, margin_P)
    else:
        kept = distance(now, reference, C, CODE, P, LEVELS) >= tau
    return kept, now if PREVIOUS else tl.where(kept[:, None], now, reference), size_P, sure_P


@triton.jit
def scan_block(
    block, z_ptr, start_ptr, keep_ptr, end_ptr, flag_ptr, tau, places, blocks,
    z_b, z_c, z_t, start_b, start_c, end_b, end_c, z_p: tl.constexpr, start_p: tl.constexpr, end_p: tl.constexpr,
    C: tl.constexpr, T: tl.constexpr, CODE: tl.constexpr, PREVIOUS: tl.constexpr, STARTED: tl.constexpr,
    GUESS: tl.constexpr, EVEN: tl.constexpr, TOGETHER: tl.constexpr, STAGES: tl.constexpr, P: tl.constexpr,
    N: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """All slots of P places."""
    clip = (block // blocks).to(tl.int64)
    place = (block % blocks) * P + tl.arange(0, P)
    if TOGETHER > 0:
        place = tl.max_contiguous(place, TOGETHER)  # of one thread
    channel = tl.arange(0, N)
    if EVEN:  # nothing to leave out, and the compiler sees it
        inside, there = tl.full((P,), True, tl.int1), tl.full((P, N), True, tl.int1)
    else:
        inside = place < places
        there = inside[:, None] & (channel < C)[None, :]
    z_at = z_ptr + clip * z_b + place[:, None].to(tl.int64) * z_p + channel[None, :] * z_c
    keep_at = keep_ptr + clip * T * places + place
    if STARTED:
        start_at = start_ptr + clip * start_b + place[:, None].to(tl.int64) * start_p + channel[None, :] * start_c
        reference = tl.load(start_at, mask=there, other=0.0).to(tl.float32)
    else:
        reference = tl.load(z_at, mask=there, other=0.0).to(tl.float32)
        tl.store(keep_at, tl.full((P,), 1, tl.int8), mask=inside)
    begin: tl.constexpr = 0 if STARTED else 1
    if STAGES == 1:
        z = tl.load(z_at + begin * z_t, mask=there & (begin < T), other=0.0)
    size_P = tl.sqrt(total(reference * reference, TOGETHER > 0))
    sure_P = lesser(size_P - 1e-5, tau - 1e-4) if CODE == 2 else tl.zeros((P,), tl.float32) + (tau - 1e-12)
    if STAGES > 1:
        for t in tl.range(begin, T, num_stages=STAGES):
            z = tl.load(z_at + t * z_t, mask=there, other=0.0)
            kept, reference, size_P, sure_P = one_slot(
                z, reference, size_P, sure_P, tau, C, CODE, PREVIOUS, GUESS, TOGETHER, P, LEVELS
            )
            tl.store(keep_at + t * places, kept.to(tl.int8), mask=inside)
    else:
        for t in tl.range(begin, T, loop_unroll_factor=2 if GUESS or CODE == 0 else 1):
            ahead = tl.load(z_at + (t + 1) * z_t, mask=there & (t + 1 < T), other=0.0)  # while this one is used
            kept, reference, size_P, sure_P = one_slot(
                z, reference, size_P, sure_P, tau, C, CODE, PREVIOUS, GUESS, TOGETHER, P, LEVELS
            )
            tl.store(keep_at + t * places, kept.to(tl.int8), mask=inside)
            z = ahead
    end_at = end_ptr + clip * end_b + place[:, None].to(tl.int64) * end_p + channel[None, :] * end_c
    tl.store(end_at, reference.to(end_ptr.dtype.element_ty), mask=there)
    if GUESS:
        tl.store(flag_ptr + block, tl.max((inside & ~(sure_P > 0)).to(tl.int32), axis=0))


@triton.jit
def scan_kernel(
    z_ptr, start_ptr, keep_ptr, end_ptr, flag_ptr, tau, places, blocks, programs,
    z_b, z_c, z_t, start_b, start_c, end_b, end_c, z_p: tl.constexpr, start_p: tl.constexpr, end_p: tl.constexpr,
    C: tl.constexpr, T: tl.constexpr, CODE: tl.constexpr, PREVIOUS: tl.constexpr, STARTED: tl.constexpr,
    GUESS: tl.constexpr, AGAIN: tl.constexpr, EVEN: tl.constexpr, TOGETHER: tl.constexpr, STAGES: tl.constexpr,
    P: tl.constexpr, N: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """One block, or those of FLAGS blocks that left a flag."""
    if AGAIN:
        mine = tl.program_id(0) * FLAGS + tl.arange(0, FLAGS)
        if tl.max(tl.load(flag_ptr + mine, mask=mine < programs, other=0), axis=0) != 0:
            for i in range(FLAGS):
                block = tl.program_id(0) * FLAGS + i
                if tl.load(flag_ptr + block, mask=block < programs, other=0) != 0:
                    scan_block(
                        block, z_ptr, start_ptr, keep_ptr, end_ptr, flag_ptr, tau, places, blocks,
                        z_b, z_c, z_t, start_b, start_c, end_b, end_c, z_p, start_p, end_p,
                        C, T, CODE, PREVIOUS, STARTED, GUESS, EVEN, TOGETHER, STAGES, P, N, LEVELS,
                    )  # fmt: skip
    else:
        scan_block(
            tl.program_id(0), z_ptr, start_ptr, keep_ptr, end_ptr, flag_ptr, tau, places, blocks,
            z_b, z_c, z_t, start_b, start_c, end_b, end_c, z_p, start_p, end_p,
            C, T, CODE, PREVIOUS, STARTED, GUESS, EVEN, TOGETHER, STAGES, P, N, LEVELS,
        )  # fmt: skip


def launch(
    z_BCTHW: Tensor, start_BCHW: Tensor | None, *, criterion: str, previous: bool, tau: float, tile: int = 0
) -> tuple[Tensor, Tensor]:
    """[B, T, H, W] bool, and what the next slot is to be compared with."""
    B, C, T, H, W = z_BCTHW.shape
    z = places_last(z_BCTHW)
    start = None if start_BCHW is None else places_last(start_BCHW)
    keep = torch.empty(B, T, H, W, dtype=torch.bool, device=z.device)
    end = torch.empty_like(z[:, :, 0])
    levels = (C - 1).bit_length()
    first = z.stride(3) == 1 and C > 1
    wide = first and levels > 4
    guessed = wide or criterion in GUESSED
    tile = tile or (WIDE if wide else TILE >> guessed)
    if wide:  # a warp reads sectors of 32 or 64 bytes, a thread four places of every n-th channel
        together, block = 4, max(16, min(32, tile >> levels))
    elif first:
        together, block = 2, 32 * max(2, tile >> (levels + 5))
    else:
        together, block = 0, max(16, tile >> levels)
    warps = 1 if first and not wide else max(1, (block << levels) // max(tile, TILE))
    stages = 4 if wide and (block << levels) * z.element_size() <= STAGE else 1
    blocks = triton.cdiv(H * W, block)
    started = end if start is None else start
    programs = B * blocks
    flags = torch.empty(programs if guessed else 1, dtype=torch.int32, device=z.device)
    for again in (False, True) if guessed else (False,):
        scan_kernel[(triton.cdiv(programs, FLAGS.value) if again else programs,)](
            z, started, keep.view(torch.int8), end, flags, float(tau), H * W, blocks, programs,
            *z.stride()[:3], *started.stride()[:2], *end.stride()[:2], z.stride(3), started.stride(2), end.stride(2),
            C=C, T=T, CODE=CODES[criterion], PREVIOUS=previous, STARTED=start is not None,
            GUESS=guessed and not again, AGAIN=again, EVEN=1 << levels == C and H * W % block == 0,
            TOGETHER=min(together, 1) if again else together, STAGES=1 if again else stages,
            P=block, N=1 << levels, LEVELS=levels,
            num_warps=warps << (again * (2 if wide else first or levels > 4)),  # doubles take two registers
        )  # fmt: skip
    return keep, end.unflatten(2, (H, W))


def places_last(x: Tensor) -> Tensor:
    """[..., H, W] seen as [..., P]; copied only where rows do not follow one another."""
    return x.flatten(-2) if x.stride(-2) == x.shape[-1] * x.stride(-1) else x.contiguous().flatten(-2)
