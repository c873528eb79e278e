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
    return between(z_BCTHW, keep_BTHW, hold(z_BCTHW, keep_BTHW, past_BCHW), age(keep_BTHW), until_kept(keep_BTHW))


def between(z_BCTHW: Tensor, keep_BTHW: Tensor, before_BCTHW: Tensor, gone: Tensor, to_go: Tensor) -> Tensor:
    """`linear`, given what `hold`, `age` and `until_kept` say."""
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
    upcoming = -running_max(-torch.where(keep_BTHW, slot, T).flip(1)).flip(1)
    return upcoming - slot


def check_pair(z_BCTHW: Tensor, keep_BTHW: Tensor) -> None:
    if z_BCTHW.ndim != 5 or keep_BTHW.shape != z_BCTHW[:, 0].shape:
        raise ShapeError(f"latents {describe(z_BCTHW)} and mask {describe(keep_BTHW)} are not of one grid")


def _last_kept(keep_BTHW: Tensor) -> Tensor:
    """[B, T, H, W] int64: the slot kept last at or before t, -1 where there is none."""
    T = keep_BTHW.shape[1]
    slot = torch.arange(T, device=keep_BTHW.device).view(1, T, 1, 1)
    return running_max(torch.where(keep_BTHW, slot, -1))


def running_max(x_BTHW: Tensor) -> Tensor:
    """The largest so far along T; slot by slot in graphs, where `cummax` has no form of its own."""
    if not torch.compiler.is_compiling():
        return x_BTHW.cummax(1).values
    found = [x_BTHW[:, 0]]
    for t in range(1, x_BTHW.shape[1]):
        found.append(torch.maximum(found[-1], x_BTHW[:, t]))
    return torch.stack(found, dim=1)


def _take(z_BCTHW: Tensor, slot_BTHW: Tensor) -> Tensor:
    return z_BCTHW.gather(2, slot_BTHW[:, None].expand_as(z_BCTHW))
