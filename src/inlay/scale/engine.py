# SPDX-License-Identifier: Apache-2.0
"""What an engine is given and what it must do: every shard made once, whatever dies on the way."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from inlay.errors import ConfigError, UsageError
from inlay.scale.plan import Shard
from inlay.scale.worker import Task, Told


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How a job is carried out; nothing of it changes a byte of the result, and a resumed job may choose anew."""

    engine: str = "local"
    workers: int = 0  # 0: one for each GPU, or for each core
    address: str | None = None  # of a Ray cluster

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise ConfigError(f"workers are processes, 0 for as many as fit; got {self.workers}", about="workers")
        if self.address is not None and self.engine != "ray":
            raise UsageError(
                "the address is that of a Ray cluster; choose the engine ray with it", about=("address", "engine")
            )


class Engine(Protocol):
    def __call__(self, task: Task, shards: list[Shard], run: RunConfig, told: Told) -> None:
        """Have workers make all shards; raises when one says that none can be made."""
        ...


class Ahead(Protocol):
    def __call__(self, run: RunConfig, device: str, threads: int) -> AbstractContextManager[Callable[[], None]]:
        """Begin what takes long before there is a plan, and end it at the end; gives what waits until it is there."""
        ...


def cores() -> int:
    """Those this process may use, which in a container are fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def worker_count(run: RunConfig, device: str) -> int:
    """One process for each GPU; on the CPU one for each core, since single threads waste least."""
    if run.workers:
        return run.workers
    return max(gpus(), 1) if device == "cuda" else cores() if device == "cpu" else 1


def threads_for(workers: int) -> int:
    """Of torch in each worker: together as many as there are cores."""
    return max(1, cores() // workers)
