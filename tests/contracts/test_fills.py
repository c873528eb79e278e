# SPDX-License-Identifier: Apache-2.0
"""What every fill promises, with and without weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from inlay.fill import FILLS, Lit, LitConfig, hold, linear

SMALL = {
    "paper": LitConfig(kind="paper", channels=4, width=48, heads=2, blocks=1, grid=12),
    "plus": LitConfig(kind="plus", channels=4, width=64, heads=2, blocks=2, grid=12),
}


def every_fill() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    fills = dict(FILLS)
    for name, config in SMALL.items():
        torch.manual_seed(0)
        lit = Lit.build(config).eval().requires_grad_(False)
        for p in lit.parameters():
            p.add_(0.02 * torch.randn_like(p))  # so that the zero-initialised output speaks too
        fills[name] = lit
    return fills


EVERY = every_fill()


def masked(T: int = 5, H: int = 6, W: int = 7) -> tuple[Tensor, Tensor]:
    z, keep = torch.randn(2, 4, T, H, W), torch.rand(2, T, H, W) < 0.4
    keep[:, 0] = True
    return z, keep


@pytest.mark.parametrize("name", EVERY)
class TestFill:
    def test_shape_no_nan_and_deterministic(self, name: str) -> None:
        z, keep = masked()
        out = EVERY[name](z, keep)
        assert out.shape == z.shape
        assert out.isfinite().all()
        assert torch.equal(out, EVERY[name](z, keep))

    def test_dropped_values_are_never_read(self, name: str) -> None:
        z, keep = masked()
        poisoned = torch.where(keep[:, None], z, torch.nan)
        assert torch.equal(EVERY[name](z, keep), EVERY[name](poisoned, keep))

    def test_one_slot_and_one_cell(self, name: str) -> None:
        z = torch.randn(1, 4, 1, 1, 1)
        assert EVERY[name](z, torch.ones(1, 1, 1, 1).bool()).shape == z.shape

    def test_large_grid(self, name: str) -> None:
        z, keep = masked(T=2, H=20, W=30)
        out = EVERY[name](z, keep)
        assert out.isfinite().all()


@pytest.mark.parametrize("name", [n for n in EVERY if n != "paper"])  # the paper's LIT predicts kept cells anew
def test_kept_cells_come_back_bit_for_bit(name: str) -> None:
    for size in ((5, 6, 7), (3, 20, 15)):
        z, keep = masked(*size)
        out = EVERY[name](z, keep)
        kept = keep[:, None].expand_as(z)
        assert torch.equal(out[kept], z[kept])


def test_full_mask_is_the_identity_but_for_paper() -> None:
    z, keep = masked()
    for name, fill in EVERY.items():
        if name != "paper":
            assert torch.equal(fill(z, torch.ones_like(keep)), z)


def test_untrained_plus_is_hold() -> None:
    z, keep = masked()
    assert torch.equal(Lit.build(SMALL["plus"])(z, keep), hold(z, keep))


def test_hold_and_linear_by_hand() -> None:
    z = torch.tensor([1.0, 9, 9, 4, 9]).view(1, 1, 5, 1, 1)
    keep = torch.tensor([1, 0, 0, 1, 0]).bool().view(1, 5, 1, 1)
    assert hold(z, keep).flatten().tolist() == [1, 1, 1, 4, 4]
    assert linear(z, keep).flatten().tolist() == [1, 2, 3, 4, 4]


def test_hold_takes_the_past_where_nothing_was_kept() -> None:
    z, keep = torch.randn(1, 2, 3, 2, 2), torch.zeros(1, 3, 2, 2).bool()
    past = torch.randn(1, 2, 2, 2)
    assert torch.equal(hold(z, keep, past), past[:, :, None].expand_as(z))
    assert not hold(z, keep).any()


def test_a_true_zero_is_not_a_hole() -> None:
    z = torch.tensor([3.0, 0.0, 9.0]).view(1, 1, 3, 1, 1)
    keep = torch.tensor([True, True, False]).view(1, 3, 1, 1)
    assert hold(z, keep).flatten().tolist() == [3, 0, 0]
