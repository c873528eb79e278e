# SPDX-License-Identifier: Apache-2.0
"""Calibration: the ladder's masks are the encoder's, statistics are plain means, tau is the mean score."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inlay.errors import ShapeError, UsageError
from inlay.masking import MaskConfig, Profile, keep_mask, keep_rate_of
from inlay.measure import calibrate
from inlay.research.studies.pictures import slot_edges


def latents(clips: int = 3) -> torch.Tensor:
    torch.manual_seed(1)
    steps = torch.randn(clips, 16, 9, 6, 6) * 0.4 * torch.rand(clips, 1, 1, 6, 6)
    return steps.cumsum(2) + torch.randn(clips, 16, 1, 6, 6)


@pytest.fixture(scope="module")
def spec(tiny_mini):
    return tiny_mini.spec


def profiled(spec, z: torch.Tensor, batches: int = 1) -> Profile:
    state = calibrate.start(spec)
    for part in z.chunk(batches):
        state = calibrate.update(state, part)
    return calibrate.finish(state, data="made")


def test_a_level_stands_over_the_frames_of_its_slot(spec) -> None:
    assert slot_edges(spec, 9, 18) == [0, 1, 5, 9, 10, 14, 18]


def test_each_rung_keeps_what_the_encoder_keeps(spec) -> None:
    z = latents(1)
    taus = torch.tensor([0.05, 0.3, 0.8])
    keep, scores = calibrate.score_scan(z[0], taus)
    for tau, mask in zip(taus.tolist(), keep, strict=True):
        assert torch.equal(mask, keep_mask(z, MaskConfig(tau=tau))[0])
    assert scores.shape == (3, 8, 6, 6)
    assert torch.equal(keep[:, 1:], scores >= taus.view(3, 1, 1, 1))


def test_the_table_of_keep_rates_is_measured_and_falls(spec) -> None:
    z = latents()
    profile = profiled(spec, z)
    assert list(profile.taus) == sorted(profile.taus)
    for k in (0, 20, 40, 55):
        want = keep_rate_of(keep_mask(z, MaskConfig(tau=float(torch.tensor(profile.taus[k], dtype=torch.float32)))))
        assert profile.keep_rates[k] == pytest.approx(want, abs=1e-9)
    assert all(a >= b for a, b in zip(profile.keep_rates, profile.keep_rates[1:], strict=False))


def test_statistics_keep_slot_0_apart(spec) -> None:
    z = latents()
    profile = profiled(spec, z)
    later, first = z[:, :, 1:].transpose(0, 1).flatten(1), z[:, :, :1].transpose(0, 1).flatten(1)
    assert torch.allclose(torch.tensor(profile.latent_mean), later.mean(1), atol=1e-5)
    assert torch.allclose(torch.tensor(profile.latent_std), later.std(1, correction=0), atol=1e-5)
    assert torch.allclose(torch.tensor(profile.first_std), first.std(1, correction=0), atol=1e-5)
    assert sum(profile.score_counts) == 3 * 8 * 36 and len(profile.score_edges) == len(profile.score_counts) + 1


def test_suggested_tau_is_the_mean_of_its_own_scores(spec) -> None:
    z = latents()
    profile = profiled(spec, z)
    _, scores = calibrate.score_scan(z[0], torch.tensor([profile.tau]))
    rest = [calibrate.score_scan(c, torch.tensor([profile.tau]))[1] for c in z[1:]]
    mean = float(torch.cat([scores, *rest]).mean())
    assert mean == pytest.approx(profile.tau, rel=0.03)
    assert profile.score_mean == pytest.approx(mean, rel=0.03)
    assert profile.selectivity == pytest.approx(profile.score_std / profile.score_mean)


def test_batches_make_no_difference_and_a_profile_comes_back_from_its_file(spec, tmp_path: Path) -> None:
    z = latents()
    one, three = profiled(spec, z), profiled(spec, z, batches=3)
    assert one.tau == three.tau and one.keep_rates == pytest.approx(three.keep_rates)
    one.save(tmp_path / "p.json")
    assert Profile.load(tmp_path / "p.json") == one
    old = Profile(backbone="x", weight_hash="y", tau=0.3)
    old.save(tmp_path / "old.json")
    assert Profile.load(tmp_path / "old.json") == old


def test_what_cannot_be_calibrated(spec) -> None:
    with pytest.raises(UsageError, match="two slots"):
        profiled(spec, latents()[:, :, :1])
    with pytest.raises(ShapeError, match="16"):
        calibrate.update(calibrate.start(spec), torch.zeros(1, 3, 2, 4, 4))
