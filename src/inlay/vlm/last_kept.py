# SPDX-License-Identifier: Apache-2.0
"""The last-kept rule with an exact count, on the device, without waiting for it.

A token is compared with the token kept last at its place, and kept when it differs by tau or more. How many that keeps
depends on tau, and the servers fix the number beforehand. So tau is searched:

1. `distances` holds every pair of frames at a place once; a scan for any tau is then a walk through a table.
2. A float32 that is not negative sorts as its bits do. Four rounds settle tau's bits a byte at a time, each by scans
   for all values of the byte side by side. A tau of 0 keeps everything, so that each round can keep to this:
   the lower end keeps too many, the upper end does not. The count need not fall everywhere as tau grows; among the
   steps of a round where it falls to the wanted count or below, the last one is taken. In the end the two ends are
   neighbouring numbers, and tau is the upper one.
3. The scan at tau keeps at most the wanted count. What is missing is filled up with the tokens that came nearest to
   tau; of equal ones the earlier frame, then the earlier place.

On a GPU steps 2 and 3 walk in Triton kernels (`kernels.search_triton`), which decide the same to the bit.
The first frame is always kept. All shapes follow from the shapes of the input and the count.
Legend: T frames, P places of a frame, D channels, K thresholds side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import index

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.errors import ConfigError, ShapeError, check_kind, pick
from inlay.kernels import may_run
from inlay.types import describe

ROUNDS = ((24, 128), (16, 256), (8, 256), (0, 256))  # (lowest bit, values) of each byte; the sign bit is never set


def cosine(x_PTD: Tensor) -> Tensor:
    """One minus the cosine of the angle, in [0, 2], from the difference of unit vectors: equal tokens are at zero.

    A token of zeros has no direction: it is at 0 from another one, and at 0.5 from everything else.
    """
    unit_PTD = F.normalize(x_PTD, dim=2)
    return torch.cdist(unit_PTD, unit_PTD, compute_mode="donot_use_mm_for_euclid_dist").square() / 2


def l1(x_PTD: Tensor) -> Tensor:
    """Mean absolute difference over channels: the paper's criterion."""
    return torch.cdist(x_PTD, x_PTD, p=1) / x_PTD.shape[2]


CRITERIA: dict[str, Callable[[Tensor], Tensor]] = {"cosine": cosine, "l1": l1}  # [P, T, D] to [P, T, T]


@torch.no_grad()
def last_kept_mask(x_TPD: Tensor, count: int, *, criterion: str = "cosine") -> Tensor:
    """[T, P] bool with exactly `count` true: the last-kept rule at the tau that leaves so many.

    Args:
        count: from P, the first frame, to T * P, everything.
        criterion: how change is measured, a name in `CRITERIA`.
    """
    measure = pick("criterion", criterion, CRITERIA)
    check_kind(x_TPD, Tensor, "tokens are a tensor [T, P, D]")
    if x_TPD.ndim != 3 or not x_TPD.numel() or not x_TPD.is_floating_point():
        raise ShapeError(f"tokens are [T, P, D] floating-point numbers, one or more; got {describe(x_TPD)}")
    T, P, _ = x_TPD.shape
    try:
        count = index(count)
    except TypeError as error:
        raise ConfigError(f"count is a whole number of tokens; got {count!r}", about="count") from error
    if not P <= count <= T * P:
        raise ConfigError(
            f"the first frame stays whole, so {T} frames of {P} tokens keep {P} to {T * P} of them; asked for {count}",
            about="count",
        )
    if count in (P, T * P):  # nothing to choose
        frame_T = torch.arange(T, device=x_TPD.device) * P < count
        return frame_T[:, None].expand(T, P).contiguous()
    rank_TP = ranks(distances(x_TPD, measure), count)
    order = rank_TP.flatten().argsort(descending=True, stable=True)
    keep = torch.zeros(T * P, dtype=torch.bool, device=x_TPD.device)
    return keep.index_fill_(0, order[:count], True).view(T, P)


def distances(x_TPD: Tensor, measure: Callable[[Tensor], Tensor]) -> Tensor:
    """[T, T, P]: entry [t, s, p] is how far frame t is from frame s at place p; finite, whatever the tokens hold.

    What cannot be measured, since a token is infinite or not a number, counts as the greatest change.
    """
    most = torch.finfo(torch.float32).max
    table_PTT = measure(x_TPD.float().transpose(0, 1))
    return table_PTT.nan_to_num(nan=most, posinf=most).permute(1, 2, 0).contiguous()


def ranks(table_TSP: Tensor, count: int) -> Tensor:
    """[T, P]: infinite where the scan at tau keeps, elsewhere the distance from the token kept last."""
    if may_run("scan", tensors=(table_TSP,)):
        from inlay.kernels import search_triton

        return search_triton.ranks(table_TSP, count, ROUNDS)
    T, _, P = table_TSP.shape
    rank_TP = torch.full((T, P), torch.inf, device=table_TSP.device)
    for t, (score_KP, keep_KP) in enumerate(walk(table_TSP, search(table_TSP, count)), start=1):
        rank_TP[t] = torch.where(keep_KP, torch.inf, score_KP)[0]
    return rank_TP


def walk(table_TSP: Tensor, tau_K: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """For each frame but the first: [K, P] distance from the token kept last, and whether that is tau or more."""
    T, _, P = table_TSP.shape
    entry_TP = torch.arange(T * P, device=table_TSP.device).view(T, P)  # where a row of the table has frame and place
    last_KP = entry_TP[0].expand(len(tau_K), P)
    for t in range(1, T):
        score_KP = table_TSP[t].take(last_KP)
        keep_KP = score_KP >= tau_K[:, None]
        yield score_KP, keep_KP
        last_KP = torch.where(keep_KP, entry_TP[t], last_KP)


def search(table_TSP: Tensor, count: int) -> Tensor:
    """[1] the tau: its scan keeps at most `count`, and that of the next smaller float32 keeps more."""
    P = table_TSP.shape[2]
    low_1 = torch.zeros(1, dtype=torch.int32, device=table_TSP.device)
    for shift, values in ROUNDS:
        byte_K = torch.arange(values, dtype=torch.int32, device=table_TSP.device)
        tau_K = (low_1 + (byte_K << shift)).view(torch.float32)  # beyond infinity: not a number, which keeps nothing
        kept_K = P + torch.stack([keep_KP for _, keep_KP in walk(table_TSP, tau_K)]).sum((0, 2))
        low_1 = low_1 + ((kept_K > count) * byte_K).amax(0, keepdim=True).int().bitwise_left_shift(shift)
    return (low_1 + 1).view(torch.float32)
