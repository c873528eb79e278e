# SPDX-License-Identifier: Apache-2.0
"""Shards in, made by a pool of Ray actors that hold the model, on this machine or a cluster; Ray replaces what dies."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from inlay.errors import InlayError, MissingError, UsageError, require
from inlay.scale.engine import RunConfig, cores, worker_count
from inlay.scale.plan import Shard
from inlay.scale.sources import SourceItem
from inlay.scale.worker import Task, Told, Worker

STORE_BYTES = 200 << 20  # of the object store: shards are told by name, so little passes through it
WATCH_SECONDS = 0.5


class ShardActor:
    """A worker as Ray Data calls it: a batch of one shard in, how it went out."""

    def __init__(self, task: Task) -> None:
        self.worker: Worker | None = None
        self.error: InlayError | None = None
        _die_with_the_node()
        try:
            self.worker = Worker(task)
        except InlayError as error:  # told with the first shard; raised here, Ray would try for ever
            self.error = error

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        done, refused, errors = [], [], []
        for text in batch["shard"]:
            d, r, e = self._run(parse_shard(str(text)))
            done.append(d)
            refused.append(r)
            errors.append(e)
        return {"done": done, "refused": refused, "error": errors}

    def _run(self, shard: Shard) -> tuple[int, int, str]:
        """Errors as rows, so that one line can be said about them."""
        try:
            if self.worker is None:
                raise self.error or InlayError("the worker has no model")
            record = self.worker.run(shard)
            return len(shard.items), len(record.refused), ""
        except InlayError as error:
            return 0, 0, str(error)
        except Exception as error:
            text = (str(error).strip().splitlines() or ["no message"])[0]
            return 0, 0, f"a worker failed: unexpected {type(error).__name__}: {text}"


def _die_with_the_node() -> None:
    """Actors of a Ray that was killed would take a minute to notice, with the cores of whoever goes on."""
    node = os.getppid()

    def watch() -> None:
        while os.getppid() == node:
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_ray(task: Task, shards: list[Shard], run: RunConfig, told: Told) -> None:
    with connected(run) as ray:
        data = require("ray.data", extra="scale")
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        most = min(len(shards), run.workers or (cores() if run.address is None else len(shards)))
        rows = data.from_items([{"shard": dump_shard(s)} for s in shards], override_num_blocks=len(shards))
        results = rows.map_batches(
            ShardActor,
            fn_constructor_args=(task,),
            batch_size=1,
            compute=data.ActorPoolStrategy(
                min_size=1, max_size=most, initial_size=_first_actors(ray, task, most), max_tasks_in_flight_per_actor=2
            ),
            num_cpus=task.threads,
            num_gpus=1 if task.device == "cuda" else None,
        )
        for row in results.iter_rows():
            if row["error"]:
                raise InlayError(row["error"])
            told(row["done"], row["refused"])


def _first_actors(ray: Any, task: Task, most: int) -> int:
    """As many as fit at once; nodes that come later get theirs from Ray's own scaling."""
    here = ray.cluster_resources()
    fit = here.get("GPU", 0) if task.device == "cuda" else here.get("CPU", 1) // task.threads
    return max(1, min(most, int(fit)))


@contextmanager
def connected(run: RunConfig) -> Iterator[Any]:
    """Ray, started here or reached by its address; quiet, without dashboard and without reports to anyone."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    ray = require("ray", extra="scale")
    require("ray.data", extra="scale")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    ours = not ray.is_initialized()
    if ours:
        try:
            if run.address is not None:
                ray.init(address=run.address, **quiet)
            else:
                ray.init(
                    address="local",  # not that of RAY_ADDRESS: without --address a job stays here
                    num_cpus=max(cores(), worker_count(run, "cpu")),
                    include_dashboard=False,
                    object_store_memory=STORE_BYTES,
                    **quiet,
                )
        except ConnectionError as error:
            raise UsageError(
                f"there is no Ray cluster at {run.address or 'this machine'}; start one (ray start --head)"
            ) from error
        except (OSError, RuntimeError, ValueError) as error:
            raise MissingError(f"Ray does not start: {(str(error).strip().splitlines() or ['?'])[0]}") from error
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


def dump_shard(shard: Shard) -> str:
    items = [asdict(item) for item in shard.items]
    return json.dumps({"number": shard.number, "first": shard.first, "items": items})


def parse_shard(text: str) -> Shard:
    given = json.loads(text)
    items = tuple(SourceItem(**item) for item in given["items"])
    return Shard(number=given["number"], first=given["first"], items=items)
