# SPDX-License-Identifier: Apache-2.0
"""The fills without weights: hold repeats the last kept latent, linear draws a line to the next one.

Legend: B batch, C channels, T slots, H W grid. A fill never looks at the value of a dropped cell.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from inlay.errors import ShapeError
from inlay.types import describe

Fill = Callable[[Tensor, Tensor], Tensor]


def hold(z_BCTHW: Tensor, keep_BTHW: Tensor, past_BCHW: Tensor | None = None) -> Tensor:
    """Each dropped cell repeats the latent kept last at its place; before the first one, `past` or zero."""
    check_pair(z_BCTHW, keep_BTHW)
    source = _last_kept(keep_BTHW)
    held = _take(z_BCTHW, source.clamp_min(0))
    empty = torch.zeros_like(held[:, :, :1]) if past_BCHW is None else past_BCHW[:, :, None]
    return torch.where((source >= 0)[:, None], held, empty)


def linear(z_BCTHW: Tensor, keep_BTHW: Tensor, past_BCHW: Tensor | None = None) -> Tensor:
    """Dropped cells lie on the line between the kept ones around them; after the last one, hold."""
    before_BCTHW = hold(z_BCTHW, keep_BTHW, past_BCHW)
    gone, to_go = age(keep_BTHW), until_kept(keep_BTHW)
    T = keep_BTHW.shape[1]
    slot = torch.arange(T, device=keep_BTHW.device).view(1, T, 1, 1)
    after_BCTHW = _take(z_BCTHW, (slot + to_go).clamp_max(T - 1))
    has_next = slot + to_go < T
    share = torch.where(has_next & ~keep_BTHW, gone / (gone + to_go).clamp_min(1), 0.0)[:, None].to(z_BCTHW.dtype)
    return torch.where(share > 0, before_BCTHW + share * (after_BCTHW - before_BCTHW), before_BCTHW)


FILLS: dict[str, Fill] = {"hold": hold, "linear": linear}


def age(keep_BTHW: Tensor) -> Tensor:
    """[B, T, H, W] int64: slots since the cell was last kept, 0 where it is kept now; t + 1 if it never was."""
    T = keep_BTHW.shape[1]
    return torch.arange(T, device=keep_BTHW.device).view(1, T, 1, 1) - _last_kept(keep_BTHW)


def until_kept(keep_BTHW: Tensor) -> Tensor:
    """[B, T, H, W] int64: slots until the cell is kept next, 0 where it is kept now; T - t if it never is."""
    T = keep_BTHW.shape[1]
    slot = torch.arange(T, device=keep_BTHW.device).view(1, T, 1, 1)
    upcoming = torch.where(keep_BTHW, slot, T).flip(1).cummin(1).values.flip(1)
    return upcoming - slot


def check_pair(z_BCTHW: Tensor, keep_BTHW: Tensor) -> None:
    if z_BCTHW.ndim != 5 or keep_BTHW.shape != z_BCTHW[:, 0].shape:
        raise ShapeError(f"latents {describe(z_BCTHW)} and mask {describe(keep_BTHW)} are not of one grid")


def _last_kept(keep_BTHW: Tensor) -> Tensor:
    """[B, T, H, W] int64: the slot kept last at or before t, -1 where there is none."""
    T = keep_BTHW.shape[1]
    slot = torch.arange(T, device=keep_BTHW.device).view(1, T, 1, 1)
    return torch.where(keep_BTHW, slot, -1).cummax(1).values


def _take(z_BCTHW: Tensor, slot_BTHW: Tensor) -> Tensor:
    return z_BCTHW.gather(2, slot_BTHW[:, None].expand_as(z_BCTHW))
