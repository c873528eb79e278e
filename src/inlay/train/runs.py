# SPDX-License-Identifier: Apache-2.0
"""Train by names and paths: what the commands of `inlay train` call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from inlay.backbones import Mini, MiniConfig, load_backbone
from inlay.fill import Lit, LitConfig, plus
from inlay.train.checkpoint import seed_random, start_from
from inlay.train.config import TrainConfig
from inlay.train.data import FileClips, LatentCache
from inlay.train.loop import TrainResult, fit
from inlay.train.processes import Processes, join_processes
from inlay.train.tasks import BackboneTask, LitTask
from inlay.train.together import TogetherTask
from inlay.train.validate import ValidationSet

Network = TypeVar("Network", Lit, Mini)


def train_lit(
    config: TrainConfig,
    run_dir: str | Path,
    *,
    data: str | Path,
    lit: LitConfig,
    validate: str | Path | None = None,
    layout: str = "auto",
    backbone: str = "mini",
    backbone_weights: str | Path | None = None,
    trust: bool = False,
    start: str | Path | None = None,
    device: torch.device | str = "cpu",
    workers: int = 2,
    resume: bool = False,
    stop_after: float = 0.0,
    quiet: bool = False,
) -> TrainResult:
    """Train a LIT on videos, from nothing or from the weights `start`.

    Without a place for validation some of the videos are held out.
    """
    processes = join_processes(device)
    clips, held_out, problems = open_clips(config, data, validate, processes, layout=layout, workers=workers)
    frozen = load_backbone(backbone, weights=backbone_weights, device=processes.device, trust=trust)
    seed_random(config.seed)
    cache = None
    if config.latent_cache:
        cache = LatentCache(config.latent_cache, weight_hash=frozen.spec.weight_hash, entries=clips.entries)
    module = begun(Lit.build(replace(lit, channels=frozen.spec.channels)), start, processes)
    task = LitTask(module, frozen, config, validation=held_out, cache=cache)
    return run_task(
        task, clips, run_dir, problems, processes, start=[start], resume=resume, stop_after=stop_after, quiet=quiet
    )


def train_backbone(
    config: TrainConfig,
    run_dir: str | Path,
    *,
    data: str | Path,
    shape: MiniConfig | None = None,
    start: str | Path | None = None,
    validate: str | Path | None = None,
    layout: str = "auto",
    device: torch.device | str = "cpu",
    workers: int = 2,
    resume: bool = False,
    stop_after: float = 0.0,
    quiet: bool = False,
) -> TrainResult:
    """Train a `mini` from nothing, or from the weights `start`, which may have fewer blocks."""
    processes = join_processes(device)
    clips, held_out, problems = open_clips(config, data, validate, processes, layout=layout, workers=workers)
    seed_random(config.seed)
    task = BackboneTask(begun(Mini(shape), start, processes), config, validation=held_out)
    return run_task(
        task, clips, run_dir, problems, processes, start=[start], resume=resume, stop_after=stop_after, quiet=quiet
    )


def train_together(
    config: TrainConfig,
    run_dir: str | Path,
    *,
    data: str | Path,
    shape: MiniConfig | None = None,
    lit: LitConfig | None = None,
    start: str | Path | None = None,
    start_lit: str | Path | None = None,
    validate: str | Path | None = None,
    layout: str = "auto",
    device: torch.device | str = "cpu",
    workers: int = 2,
    resume: bool = False,
    stop_after: float = 0.0,
    quiet: bool = False,
) -> TrainResult:
    """Train a `mini` and its LIT at once, each from nothing or from weights."""
    processes = join_processes(device)
    clips, held_out, problems = open_clips(config, data, validate, processes, layout=layout, workers=workers)
    seed_random(config.seed)
    mini, fill = Mini(shape), Lit.build(lit or plus())  # both made before one is filled: in the order of random numbers
    parts = begun(mini, start, processes), begun(fill, start_lit, processes)
    task = TogetherTask(*parts, config, validation=held_out)
    return run_task(
        task, clips, run_dir, problems, processes, start=[start, start_lit], resume=resume, stop_after=stop_after,
        quiet=quiet,
    )  # fmt: skip


def begun(module: Network, weights: str | Path | None, processes: Processes) -> Network:
    """The network on its device, filled from `weights` where there are any."""
    if weights is not None:
        start_from(module, weights)
    return module.to(processes.device)


def run_task(
    task: LitTask | BackboneTask | TogetherTask,
    clips: FileClips,
    run_dir: str | Path,
    problems: list[str],
    processes: Processes,
    *,
    start: Sequence[str | Path | None],
    resume: bool,
    stop_after: float,
    quiet: bool,
) -> TrainResult:
    """Train the task with its own configuration; the run folder names what it began from and is validated on."""
    return fit(
        task, clips, task.config, run_dir, resume=resume, problems=problems, processes=processes,
        begun_from=[str(Path(weights).resolve()) for weights in start if weights is not None],
        validate_entries=task.validation.entries if task.validation else (), stop_after=stop_after, quiet=quiet,
    )  # fmt: skip


def open_clips(
    config: TrainConfig,
    data: str | Path,
    validate: str | Path | None,
    processes: Processes,
    *,
    layout: str,
    workers: int,
) -> tuple[FileClips, ValidationSet | None, list[str]]:
    """(videos to learn from, clips to validate on, what was wrong with other videos)."""
    clips, problems = FileClips.find(data, layout=layout, workers=workers)
    need = config.shortest_validated
    long = sum(e.frames >= need for e in clips.entries)
    if validate is not None:
        others, more = FileClips.find(validate, split="val", workers=workers)
        held, problems = clips.of(others.entries), problems + more
    elif config.validate_clips and long > 1:
        clips, held = clips.split(min(config.validate_clips, max(1, long // 10)), shortest=need)
    else:
        return clips, None, problems
    return clips, ValidationSet.of(held, config, processes.device), problems
