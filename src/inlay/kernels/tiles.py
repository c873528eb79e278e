# SPDX-License-Identifier: Apache-2.0
"""Run large grids and frames in tiles that overlap, blended where they meet: memory follows the tile, not the grid."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Ramp = Callable[[Tensor, int, bool, bool], Tensor]  # positions, overlap, neighbour before, neighbour after


def starts(length: int, tile: int, overlap: int) -> list[int]:
    """Where tiles begin; the last one ends with the grid, so all have one size.

    >>> starts(90, 32, 8)
    [0, 24, 48, 58]
    """
    if length <= tile:
        return [0]
    return [*range(0, length - tile, tile - overlap), length - tile]


def tiled(
    run: Callable[[slice, slice], Tensor],
    x_BCTHW: Tensor,
    *,
    tile: int,
    overlap: int,
    ramp: Ramp,
    grow: tuple[int, int] = (1, 1),
) -> Tensor:
    """Blend what `run` gives for every tile of x; a grid of one tile is handed out as `run` gives it.

    Args:
        run: [B, C, T, h, w] for the rows and columns of x it is given, in reading order.
        tile: cells a side.
        overlap: cells that neighbours share.
        ramp: how the weight of a tile falls towards its edges: `fade_to_neighbours` or `fade_to_edges`.
        grow: sides of the answer are sides of x times grow[0] / grow[1].
    """
    H, W = x_BCTHW.shape[3:]
    if max(H, W) <= tile:
        return run(slice(0, H), slice(0, W))

    def scaled(length: int) -> int:
        return length * grow[0] // grow[1]

    def weigh(start: int, length: int, size: int) -> Tensor:
        positions = torch.arange(length, device=x_BCTHW.device)
        return ramp(positions, scaled(overlap), start > 0, start + tile < size)

    total: Tensor | None = None
    weight = x_BCTHW.new_zeros(scaled(H), scaled(W), dtype=torch.float32)
    for y in starts(H, tile, overlap):
        for x in starts(W, tile, overlap):
            part = run(slice(y, min(y + tile, H)), slice(x, min(x + tile, W)))
            h, w = part.shape[3:]
            share = weigh(y, h, H)[:, None] * weigh(x, w, W)
            if total is None:
                total = part.new_zeros(*part.shape[:3], *weight.shape, dtype=torch.float32)
            place = (..., slice(scaled(y), scaled(y) + h), slice(scaled(x), scaled(x) + w))
            total[place] += part.float() * share
            weight[place] += share
    assert total is not None, "a grid has at least one tile"
    return (total / weight).to(x_BCTHW.dtype)


def fade_to_neighbours(at_L: Tensor, overlap: int, before: bool, after: bool) -> Tensor:
    """1 inside and at the grid's own border, falling by halves of a step where a neighbour takes over."""
    line = torch.ones(len(at_L), device=at_L.device)
    slope = (at_L[:overlap] + 0.5) / overlap
    if before:
        line[: len(slope)] *= slope
    if after:
        line[len(at_L) - len(slope) :] *= slope.flip(0)
    return line


def fade_to_edges(at_L: Tensor, overlap: int, before: bool, after: bool) -> Tensor:
    """1 in the middle, falling to 1 / (overlap + 1) at both ends, whether or not there is a neighbour."""
    del before, after
    distance = at_L.float() + 1
    return torch.minimum(distance, distance.flip(0)).clamp_max(overlap + 1) / (overlap + 1)
