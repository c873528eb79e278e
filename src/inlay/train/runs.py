# SPDX-License-Identifier: Apache-2.0
"""Names and paths in, a trained model out: what the commands of `inlay train` call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from inlay.backbones import Mini, MiniConfig, load_backbone
from inlay.fill import Lit, LitConfig, plus
from inlay.train.cache import LatentCache
from inlay.train.checkpoint import seed_random
from inlay.train.config import TrainConfig
from inlay.train.data import FileClips
from inlay.train.loop import TrainResult, fit
from inlay.train.processes import Processes, join_processes
from inlay.train.start import start_from
from inlay.train.tasks import BackboneTask, LitTask
from inlay.train.together import TogetherTask
from inlay.train.validate import ValidationSet


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
    clips, held_out, problems = open_clips(config, data, validate, layout=layout, workers=workers)
    frozen = load_backbone(backbone, weights=backbone_weights, device=processes.device, trust=trust)
    seed_random(config.seed)
    cache = None
    if config.latent_cache:
        cache = LatentCache(config.latent_cache, weight_hash=frozen.spec.weight_hash, entries=clips.entries)
    validation = ValidationSet.of(held_out, config, processes.device) if held_out else None
    module = Lit.build(replace(lit, channels=frozen.spec.channels))
    if start is not None:
        start_from(module, start)
    module.to(processes.device)
    task = LitTask(module, frozen, config, validation=validation, cache=cache)
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
    clips, held_out, problems = open_clips(config, data, validate, layout=layout, workers=workers)
    seed_random(config.seed)
    validation = ValidationSet.of(held_out, config, processes.device) if held_out else None
    module = Mini(shape)
    if start is not None:
        start_from(module, start)
    task = BackboneTask(module.to(processes.device), config, validation=validation)
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
    clips, held_out, problems = open_clips(config, data, validate, layout=layout, workers=workers)
    seed_random(config.seed)
    validation = ValidationSet.of(held_out, config, processes.device) if held_out else None
    mini, fill = Mini(shape), Lit.build(lit or plus())
    for module, weights in ((mini, start), (fill, start_lit)):
        if weights is not None:
            start_from(module, weights)
    task = TogetherTask(mini.to(processes.device), fill.to(processes.device), config, validation=validation)
    return run_task(
        task, clips, run_dir, problems, processes, start=[start, start_lit], resume=resume, stop_after=stop_after,
        quiet=quiet,
    )  # fmt: skip


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
    config: TrainConfig, data: str | Path, validate: str | Path | None, *, layout: str, workers: int
) -> tuple[FileClips, FileClips | None, list[str]]:
    """(videos to learn from, videos to validate on, what was wrong with others)."""
    clips, problems = FileClips.find(data, layout=layout, workers=workers)
    if validate is not None:
        held_out, more = FileClips.find(validate, split="val", workers=workers)
        return clips, clips.of(held_out.entries), problems + more
    need = config.shortest_validated
    long = sum(e.frames >= need for e in clips.entries)
    if not config.validate_clips or long < 2:
        return clips, None, problems
    rest, held = clips.split(min(config.validate_clips, max(1, long // 10)), shortest=need)
    return rest, held, problems
