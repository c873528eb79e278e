# SPDX-License-Identifier: Apache-2.0
"""Losses against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from inlay.train import LossConfig
from inlay.train.losses import Pair, l1, log_mse, mse, pick_frames, temporal, temporal_static, weigh


def clip(*frames: float, width: int = 2) -> torch.Tensor:
    """[1, 1, T, 1, W] with one value a frame."""
    return torch.tensor(frames).view(1, 1, -1, 1, 1).expand(1, 1, len(frames), 1, width).clone()


def test_mean_errors() -> None:
    x, y = clip(0.0, 1.0, 2.0), clip(0.0, 1.5, 0.0)
    assert mse(x, y).item() == pytest.approx((0.25 + 4) / 3)
    assert l1(x, y).item() == pytest.approx(2.5 / 3)


def test_log_mse_counts_every_clip_alike() -> None:
    x = torch.zeros(2, 1, 1, 1, 1)
    y = torch.tensor([0.1, 1.0]).view(2, 1, 1, 1, 1)
    assert log_mse(x, y, eps=0.0).item() == pytest.approx((math.log(0.01) + math.log(1.0)) / 2, rel=1e-5)
    y.requires_grad_()
    log_mse(x, y, eps=0.0).backward()
    assert y.grad is not None
    relative = y.grad.flatten() * y.detach().flatten()
    assert relative[0].item() == pytest.approx(relative[1].item(), rel=1e-5)


def test_temporal_punishes_changes_of_the_error_only() -> None:
    x = clip(0.0, 1.0, 5.0)
    assert temporal(x, x + 3).item() == 0  # a constant error does not flicker, however large
    assert temporal(x, clip(0.0, 1.5, 5.0)).item() == pytest.approx((0.5 + 0.5) / 2)
    assert temporal(clip(1.0), clip(2.0)).item() == 0


def test_static_weighting_looks_where_nothing_moves() -> None:
    x = clip(0.0, 0.0, width=2)
    x[..., 1, :, 0] = 1.0  # the left pixel moves
    moving, standing = x.clone(), x.clone()
    moving[..., 1, :, 0] += 0.1
    standing[..., 1, :, 1] += 0.1
    assert temporal(x, moving).item() == pytest.approx(temporal(x, standing).item())
    assert temporal_static(x, standing).item() == pytest.approx(0.1, rel=1e-4)  # weights (0, 2), mean 1
    assert temporal_static(x, moving).item() < 1e-6


def test_terms_are_weighted_into_one_number() -> None:
    x, y = clip(0.0, 1.0), clip(0.0, 2.0)
    z, w = clip(1.0), clip(3.0)
    config = LossConfig(pixel=2.0, latent=0.5, temporal=3.0)
    found = weigh(config, Pair(x=x, x_hat=y, z=z, z_hat=w))
    assert {k: v.item() for k, v in found.terms.items()} == pytest.approx(
        {"pixel": 0.5, "latent": 4.0, "temporal": 1.0}
    )
    assert found.total.item() == pytest.approx(2 * 0.5 + 0.5 * 4 + 3 * 1)
    latent_only = weigh(
        LossConfig(pixel=0.0, temporal=1.0, temporal_form="latent"), Pair(z=clip(0, 0), z_hat=clip(0, 2))
    )
    assert latent_only.total.item() == pytest.approx(2.0 + 2.0)


def test_perceptual_frames_are_spread_over_the_clip() -> None:
    x = torch.arange(9.0).view(1, 1, 9, 1, 1).expand(2, 3, 9, 2, 2)
    assert pick_frames(x, 3)[:, 0, 0, 0].tolist() == [0, 4, 8, 0, 4, 8]
    assert len(pick_frames(x[:, :, :1], 3)) == 2
