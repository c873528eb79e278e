# SPDX-License-Identifier: Apache-2.0
"""Shards in, made by a pool of Ray actors with workers that hold the model, here or on many machines."""

from __future__ import annotations

import inspect
import logging
import pickle
from collections.abc import Iterator
from typing import Any

from inlay.errors import InlayError, require
from inlay.scale.engine import RunConfig, cores
from inlay.scale.plan import Shard
from inlay.scale.ray_actor import Orders, ShardActor
from inlay.scale.worker import Task, Told

MOST_WORKERS = 8  # of an actor
ROW_VIDEOS = 8  # at most; each row costs Ray some hundredths of a second, and progress is told by rows
ROWS_EACH = 4  # for every worker of what is left, so that none waits long for the last


def run_ray(task: Task, shards: list[Shard], run: RunConfig, told: Told) -> None:
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
    each = 1 if task.device != "cpu" else workers_of_an_actor(first, smallest_node(ray) // task.threads)
    calls = concurrent_calls(data, each)
    each = each if calls else 1
    rows = [{"shards": pickle.dumps([pickle.dumps(s) for s in row])} for row in rows_of(shards, first)]
    orders = Orders(task=pickle.dumps(task), workers=each, device=task.device, threads=task.threads)
    results = data.from_items(rows, override_num_blocks=len(rows)).map(
        ShardActor,
        fn_constructor_args=(orders,),
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
        told(row["done"], row["refused"])
        if row["error"]:
            raise InlayError(row["error"])


def concurrent_calls(data: Any, each: int) -> dict[str, Any]:
    """How Ray is told to call an actor for all its workers at once; nothing where it is too old for that."""
    options = {"max_concurrent_calls_per_actor": each, "enable_true_multi_threading": True}
    known = inspect.signature(data.ActorPoolStrategy).parameters
    return options if each > 1 and options.keys() <= known.keys() else {}


def smallest_node(ray: Any) -> int:
    """Its cores: an actor must fit on every machine."""
    return min((int(n["Resources"].get("CPU", 0)) for n in ray.nodes() if n["Alive"]), default=1)


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
