# SPDX-License-Identifier: Apache-2.0
"""Make the records of studies clip by clip, by several processes on one machine, in one folder.

    order ─► tasks (study, set, clip) ─► processes, each with its own networks ─► records/STUDY/CLIP.KEY.json

A record is one file and each clip of a study one task, so the processes never write the same file. What is finished
when the time is up stays, and the next run goes on from it. Sections and figures are drawn from the records later.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from inlay.measure import MeasureConfig
from inlay.research.studies.ablation import (
    ablation_settings,
    fill_sweep_settings,
    sweep_settings,
)
from inlay.research.studies.datasets import ClipSpec, DataSet, open_data
from inlay.research.studies.evaluate import Bench, Tell
from inlay.research.studies.flicker import METRICS, flicker_arms
from inlay.research.studies.quality import matched_settings, measure_main, measure_matched
from inlay.research.studies.records import Store, choose_metrics
from inlay.research.studies.streaming import long_videos, measure_streaming
from inlay.research.studies.workspace import Workspace
from inlay.tokenizer import Tokenizer, pick_device


@dataclass(frozen=True, kw_only=True)
class Parted:
    """A study that goes clip by clip: on which sets, and what is measured of a part of one."""

    sets: Callable[[Workspace], list[DataSet]]
    measure: Callable[[Workspace, DataSet], object]


def _val(work: Workspace) -> list[DataSet]:
    return [work.davis_val()]


def measure_ablation(work: Workspace, data: DataSet) -> object:
    settings = [s for chosen in ablation_settings(work).values() for s in chosen.values()]
    return work.collect("ablation", data, settings)


PARTED = {
    "main": Parted(sets=lambda work: list(work.data.values()), measure=measure_main),
    "ablation": Parted(sets=_val, measure=measure_ablation),
    "sweep": Parted(sets=_val, measure=lambda work, data: work.collect("sweep", data, sweep_settings(work).values())),
    "fill-sweep": Parted(
        sets=_val, measure=lambda work, data: work.collect("fill-sweep", data, fill_sweep_settings(work).values())
    ),
    "main-matched": Parted(sets=lambda work: list(work.data.values()), measure=measure_matched),
    "streaming": Parted(sets=lambda work: [long_videos(work)], measure=measure_streaming),
    "flicker": Parted(
        sets=_val, measure=lambda work, data: work.collect("flicker", data, flicker_arms(work).values(), METRICS)
    ),
}
MATCHED = {
    "ablation": ablation_settings,
    "fill-sweep": fill_sweep_settings,
    "main-matched": lambda work: [matched_settings(work, role, data) for role, data in work.data.items()],
    "flicker": ablation_settings,
}


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a process needs to open the same workspace as the others."""

    out: Path
    places: tuple[tuple[str, Path], ...]  # (role, folder)
    backbone: str = "mini"
    weights: Path | None = None
    fill: str | None = None
    tau: float | None = None
    device: str = "auto"
    metrics: str = "paper"
    spec: ClipSpec = field(default_factory=ClipSpec)
    limit: int = 0
    also: tuple[str, ...] = ()
    command: str = ""
    threads: int = 0  # of the CPU for each process; 0: as torch likes

    def open(self, tell: Tell = lambda line: None) -> Workspace:
        """The networks on the device, in float32 proper; the clips listed, none read yet."""
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        if self.threads:
            torch.set_num_threads(self.threads)
        device = str(pick_device(self.device))
        tokenizer = Tokenizer.from_pretrained(self.backbone, weights=self.weights, fill=self.fill, device=device)
        places = dict(self.places)
        return Workspace(
            bench=Bench(tokenizer, tau=self.tau, measure=MeasureConfig(device=device)),
            store=Store(self.out),
            data={r: open_data(p, name=r, spec=self.spec, limit=self.limit) for r, p in places.items()},
            metrics=choose_metrics(self.metrics, device),
            also=self.also,
            command=self.command,
            tell=tell,
        )


@dataclass(frozen=True, kw_only=True)
class ClipTask:
    """One clip of one study, by its place in the study's sets; without a place, the thresholds the study needs."""

    study: str
    place: tuple[int, int] | None = None

    def do(self, work: Workspace) -> str:
        """What was done, in words."""
        if self.place is None:
            MATCHED[self.study](work)
            return f"{self.study}: thresholds"
        data = PARTED[self.study].sets(work)[self.place[0]]
        clip = data.clips[self.place[1]]
        PARTED[self.study].measure(work, replace(data, clips=(clip,)))
        return f"{self.study}: {data.name}: {clip.name}"


def tasks_of(work: Workspace, names: list[str]) -> list[ClipTask]:
    """Study by study; the thresholds before anything else, since later clips wait for them."""
    first = {MATCHED[name]: ClipTask(study=name) for name in names if name in MATCHED}
    clips = [
        ClipTask(study=name, place=(i, k))
        for name in names
        for i, data in enumerate(PARTED[name].sets(work))
        for k in range(len(data))
    ]
    return [*first.values(), *clips]


class Crew:
    """Processes that stay while tasks of several studies come, so that their networks are loaded once."""

    def __init__(self, order: Order, jobs: int, seconds: float) -> None:
        self.until = time.time() + seconds
        spawn = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
        self.pool = ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_enter, initargs=(order, self.until))

    def run(self, tasks: list[ClipTask]) -> Iterator[tuple[ClipTask, str, str]]:
        """(task, what was done, why it failed), as they end; a task that begins too late is not done, nor named."""
        waiting = {self.pool.submit(_do, task): task for task in tasks}
        for future in as_completed(waiting):
            done, failed = future.result()
            if done or failed:
                yield waiting[future], done, failed

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


_here: dict[str, Workspace] = {}  # the workspace of this process
_until: list[float] = []


def _enter(order: Order, until: float) -> None:
    _here["work"] = order.open()
    _until.append(until)


def _do(task: ClipTask) -> tuple[str, str]:
    if time.time() > _until[0]:
        return "", ""
    try:
        return task.do(_here["work"]), ""
    except Exception as error:  # whatever befalls one clip must not cost the others
        return "", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
