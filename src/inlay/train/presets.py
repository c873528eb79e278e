# SPDX-License-Identifier: Apache-2.0
"""The training recipes for a LIT and for the embedded backbone, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from inlay.train.config import ClipConfig, LossConfig, OptimConfig, TrainConfig

NATIVE = 256 / 192  # a crop of 192 from clips whose short side is 256: pixels as they are, nothing resampled
OURS = OptimConfig(
    optimizer="muon", lr=2e-3, min_lr=2e-5, warmup=200, weight_decay=0.01, decay_all=False, betas=(0.9, 0.95),
    clip_norm=1.0, ema=0.998,
)  # fmt: skip


def paper_training() -> TrainConfig:
    """The paper's set-up: tau fixed, pixel MSE + latent MSE, AdamW 5e-4 to 1e-5, 16 clips, 10,000 steps, interval 3."""
    return TrainConfig(
        steps=10_000,
        batch=16,
        tau=(0.3, 0.3),
        clips=ClipConfig(frames=33, size=256, interval=(3, 3)),
        loss=LossConfig(pixel=1.0, latent=1.0),
        optim=OptimConfig(optimizer="adamw", lr=5e-4, min_lr=1e-5, schedule="cosine", weight_decay=1e-4),
    )


def plus_training() -> TrainConfig:
    """Ours: one model for every rate, every clip counted by its own PSNR, averaged weights."""
    return TrainConfig(
        steps=20_000,
        batch=16,
        tau=(0.3, 3.0),
        precision="bf16",
        clips=ClipConfig(frames=33, size=192, interval=(1, 3), zoom=(NATIVE, NATIVE), reverse=True),
        loss=LossConfig(pixel=1.0, pixel_loss="log-mse", latent=0.1),
        optim=OURS,
    )


def mini_training() -> TrainConfig:
    """The embedded backbone."""
    return TrainConfig(
        steps=40_000,
        batch=16,
        precision="bf16",
        latent_noise=0.05,
        clips=ClipConfig(frames=17, size=192, interval=(1, 2), zoom=(NATIVE, NATIVE), reverse=True),
        loss=LossConfig(pixel=1.0, pixel_loss="log-mse", latent=0.0, latent_size=3e-3),
        optim=replace(OURS, lr=2.5e-3, min_lr=1e-5, ema=0.999),
    )


def together_training() -> TrainConfig:
    """The embedded backbone and its LIT at once: half of the clips go through the mask."""
    return replace(mini_training(), masked=0.5, tau=(0.4, 4.0))


def smoke_training() -> TrainConfig:
    """Seconds on a CPU: to see that everything is in place, not to learn."""
    return TrainConfig(
        steps=4, batch=2, validate_every=2, validate_clips=2, checkpoint_every=2, log_every=1, pictures=1,
        clips=ClipConfig(frames=5, size=32, interval=(1, 1)), optim=OptimConfig(lr=1e-3, min_lr=1e-4),
    )  # fmt: skip


def smoke_together() -> TrainConfig:
    return replace(smoke_training(), masked=0.5, tau=(0.4, 4.0), loss=LossConfig(latent=0.0))


Presets = dict[str, Callable[[], TrainConfig]]
LIT_PRESETS: Presets = {"paper": paper_training, "plus": plus_training, "smoke": smoke_training}
BACKBONE_PRESETS: Presets = {"mini": mini_training, "smoke": smoke_training}
TOGETHER_PRESETS: Presets = {"together": together_training, "smoke": smoke_together}
