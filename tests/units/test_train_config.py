# SPDX-License-Identifier: Apache-2.0
"""Training settings: checked when made, named when changed, the same through JSON; presets as the paper says."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from inlay.errors import ConfigError, UsageError
from inlay.train import BACKBONE_PRESETS, LIT_PRESETS, ClipConfig, LossConfig, OptimConfig, TrainConfig
from inlay.train.config import changed_settings, option_fields


@pytest.mark.parametrize("name", LIT_PRESETS | BACKBONE_PRESETS)
def test_configs_survive_json(name: str) -> None:
    config = (LIT_PRESETS | BACKBONE_PRESETS)[name]()
    assert changed_settings(json.loads(json.dumps(asdict(config))), config) == []


def test_the_paper_preset_is_the_papers_setup() -> None:
    c = LIT_PRESETS["paper"]()
    assert (c.steps, c.batch, c.tau) == (10_000, 16, (0.3, 0.3))
    assert (c.clips.frames, c.clips.size, c.clips.interval) == (33, 256, (3, 3))
    assert (c.loss.pixel, c.loss.pixel_loss, c.loss.latent, c.loss.latent_loss) == (1.0, "mse", 1.0, "mse")
    assert (c.loss.temporal, c.loss.perceptual) == (0.0, 0.0)
    o = c.optim
    assert (o.optimizer, o.lr, o.min_lr, o.schedule, o.weight_decay) == ("adamw", 5e-4, 1e-5, "cosine", 1e-4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ClipConfig(size=100), "multiple of 8"),
        (lambda: ClipConfig(interval=(3, 1)), "range"),
        (lambda: ClipConfig(zoom=(0.5, 1)), "range"),
        (lambda: LossConfig(pixel=0, latent=0), "nothing to learn"),
        (lambda: LossConfig(pixel=-1), "at least 0"),
        (lambda: OptimConfig(lr=1e-5, min_lr=1e-4), "min_lr"),
        (lambda: OptimConfig(ema=1.0), "ema"),
        (lambda: OptimConfig(lr=float("inf")), "learning rates"),
        (lambda: TrainConfig(tau=(0.3, float("inf"))), "range"),
        (lambda: LossConfig(pixel=float("inf")), "at least 0"),
        (lambda: TrainConfig(seed=2**63), "below"),
        (lambda: TrainConfig(steps=0), "steps"),
        (lambda: TrainConfig(batch=6, accumulate=4), "equal parts"),
        (lambda: TrainConfig(latent_cache="there"), "unchanged"),
    ],
)
def test_settings_outside_their_range_are_refused(make, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=words):
        make()


def test_an_unknown_choice_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'log-mse'"):
        LossConfig(pixel_loss="logmse")
    with pytest.raises(UsageError, match="did you mean 'frames'"):
        TrainConfig().with_options(frame=3)


def test_options_reach_their_group_by_plain_name() -> None:
    c = TrainConfig().with_options(lr=1e-3, frames=17, pixel=2.0, steps=7)
    assert (c.optim.lr, c.clips.frames, c.loss.pixel, c.steps) == (1e-3, 17, 2.0, 7)
    names = [f.name for _, f in option_fields()]
    assert len(names) == len(set(names)), "a flag would be ambiguous"
    assert all(f.metadata.get("help") for _, f in option_fields())


def test_changes_that_matter_are_named() -> None:
    old = TrainConfig()
    stored = json.loads(json.dumps(asdict(old)))
    assert changed_settings(stored, old.with_options(lr=1e-4, seed=3, log_every=1)) == ["seed", "optim.lr"]
    del stored["loss"]["perceptual"], stored["masked"]
    assert changed_settings(stored, old) == [], "settings that are younger than the run had their defaults"
