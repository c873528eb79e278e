# SPDX-License-Identifier: Apache-2.0
"""Shards made on Ray, here or on many machines: a pool of actors with workers that hold the model."""

from __future__ import annotations

import inspect
import logging
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from inlay.errors import InlayError, MissingError, UsageError, require
from inlay.scale.config import RunConfig
from inlay.scale.plan import Shard
from inlay.scale.ray_actor import ShardActor
from inlay.scale.worker import Task
from inlay.scale.workers import Progress, WorkerConfig, cores, worker_count

STORE_BYTES = 200 << 20  # of the object store: shards are passed by name, so little goes through it
MOST_WORKERS = 8  # of an actor
ROW_VIDEOS = 8  # at most; each row costs Ray some hundredths of a second, and progress is counted by rows
ROWS_EACH = 4  # for every worker of what is left, so that none waits long for the last
ENVIRONMENT = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_worker_niceness": "0",  # its default lets every other process of the machine go first
}
_ONE = threading.Lock()  # a process has one Ray at a time


@contextmanager
def ray_engine(run: RunConfig, device: str, threads: int) -> Iterator[Callable[..., None]]:
    """Begin a Ray, or reach one, while the job is still being planned."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # reports to nobody
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    begun, over = threading.Event(), threading.Event()
    errors: list[Exception] = []

    def live() -> None:
        """Begin Ray and end it in one thread, which lives as long: what it starts is made to die with it."""
        with _ONE:
            try:
                ray = require("ray", extra="scale")
                ours = not ray.is_initialized()
                if ours:
                    _begin(ray, run)
            except Exception as error:
                errors.append(error)
                return
            finally:
                begun.set()
            over.wait()
            if ours:
                ray.shutdown()

    def work(task: Task, shards: list[Shard], run: RunConfig, progress: Progress) -> None:
        require("ray.data", extra="scale").DataContext.get_current()  # loads for a second, while Ray begins
        begun.wait()
        if errors:
            raise errors[0]
        run_ray(task, shards, run, progress)

    thread = threading.Thread(target=live, name="ray", daemon=True)
    thread.start()
    try:
        yield work
    finally:
        over.set()
        if begun.is_set():  # a job that fails while Ray still begins need not wait for it: it ends by itself
            thread.join()


def _begin(ray: Any, run: RunConfig) -> None:
    """Quiet, and without dashboard."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    here: dict[str, Any] = {
        "address": "local",  # not that of RAY_ADDRESS: without an address a job stays here
        "num_cpus": max(cores(), worker_count(run, "cpu")),
        "include_dashboard": False,
        "object_store_memory": STORE_BYTES,
    }
    try:
        ray.init(**({"address": run.address} if run.address is not None else here), **quiet)
    except ConnectionError as error:
        raise UsageError(
            f"there is no Ray cluster at {run.address or 'this machine'}; start one (ray start --head)"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise MissingError(f"Ray does not start: {(str(error).strip().splitlines() or ['?'])[0]}") from error


def run_ray(task: Task, shards: list[Shard], run: RunConfig, progress: Progress) -> None:
    """Have the shards made by actors."""
    ray, data = require("ray", extra="scale"), require("ray.data", extra="scale")
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    here = ray.cluster_resources()
    fit = int(here.get("GPU", 0)) if task.device == "cuda" else int(here.get("CPU", 1)) // task.threads
    most = min(len(shards), run.workers or (cores() if run.address is None else len(shards)))
    first = max(1, min(most, fit))
    # an actor must fit on every machine
    smallest = min((int(n["Resources"].get("CPU", 0)) for n in ray.nodes() if n["Alive"]), default=1)
    each = 1 if task.device != "cpu" else workers_of_an_actor(first, smallest // task.threads)
    calls = concurrent_calls(data, each)
    each = each if calls else 1
    rows = [{"shards": pickle.dumps([pickle.dumps(s) for s in row])} for row in rows_of(shards, first)]
    config = WorkerConfig(task=pickle.dumps(task), workers=each, device=task.device, threads=task.threads)
    results = data.from_items(rows, override_num_blocks=len(rows)).map(
        ShardActor,
        fn_constructor_args=(config,),
        compute=data.ActorPoolStrategy(
            min_size=1,
            max_size=max(1, most // each),
            initial_size=first // each,
            max_tasks_in_flight_per_actor=2 * each,
            **calls,
        ),
        num_cpus=each * task.threads,
        num_gpus=1 if task.device == "cuda" else None,
    )
    for row in results.iter_rows():
        progress(row["done"], row["refused"])
        if row["error"]:
            raise InlayError(row["error"])


def concurrent_calls(data: Any, each: int) -> dict[str, Any]:
    """The options that let Ray call an actor for all its workers at once; nothing where it is too old for that."""
    options = {"max_concurrent_calls_per_actor": each, "enable_true_multi_threading": True}
    known = inspect.signature(data.ActorPoolStrategy).parameters
    return options if each > 1 and options.keys() <= known.keys() else {}


def workers_of_an_actor(first: int, most: int) -> int:
    """The more the fewer libraries are loaded twice; all actors alike, and together as many as there are to be."""
    return max(n for n in range(1, MOST_WORKERS + 1) if first % n == 0 and (n == 1 or n <= most))


def rows_of(shards: list[Shard], workers: int) -> Iterator[list[Shard]]:
    """What an actor is given at a time: several small shards at first, and towards the end one by one."""
    begin = 0
    while begin < len(shards):
        most = max(1, (len(shards) - begin) // (ROWS_EACH * workers))
        end, videos = begin + 1, len(shards[begin].items)
        while end < begin + most and videos + len(shards[end].items) <= ROW_VIDEOS:
            videos += len(shards[end].items)
            end += 1
        yield shards[begin:end]
        begin = end
