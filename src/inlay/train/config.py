# SPDX-License-Identifier: Apache-2.0
"""Everything that decides what a training run does, checked when made. Needs no torch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from inlay.errors import ConfigError, InlayError, pick

LOSSES = ("mse", "log-mse", "l1")
TEMPORAL_FORMS = ("pixel", "latent", "static")
OPTIMIZERS = ("adamw", "muon")
SCHEDULES = ("cosine", "linear", "constant")
PRECISIONS = ("fp32", "tf32", "bf16")
STARTS = ("random", "grid")
CROPS = ("random", "centre")
BALANCES = ("clips", "frames")


class TrainError(InlayError):
    """A run that cannot go on: the loss is not a number, the disk is full, the data are too short."""


TASKS = ("lit", "backbone", "together")  # what is trained


def option(default: Any, text: str, *, free: bool = False, only: tuple[str, ...] = TASKS) -> Any:
    """A field with its help text.

    Args:
        free: it may change when a run is resumed.
        only: the tasks that it does something for.
    """
    return field(default=default, metadata={"help": text, "free": free, "only": only})


def _choice(kind: str, name: str, choices: Iterable[str]) -> None:
    pick(kind, name, dict.fromkeys(choices))


def _range(name: str, pair: tuple[float, float], *, low: float) -> None:
    if len(pair) != 2 or not low <= pair[0] <= pair[1] < math.inf:
        raise ConfigError(f"{name} is a range (low, high) with {low:g} <= low <= high; got {tuple(pair)}")


def _at_least(name: str, value: float, low: float) -> None:
    if not low <= value < math.inf:
        raise ConfigError(f"{name} must be a number of at least {low:g}; got {value}")


@dataclass(frozen=True, kw_only=True)
class ClipConfig:
    """How a training clip is cut out of a video."""

    frames: int = option(33, "frames of a clip: 1 + a multiple of the backbone's time stride")
    size: int = option(256, "height and width of a clip in pixels")
    interval: tuple[int, int] = option((3, 3), "frame interval, drawn from this range")
    start: str = option("random", "first frame: random, or grid (every clip-length, no overlap)")
    crop: str = option("random", "place of the crop: random or centre")
    zoom: tuple[float, float] = option(
        (1.0, 1.0), "the short side becomes size x zoom before the crop; drawn from this range"
    )
    flip: bool = option(True, "mirror half of the clips left to right")
    reverse: bool = option(False, "play half of the clips backwards")
    balance: str = option("clips", "every video equally often (clips) or by its length (frames)")

    def __post_init__(self) -> None:
        _at_least("frames", self.frames, 1)
        if self.size < 8 or self.size % 8:
            raise ConfigError(f"size must be a multiple of 8; got {self.size}")
        _range("interval", self.interval, low=1)
        _range("zoom", self.zoom, low=1)
        _choice("start", self.start, STARTS)
        _choice("crop", self.crop, CROPS)
        _choice("balance", self.balance, BALANCES)

    @property
    def augmented(self) -> bool:
        """Whether two visits to the same window of a video may give different clips."""
        ranges = self.interval[0] != self.interval[1] or self.zoom[0] != self.zoom[1]
        return ranges or self.start == "random" or self.crop == "random" or self.flip or self.reverse

    @property
    def shortest(self) -> int:
        """Frames a video needs to yield a clip."""
        return (self.frames - 1) * self.interval[0] + 1


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Weights of the terms; a weight of 0 leaves its term out."""

    pixel: float = option(1.0, "weight of the pixel term")
    pixel_loss: str = option("mse", "form of the pixel term: mse, log-mse (PSNR itself) or l1")
    latent: float = option(1.0, "weight of the latent term", only=("lit",))
    latent_loss: str = option("mse", "form of the latent term: mse, log-mse or l1", only=("lit",))
    temporal: float = option(0.0, "weight of the temporal-difference term")
    temporal_form: str = option("pixel", "form of it: pixel, latent or static (static-weighted)")
    perceptual: float = option(0.0, "weight of LPIPS")
    perceptual_frames: int = option(4, "frames of each clip that LPIPS looks at")
    latent_size: float = option(0.0, "weight of the mean square of latents", only=("backbone", "together"))

    def __post_init__(self) -> None:
        for name in ("pixel", "latent", "temporal", "perceptual", "latent_size"):
            _at_least(name, getattr(self, name), 0)
        _at_least("perceptual_frames", self.perceptual_frames, 1)
        _choice("pixel_loss", self.pixel_loss, LOSSES)
        _choice("latent_loss", self.latent_loss, LOSSES)
        _choice("temporal_form", self.temporal_form, TEMPORAL_FORMS)
        if not (self.pixel or self.latent or self.temporal or self.perceptual):
            raise ConfigError("every loss weight is 0: there is nothing to learn; give pixel or latent a weight")


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """How gradients become steps."""

    optimizer: str = option("adamw", "optimiser: adamw, or muon (for matrices; adamw for the rest)")
    lr: float = option(5e-4, "highest learning rate")
    min_lr: float = option(1e-5, "learning rate at the end")
    warmup: int = option(0, "steps over which the learning rate rises from 0")
    schedule: str = option("cosine", "fall of the learning rate: cosine, linear or constant")
    weight_decay: float = option(1e-4, "decoupled weight decay")
    decay_all: bool = option(True, "decay biases and norms too (off: matrices only)")
    betas: tuple[float, float] = option((0.9, 0.999), "AdamW's betas")
    momentum: float = option(0.95, "muon's momentum")
    clip_norm: float = option(0.0, "largest gradient norm; 0: no clipping")
    ema: float = option(0.0, "decay of the averaged weights; 0: no averaging")

    def __post_init__(self) -> None:
        _choice("optimizer", self.optimizer, OPTIMIZERS)
        _choice("schedule", self.schedule, SCHEDULES)
        if not 0 <= self.min_lr <= self.lr < math.inf or not self.lr > 0:
            raise ConfigError(f"learning rates need 0 <= min_lr <= lr, lr > 0; got min_lr={self.min_lr}, lr={self.lr}")
        for name in ("warmup", "weight_decay", "clip_norm"):
            _at_least(name, getattr(self, name), 0)
        for name, value in (("ema", self.ema), ("momentum", self.momentum), *(("betas", b) for b in self.betas)):
            if not 0 <= value < 1:
                raise ConfigError(f"{name} must be in [0, 1); got {value}")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One run. Fields marked `free` may change when a run is resumed: they do not touch the result."""

    steps: int = option(10_000, "optimiser steps")
    batch: int = option(16, "clips per step, over all processes and accumulated parts")
    accumulate: int = option(1, "parts a step's clips are cut into, to fit the memory")
    tau: tuple[float, float] = option(
        (0.3, 0.3), "masking threshold, drawn log-uniformly (together: in mean changes)", only=("lit", "together")
    )
    criterion: str = option("latent-l1", "masking criterion", only=("lit", "together"))
    reference: str = option("last-kept", "masking reference", only=("lit", "together"))
    latent_noise: float = option(0.0, "standard deviation of noise put on latents", only=("backbone", "together"))
    masked: float = option(0.0, "share of clips that are masked and filled", only=("together",))
    precision: str = option("fp32", "arithmetic: fp32, tf32 or bf16 (autocast)")
    seed: int = option(0, "decides clips, crops, thresholds and first weights")
    max_seconds: float = option(0.0, "time budget: the schedule ends with it; 0: steps alone")
    validate_every: int = option(500, "steps between validations; 0: only at the end")
    validate_clips: int = option(16, "clips that validation looks at")
    validate_interval: int = option(1, "frame interval in validation")
    validate_tau: float = option(0.0, "threshold in validation; 0: the middle of the tau range", only=("lit",))
    checkpoint_every: int = option(250, "steps between checkpoints", free=True)
    log_every: int = option(10, "steps between log lines", free=True)
    compile: bool = option(False, "compile the networks with torch.compile", free=True)
    record: bool = option(False, "play steps back as a CUDA graph (one GPU)", free=True)
    pictures: int = option(4, "clips shown in validation pictures; 0: none", free=True)
    tensorboard: bool = option(False, "write TensorBoard events (extra: train)", free=True)
    latent_cache: str = option("", "folder that keeps latents between visits", only=("lit",))
    clips: ClipConfig = field(default_factory=ClipConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulate", "checkpoint_every", "log_every", "validate_interval"):
            _at_least(name, getattr(self, name), 1)
        for name in ("seed", "max_seconds", "validate_every", "validate_clips", "validate_tau", "pictures"):
            _at_least(name, getattr(self, name), 0)
        _at_least("latent_noise", self.latent_noise, 0)
        if self.seed >= 2**63:
            raise ConfigError(f"seed must be below 2**63; got {self.seed}")
        if not 0 <= self.masked <= 1:
            raise ConfigError(f"masked is a share of the clips, in [0, 1]; got {self.masked}")
        _range("tau", self.tau, low=0)
        _choice("precision", self.precision, PRECISIONS)
        if self.batch % self.accumulate:
            raise ConfigError(f"a batch of {self.batch} clips cannot be cut into {self.accumulate} equal parts")
        if self.latent_cache and self.clips.augmented:
            raise ConfigError(
                "a latent cache needs clips that come back unchanged; "
                "set start=grid, crop=centre, flip off, reverse off and single values for interval and zoom"
            )

    @property
    def shortest_validated(self) -> int:
        """Frames a video needs to be validated on."""
        return (self.clips.frames - 1) * self.validate_interval + 1

    def with_options(self, **options: Any) -> TrainConfig:
        """A copy with fields of any of the four groups changed, by their plain names."""
        parts: dict[str, dict[str, Any]] = {"clips": {}, "loss": {}, "optim": {}, "": {}}
        owners = {name: group for group, f in option_fields() for name in [f.name]}
        for name, value in options.items():
            parts[pick("training option", name, owners)][name] = tuple(value) if isinstance(value, list) else value
        groups = {g: dataclasses.replace(getattr(self, g), **parts[g]) for g in ("clips", "loss", "optim") if parts[g]}
        return dataclasses.replace(self, **groups, **parts[""])


def option_fields(task: str | None = None) -> list[tuple[str, dataclasses.Field[Any]]]:
    """(group, field) of every plain setting, or of those for one task; the group of TrainConfig's own is ''. The
    command line's flags."""
    own = [("", f) for f in fields(TrainConfig) if f.name not in ("clips", "loss", "optim")]
    groups = (("clips", ClipConfig), ("loss", LossConfig), ("optim", OptimConfig))
    found = own + [(group, f) for group, cls in groups for f in fields(cls)]
    return [(group, f) for group, f in found if task is None or task in f.metadata["only"]]


def changed_settings(old: Mapping[str, Any], new: TrainConfig) -> list[str]:
    """Settings in which a run's stored configuration differs from `new`, without those that may change freely."""
    names = []
    for group, f in option_fields():
        then, now = (old.get(group, {}), getattr(new, group)) if group else (old, new)
        stored = then.get(f.name, f.default)  # one that is younger than the run had its default then
        value = tuple(stored) if isinstance(stored, list) else stored
        if value != getattr(now, f.name) and not f.metadata["free"]:
            names.append(f"{group}.{f.name}" if group else f.name)
    return names
