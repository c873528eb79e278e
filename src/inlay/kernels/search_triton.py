# SPDX-License-Identifier: Apache-2.0
"""The search for the threshold that keeps a wanted count, five Triton kernels in place of hundreds of small ones.

They walk through the table of distances as `vlm.last_kept.walk` does. Distances are compared and never computed with,
and kept tokens are counted in whole numbers: thresholds and ranks are those of the plain form to the bit, in whatever
order programs end. A round reads what the rounds before it counted, so the host need not know it.

Legend: T frames, P places of a program, K thresholds of a program.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BYTE = tl.constexpr(256)
PLACES = 32  # of a program
TAUS = 16


@triton.jit
def settled(kept_ptr, missing, ROUND: tl.constexpr):
    """The bits of the largest threshold known to keep too many, after so many rounds."""
    byte = tl.arange(0, BYTE)
    low = tl.zeros((1,), tl.int32)
    for done in tl.static_range(ROUND):
        kept = tl.load(kept_ptr + done * BYTE + byte)
        low += tl.max(tl.where(kept > missing, byte, 0), axis=0) << (24 - 8 * done)
    return low


@triton.jit(do_not_specialize=["missing", "T"])
def count_kernel(table_ptr, kept_ptr, missing, places, T, ROUND: tl.constexpr, P: tl.constexpr, K: tl.constexpr):
    """Walk with K values of one byte of the threshold side by side, and add up what each keeps after frame 0."""
    place = (tl.program_id(0) * P + tl.arange(0, P))[None, :]
    byte = tl.program_id(1) * K + tl.arange(0, K)
    tau = (settled(kept_ptr, missing, ROUND) + (byte << (24 - 8 * ROUND))).to(tl.float32, bitcast=True)[:, None]
    last = tl.zeros((K, P), tl.int32)
    kept = tl.zeros((K, P), tl.int32)
    row_ptr = table_ptr
    for t in range(1, T):
        row_ptr += T * places
        score = tl.load(row_ptr + last * places + place, mask=place < places, other=-1.0)  # below any threshold
        keep = score >= tau
        kept += keep.to(tl.int32)
        last = tl.where(keep, t, last)
    tl.atomic_add(kept_ptr + ROUND * BYTE + byte, tl.sum(kept, axis=1), sem="relaxed")


@triton.jit(do_not_specialize=["missing", "T"])
def rank_kernel(table_ptr, kept_ptr, rank_ptr, missing, places, T, ROUNDS: tl.constexpr, P: tl.constexpr):
    """Walk with the threshold that was found: the distance of what it drops, infinity for what it keeps."""
    place = tl.program_id(0) * P + tl.arange(0, P)
    tau = (settled(kept_ptr, missing, ROUNDS) + 1).to(tl.float32, bitcast=True)
    last = tl.zeros((P,), tl.int32)
    row_ptr = table_ptr
    tl.store(rank_ptr + place, tl.full((P,), float("inf"), tl.float32), mask=place < places)
    for t in range(1, T):
        row_ptr += T * places
        rank_ptr += places
        score = tl.load(row_ptr + last * places + place, mask=place < places, other=-1.0)
        keep = score >= tau
        tl.store(rank_ptr + place, tl.where(keep, float("inf"), score), mask=place < places)
        last = tl.where(keep, t, last)


def ranks(table_TSP: Tensor, count: int, rounds: Sequence[tuple[int, int]], *, taus: int = TAUS) -> Tensor:
    """[T, P] as `vlm.last_kept.ranks` gives it; a round is the lowest bit and the number of values of a byte."""
    T, _, places = table_TSP.shape
    table = table_TSP.contiguous()
    kept = torch.zeros(len(rounds), BYTE.value, dtype=torch.int32, device=table.device)
    rank_TP = torch.empty(T, places, device=table.device)
    blocks, missing = triton.cdiv(places, PLACES), count - places
    for done, (_, values) in enumerate(rounds):
        count_kernel[blocks, values // taus](table, kept, missing, places, T, ROUND=done, P=PLACES, K=taus)
    rank_kernel[(blocks,)](table, kept, rank_TP, missing, places, T, ROUNDS=len(rounds), P=PLACES, num_warps=1)
    return rank_TP
