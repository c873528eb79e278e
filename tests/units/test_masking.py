# SPDX-License-Identifier: Apache-2.0
"""The scan against a direct transcription of Algorithm 1, and the properties the paper claims for it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inlay.errors import ConfigError, ShapeError, UsageError
from inlay.masking import CRITERIA, REFERENCES, MaskConfig, Profile, keep_mask, pixel_grid, scan


def algorithm_1(z_CTHW: Tensor, tau: float) -> Tensor:
    """Line by line as printed, one cell at a time."""
    C, T, H, W = z_CTHW.shape
    m = torch.zeros(T, H, W, dtype=torch.bool)
    m[0] = True
    ref = z_CTHW[:, 0].clone()
    for t in range(1, T):
        for y in range(H):
            for x in range(W):
                delta = (z_CTHW[:, t, y, x] - ref[:, y, x]).abs().sum() / C
                m[t, y, x] = delta >= tau
                if m[t, y, x]:
                    ref[:, y, x] = z_CTHW[:, t, y, x]
    return m


grids = st.tuples(st.integers(1, 3), st.integers(1, 8), st.integers(1, 7), st.integers(1, 4), st.integers(1, 4))


@settings(max_examples=60, deadline=None)
@given(shape=grids, tau=st.floats(0, 2), seed=st.integers(0, 2**31))
def test_last_kept_is_algorithm_1(shape: tuple[int, ...], tau: float, seed: int) -> None:
    # multiples of 1/8, channels a power of two: sums are exact, so ties at tau fall alike in any order of addition
    B, C, T, H, W = shape
    C = 2 ** (C % 4)
    z = torch.randint(-8, 9, (B, C, T, H, W), generator=torch.Generator().manual_seed(seed)) / 8
    tau = round(tau * 8) / 8
    keep = keep_mask(z, MaskConfig(tau=tau))
    for b in range(B):
        assert torch.equal(keep[b], algorithm_1(z[b], tau))


def test_equality_with_tau_keeps() -> None:
    z = torch.tensor([0.0, 0.25, 0.25]).view(1, 1, 3, 1, 1)
    assert keep_mask(z, MaskConfig(tau=0.25)).flatten().tolist() == [True, True, False]


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("reference", REFERENCES)
def test_cutting_time_anywhere_changes_nothing(criterion: str, reference: str) -> None:
    z = torch.randn(2, 4, 9, 3, 5).cumsum(2)
    config = MaskConfig(tau=0.8 if criterion != "latent-cosine" else 0.1, criterion=criterion, reference=reference)
    whole, end = scan(z, config)
    assert 0.12 < whole.float().mean() < 0.99
    for cut in range(1, 9):
        first, state = scan(z[:, :, :cut], config)
        rest, state = scan(z[:, :, cut:], config, state)
        assert torch.equal(torch.cat([first, rest], 1), whole)
        assert torch.equal(state, end)


def test_static_clip_keeps_slot_0_only() -> None:
    z = torch.randn(1, 16, 1, 4, 4).expand(-1, -1, 9, -1, -1)
    for criterion in ("latent-l1", "latent-l2", "latent-cosine"):
        mask = keep_mask(z, MaskConfig(tau=1e-6, criterion=criterion))
        assert mask.float().mean().item() == pytest.approx(1 / 9)
        assert mask.sum().item() == 16


def test_tau_zero_keeps_everything() -> None:
    assert keep_mask(torch.zeros(1, 2, 5, 3, 3), MaskConfig(tau=0)).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), low=st.floats(0, 1), gap=st.floats(0, 1))
def test_previous_is_monotone_in_tau(seed: int, low: float, gap: float) -> None:
    z = torch.randn(1, 3, 6, 3, 3, generator=torch.Generator().manual_seed(seed))
    small = keep_mask(z, MaskConfig(tau=low, reference="previous"))
    large = keep_mask(z, MaskConfig(tau=low + gap, reference="previous"))
    assert not (large & ~small).any()


def test_slow_drift_is_seen_by_last_kept_only() -> None:
    z = torch.linspace(0, 1, 11).view(1, 1, 11, 1, 1)
    assert keep_mask(z, MaskConfig(tau=0.35)).sum().item() == 3
    assert keep_mask(z, MaskConfig(tau=0.35, reference="previous")).sum().item() == 1


def test_decisions_do_not_depend_on_dtype() -> None:
    z = torch.randn(1, 16, 9, 8, 8).cumsum(2).bfloat16()
    config = MaskConfig(tau=0.9)
    assert torch.equal(keep_mask(z, config), keep_mask(z.float(), config))


def test_pixel_grid_is_appendix_f() -> None:
    x = torch.rand(1, 3, 9, 16, 24)
    pooled = pixel_grid(x, (3, 2, 3))
    assert pooled.shape == (1, 3, 3, 2, 3)
    torch.testing.assert_close(pooled[0, 1, 0, 1, 2], x[0, 1, 0, 8:16, 16:24].mean())
    torch.testing.assert_close(pooled[0, 2, 2, 0, 1], x[0, 2, 5:9, 0:8, 8:16].mean())
    with pytest.raises(ShapeError, match="do not fold"):
        pixel_grid(x, (4, 2, 3))


def test_pixel_l1_needs_pixels_and_ranks_them() -> None:
    z = torch.zeros(1, 16, 3, 2, 2)
    config = MaskConfig(tau=0.1, criterion="pixel-l1")
    with pytest.raises(ConfigError, match="none were given"):
        keep_mask(z, config)
    x = torch.zeros(1, 3, 9, 16, 16)
    x[:, :, 5:, :8, 8:] = 1
    keep = keep_mask(z, config, x)[0]
    assert keep.sum() == 4 + 1
    assert keep[2, 0, 1]


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="tau is a distance"):
        MaskConfig(tau=-1)
    with pytest.raises(ConfigError, match="tau is a distance"):
        MaskConfig(tau=float("nan"))
    with pytest.raises(UsageError, match="did you mean 'latent-l1'"):
        MaskConfig(criterion="latent_l1")
    with pytest.raises(UsageError, match="unknown reference"):
        MaskConfig(reference="next")


def test_profile_round_trip(tmp_path) -> None:  # type: ignore[no-untyped-def]
    profile = Profile(
        backbone="mini",
        weight_hash="ab",
        tau=0.3,
        score_mean=0.4,
        score_std=0.2,
        taus=(0.1, 0.2),
        keep_rates=(0.9, 0.5),
    )
    profile.save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json") == profile
    assert profile.selectivity == pytest.approx(0.5)
    (tmp_path / "p.json").write_text('{"tau": 1}')
    with pytest.raises(ConfigError, match="is not a profile"):
        Profile.load(tmp_path / "p.json")
