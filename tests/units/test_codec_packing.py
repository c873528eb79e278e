# SPDX-License-Identifier: Apache-2.0
"""Kept cells are moved to the front in two ways, one that waits for nobody and one for the CPU: the same cells."""

from __future__ import annotations

import pytest
import torch

from inlay.codec.packing import pack_kept, pick_kept, scatter_kept


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_both_ways_pack_the_same_cells(share: float) -> None:
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(2, 5, 3, 4, 6, generator=rng)
    keep = torch.rand(2, 3, 4, 6, generator=rng) < share
    found, counts = pick_kept(z, keep)
    wanted, wanted_counts = scatter_kept(z, keep)
    assert torch.equal(counts, wanted_counts) and torch.equal(counts, keep.flatten(1).sum(1))
    for row, other, count in zip(found, wanted, counts.tolist(), strict=True):
        assert torch.equal(row[:count], other[:count])
    assert found.shape == wanted.shape


def test_on_a_cpu_nobody_waits_and_kept_cells_alone_are_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inlay.codec.packing.scatter_kept", None)
    z, keep = torch.randn(1, 2, 1, 2, 2), torch.tensor([True, False, False, True]).view(1, 1, 2, 2)
    packed, counts = pack_kept(z, keep)
    assert counts.tolist() == [2] and torch.equal(packed[0, :2], z[0, :, 0].flatten(1).t()[[0, 3]])
