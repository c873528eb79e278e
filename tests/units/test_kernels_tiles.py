# SPDX-License-Identifier: Apache-2.0
"""Tiles that overlap: they cover the grid, blend to what they were cut from, and are asked in reading order."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from inlay.kernels.tiles import Ramp, fade_to_edges, fade_to_neighbours, starts, tiled


@pytest.mark.parametrize(
    ("length", "tile", "overlap"), [(90, 32, 8), (100, 40, 8), (33, 32, 8), (32, 32, 8), (5, 32, 8)]
)
def test_tiles_cover_the_length(length: int, tile: int, overlap: int) -> None:
    found = starts(length, tile, overlap)
    assert found[0] == 0 and found[-1] + min(tile, length) == length
    assert all(0 < b - a <= tile - overlap for a, b in pairwise(found))


@pytest.mark.parametrize("ramp", [fade_to_edges, fade_to_neighbours])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [(21, 34), (40, 7), (12, 12), (13, 12)])
def test_what_was_cut_blends_to_itself(size: tuple[int, int], dtype: torch.dtype, ramp: Ramp) -> None:
    x = torch.randn(1, 2, 3, *size).to(dtype)
    same = tiled(lambda rows, columns: x[..., rows, columns], x, tile=12, overlap=8, ramp=ramp)
    assert same.dtype == dtype
    torch.testing.assert_close(same, x)


@pytest.mark.parametrize("grow", [(4, 1), (1, 4)])
def test_answers_may_be_larger_or_smaller(grow: tuple[int, int]) -> None:
    x = torch.ones(1, 1, 1, 48, 80)
    asked: list[tuple[int, int]] = []

    def run(rows: slice, columns: slice) -> Tensor:
        asked.append((rows.start, columns.start))
        h, w = ((s.stop - s.start) * grow[0] // grow[1] for s in (rows, columns))
        return torch.ones(1, 2, 1, h, w)

    out = tiled(run, x, tile=32, overlap=8, ramp=fade_to_neighbours, grow=grow)
    assert out.shape == (1, 2, 1, 48 * grow[0] // grow[1], 80 * grow[0] // grow[1])
    assert asked == [(y, x) for y in (0, 16) for x in (0, 24, 48)]
    torch.testing.assert_close(out, torch.ones_like(out))


def test_one_tile_is_handed_out_as_it_is() -> None:
    x, answer = torch.randn(1, 1, 1, 9, 12), torch.randn(1, 1, 1, 9, 12, dtype=torch.float64)
    assert tiled(lambda rows, columns: answer, x, tile=12, overlap=8, ramp=fade_to_edges) is answer


def test_the_two_ramps() -> None:
    at = torch.arange(6)
    assert fade_to_edges(at, 2, False, False).tolist() == pytest.approx([1 / 3, 2 / 3, 1, 1, 2 / 3, 1 / 3])
    assert fade_to_neighbours(at, 2, False, True).tolist() == [1, 1, 1, 1, 0.75, 0.25]
    assert fade_to_neighbours(at, 2, True, False).tolist() == [0.25, 0.75, 1, 1, 1, 1]
