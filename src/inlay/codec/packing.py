# SPDX-License-Identifier: Apache-2.0
"""Keep and pack the cells of a chunk where they are: nothing here waits for a GPU.

Legend: B batch, C channels, T slots, H W grid, N cells of all slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inlay.kernels import may_run
from inlay.masking import MaskConfig, scan

Packed = tuple[Tensor, Tensor]  # [B, N, C], kept cells first, in (t, y, x) order; [B], how many these are


def keep_cells(
    z_BCTHW: Tensor,
    compared_BCTHW: Tensor | None,
    before_BCHW: Tensor | None,
    criterion: str,
    reference: str,
    key_slots: str,
    tau: float,
) -> tuple[Tensor, Tensor, Packed]:
    """The mask at one tau, the reference after it, and the kept cells; without `compared` latents are compared."""
    config = MaskConfig(tau=tau, criterion=criterion, reference=reference, key_slots=key_slots)
    keep_BTHW, after_BCHW = scan(z_BCTHW if compared_BCTHW is None else compared_BCTHW, config, before_BCHW)
    return keep_BTHW, after_BCHW, pack_kept(z_BCTHW, keep_BTHW)


def pack_kept(z_BCTHW: Tensor, keep_BTHW: Tensor) -> Packed:
    """Move the kept cells to the front."""
    if z_BCTHW.device.type == "cpu":
        return pick_kept(z_BCTHW, keep_BTHW)
    if may_run("scan", tensors=(z_BCTHW,)):
        from inlay.kernels.pack_triton import pack  # Triton is imported when it first runs

        return pack(z_BCTHW, keep_BTHW)
    return scatter_kept(z_BCTHW, keep_BTHW)


def scatter_kept(z_BCTHW: Tensor, keep_BTHW: Tensor) -> Packed:
    """On any device; how many are kept is not asked for, since a GPU would have to be waited for."""
    cells_BNC = z_BCTHW.flatten(2).transpose(1, 2)
    keep_BN = keep_BTHW.flatten(1)
    place_BN = keep_BN.cumsum(1)
    last = cells_BNC.shape[1]
    target_BN = torch.where(keep_BN, place_BN - 1, last)  # dropped cells meet in one place behind the rest
    packed = cells_BNC.new_empty(len(cells_BNC), last + 1, cells_BNC.shape[2])
    packed.scatter_(1, target_BN[..., None].expand_as(cells_BNC), cells_BNC)
    return packed[:, :last], place_BN[:, -1]


def pick_kept(z_BCTHW: Tensor, keep_BTHW: Tensor) -> Packed:
    """The same where nobody waits: only kept cells are touched, each channel in its own order."""
    cells_BCN, keep_BN = z_BCTHW.flatten(2), keep_BTHW.flatten(1)
    packed = cells_BCN.new_empty(len(cells_BCN), cells_BCN.shape[2], cells_BCN.shape[1])
    counts: list[int] = []
    for cells_CN, keep_N, row_NC in zip(cells_BCN, keep_BN, packed, strict=True):
        kept_CN = cells_CN.index_select(1, keep_N.nonzero()[:, 0])
        counts.append(kept_CN.shape[1])
        row_NC[: counts[-1]] = kept_CN.t()
    return packed, torch.tensor(counts)
