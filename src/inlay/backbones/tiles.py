# SPDX-License-Identifier: Apache-2.0
"""A network over large frames: tiles that overlap go through one by one, and are blended where they meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Half = Callable[[Tensor, Any, bool], tuple[Tensor, Any]]


def tiled(
    half: Half,
    x_BCTHW: Tensor,
    state: list[Any] | None,
    *,
    tile: int,
    overlap: int,
    grow: tuple[int, int],
    keep: bool,
) -> tuple[Tensor, list[Any]]:
    """`half` on every tile of side `tile`; output sides are input sides times grow[0] / grow[1]. A state a tile."""
    H, W = x_BCTHW.shape[3:]
    rows, columns = starts(H, tile, overlap), starts(W, tile, overlap)
    if len(rows) * len(columns) == 1:
        out, after = half(x_BCTHW, state[0] if state else None, keep)
        return out, [after]
    total: Tensor | None = None
    weight = x_BCTHW.new_zeros(scaled(H, grow), scaled(W, grow), dtype=torch.float32)
    states: list[Any] = []
    for y in rows:
        for x in columns:
            part, after = half(x_BCTHW[..., y : y + tile, x : x + tile], state[len(states)] if state else None, keep)
            states.append(after)
            ramp = _ramp(part, scaled(overlap, grow), y > 0, y + tile < H, x > 0, x + tile < W)
            if total is None:
                total = part.new_zeros(*part.shape[:3], *weight.shape, dtype=torch.float32)
            place = (..., _span(y, part.shape[3], grow), _span(x, part.shape[4], grow))
            total[place] += part * ramp
            weight[place] += ramp
    assert total is not None, "a frame has at least one tile"
    return (total / weight).to(x_BCTHW.dtype), states


def starts(length: int, tile: int, overlap: int) -> list[int]:
    """Where tiles begin; the last one ends with the frame, so all have one size.

    >>> starts(100, 40, 8)
    [0, 32, 60]
    """
    if length <= tile:
        return [0]
    return [*range(0, length - tile, tile - overlap), length - tile]


def scaled(length: int, grow: tuple[int, int]) -> int:
    return length * grow[0] // grow[1]


def _span(start: int, length: int, grow: tuple[int, int]) -> slice:
    first = scaled(start, grow)
    return slice(first, first + length)


def _ramp(part: Tensor, overlap: int, above: bool, below: bool, left: bool, right: bool) -> Tensor:
    """[H, W] weight of a tile: one inside, falling linearly where it has a neighbour."""

    def side(length: int, before: bool, after: bool) -> Tensor:
        line = torch.ones(length, device=part.device)
        slope = (torch.arange(min(overlap, length), device=part.device) + 0.5) / overlap
        if before:
            line[: len(slope)] *= slope
        if after:
            line[length - len(slope) :] *= slope.flip(0)
        return line

    return side(part.shape[3], above, below)[:, None] * side(part.shape[4], left, right)[None]
