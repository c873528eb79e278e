# SPDX-License-Identifier: Apache-2.0
"""The packing kernel against the plain one: the same cells in the same order, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from inlay.codec.packing import pack_kept, scatter_kept
from tests.triton_here import DEVICE, needs_triton


def assert_same(z_BCTHW: Tensor, keep_BTHW: Tensor) -> None:
    from inlay.kernels.pack_triton import pack

    (values, counts), (want, want_counts) = pack(z_BCTHW, keep_BTHW), scatter_kept(z_BCTHW, keep_BTHW)
    assert torch.equal(counts, want_counts) and counts.dtype == want_counts.dtype
    assert torch.equal(counts, keep_BTHW.flatten(1).sum(1)) and values.shape == want.shape and values.is_contiguous()
    for z_CTHW, keep_THW, own, other, count in zip(z_BCTHW, keep_BTHW, values, want, counts.tolist(), strict=True):
        assert torch.equal(own[:count], other[:count])
        assert torch.equal(own[:count], z_CTHW.permute(1, 2, 3, 0)[keep_THW])


@needs_triton
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.6, 1.0])
@pytest.mark.parametrize(
    "shape", [(1, 16, 4, 6, 7), (3, 16, 3, 9, 15), (2, 3, 1, 1, 1), (1, 48, 5, 8, 9), (2, 130, 2, 3, 5)]
)
def test_kept_cells_come_first(shape: tuple[int, ...], rate: float) -> None:
    z = torch.randn(shape, device=DEVICE)
    assert_same(z, torch.rand(z[:, 0].shape, device=DEVICE) < rate)


@needs_triton
def test_slots_longer_than_what_is_counted_together() -> None:
    z = torch.randn(1, 4, 2, 36, 40, device=DEVICE)
    assert_same(z, torch.rand(1, 2, 36, 40, device=DEVICE) < 0.5)


@needs_triton
def test_any_layout() -> None:
    z = torch.randn(2, 8, 3, 9, 11, device=DEVICE)
    keep = torch.rand(2, 3, 9, 11, device=DEVICE) < 0.4
    assert_same(z.permute(0, 2, 3, 4, 1).contiguous().permute(0, 4, 1, 2, 3), keep)
    assert_same(z[..., 1:6, 2:7], keep[..., 1:6, 2:7])
    assert_same(z.half(), keep)


@pytest.mark.gpu
def test_it_is_taken_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from inlay.kernels import pack_triton

    z, keep = torch.randn(4, 16, 9, 32, 32, device="cuda"), torch.rand(4, 9, 32, 32, device="cuda") < 0.4
    assert_same(z, keep)
    monkeypatch.setattr(pack_triton, "pack", lambda z, keep: "taken")
    assert pack_kept(z, keep) == "taken"
    monkeypatch.setenv("INLAY_FAST", "0")
    assert pack_kept(z, keep) != "taken"
