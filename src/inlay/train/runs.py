# SPDX-License-Identifier: Apache-2.0
"""Train by names and paths: what the commands of `inlay train` call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from inlay.backbones import Mini, MiniConfig, load_backbone
from inlay.fill import Lit, LitConfig, plus
from inlay.train.checkpoint import seed_random, start_from
from inlay.train.config import TrainConfig
from inlay.train.data import FileClips, LatentCache
from inlay.train.loop import TrainResult, fit
from inlay.train.processes import join_processes
from inlay.train.tasks import BackboneTask, LitTask, Task
from inlay.train.together import TogetherTask
from inlay.train.validate import ValidationSet

Network = TypeVar("Network", Lit, Mini)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where a run finds its videos and leaves its files, and how it is carried out."""

    run_dir: str | Path
    data: str | Path
    validate: str | Path | None = None  # None: some of the videos are held out
    layout: str = "auto"
    device: torch.device | str = "cpu"
    workers: int = 2
    resume: bool = False
    stop_after: float = 0.0  # seconds
    quiet: bool = False


def train_lit(
    config: TrainConfig,
    options: RunOptions,
    *,
    lit: LitConfig,
    backbone: str = "mini",
    backbone_weights: str | Path | None = None,
    trust: bool = False,
    start: str | Path | None = None,
) -> TrainResult:
    """Train a LIT on videos, from nothing or from the weights `start`."""

    def task(clips: FileClips, validation: ValidationSet | None, device: torch.device) -> LitTask:
        frozen = load_backbone(backbone, weights=backbone_weights, device=device, trust=trust)
        seed_random(config.seed)
        cache = None
        if config.latent_cache:
            weight_hash = frozen.spec.weight_hash
            cache = LatentCache(config.latent_cache, weight_hash=weight_hash, entries=clips.entries)
        module = _network(Lit.build(replace(lit, channels=frozen.spec.channels)), start, device)
        return LitTask(module, frozen, config, validation=validation, cache=cache)

    return _run(task, config, options, start)


def train_backbone(
    config: TrainConfig, options: RunOptions, *, shape: MiniConfig | None = None, start: str | Path | None = None
) -> TrainResult:
    """Train a `mini` from nothing, or from the weights `start`, which may have fewer blocks."""

    def task(clips: FileClips, validation: ValidationSet | None, device: torch.device) -> BackboneTask:
        seed_random(config.seed)
        return BackboneTask(_network(Mini(shape), start, device), config, validation=validation)

    return _run(task, config, options, start)


def train_together(
    config: TrainConfig,
    options: RunOptions,
    *,
    shape: MiniConfig | None = None,
    lit: LitConfig | None = None,
    start: str | Path | None = None,
    start_lit: str | Path | None = None,
) -> TrainResult:
    """Train a `mini` and its LIT at once, each from nothing or from weights."""

    def task(clips: FileClips, validation: ValidationSet | None, device: torch.device) -> TogetherTask:
        seed_random(config.seed)
        mini = Mini(shape)
        fill = Lit.build(replace(lit or plus(), channels=mini.spec.channels))
        networks = _network(mini, start, device), _network(fill, start_lit, device)
        return TogetherTask(*networks, config, validation=validation)

    return _run(task, config, options, start, start_lit)


def _network(module: Network, weights: str | Path | None, device: torch.device) -> Network:
    """The network on its device, filled from `weights` where there are any."""
    if weights is not None:
        start_from(module, weights)
    return module.to(device)


def _run(
    make: Callable[[FileClips, ValidationSet | None, torch.device], Task],
    config: TrainConfig,
    options: RunOptions,
    *starts: str | Path | None,
) -> TrainResult:
    """Open the videos, make the task, train; the run folder names what it began from and is validated on."""
    processes = join_processes(options.device)
    clips, held_out, problems = open_clips(config, options)
    validation = ValidationSet.of(held_out, config, processes.device) if held_out else None
    task = make(clips, validation, processes.device)
    return fit(
        task, clips, config, options.run_dir, resume=options.resume, problems=problems, processes=processes,
        begun_from=[str(Path(weights).resolve()) for weights in starts if weights is not None],
        validate_entries=validation.entries if validation else (), stop_after=options.stop_after, quiet=options.quiet,
    )  # fmt: skip


def open_clips(config: TrainConfig, options: RunOptions) -> tuple[FileClips, FileClips | None, list[str]]:
    """(videos to learn from, videos to validate on, what was wrong with others)."""
    clips, problems = FileClips.find(options.data, layout=options.layout, workers=options.workers)
    if options.validate is not None:
        held_out, more = FileClips.find(options.validate, split="val", workers=options.workers)
        return clips, clips.of(held_out.entries), problems + more
    need = config.shortest_validated
    long = sum(e.frames >= need for e in clips.entries)
    if not config.validate_clips or long < 2:
        return clips, None, problems
    rest, held = clips.split(min(config.validate_clips, max(1, long // 10)), shortest=need)
    return rest, held, problems
