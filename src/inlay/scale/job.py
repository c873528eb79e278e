# SPDX-License-Identifier: Apache-2.0
"""Tokenise a data set: plan, work, finish; called again, it goes on where it was interrupted."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any

from inlay.codec import sizes_for
from inlay.errors import UsageError, VideoError, check_kind, pick, require
from inlay.scale.config import CPU_BATCH, GPU_BATCH, RunConfig, TokenizeConfig
from inlay.scale.layout import PARQUET, PLAN, QUARANTINE
from inlay.scale.plan import Shard, ShardPlan, check_same, load_facts
from inlay.scale.ray_engine import ray_engine
from inlay.scale.report import TokenizeResult, finish, write_report
from inlay.scale.shards import ShardRecord
from inlay.scale.sources import SourceItem, find_sources
from inlay.scale.store import LOCK, Place, Store, as_text, is_address, open_store
from inlay.scale.worker import Task
from inlay.scale.workers import Progress, helpers_for, local_engine, threads_for
from inlay.tokenizer import Tokenizer, pick_device

MakeShards = Callable[[Task, list[Shard], RunConfig, Progress], None]  # all of them, whatever dies on the way
Engine = Callable[[RunConfig, str, int], AbstractContextManager[MakeShards]]  # begins before there is a plan
ENGINES: dict[str, Engine] = {"local": local_engine, "ray": ray_engine}


@dataclass(frozen=True, kw_only=True)
class TokenizeProgress:
    """Where a job stands."""

    videos: int
    done: int  # of these, by this run and by those before it
    refused: int
    before: int  # done by earlier runs


Watcher = Callable[[TokenizeProgress], None]


def tokenize(
    source: Place,
    out: Place,
    config: TokenizeConfig | None = None,
    run: RunConfig | None = None,
    *,
    path_column: str | None = None,
    caption_column: str | None = None,
    watch: Watcher = lambda progress: None,
) -> TokenizeResult:
    """Tokenise every video of `source` into `out`; begun before, it goes on, and finished before, it does nothing.

    Args:
        source: a folder, list, table, tars or an address, as `inlay tokenize` takes them; `out` a folder or an address.
        config: how videos are encoded.
        run: on how many workers, with which engine.
        path_column: of a table: where the videos stand, if its name does not tell. So is `caption_column`.
        watch: is told of the progress.
    """
    source, out = as_text("source", source), as_text("out", out)
    config, run = config or TokenizeConfig(), run or RunConfig()
    check_kind(config, TokenizeConfig, "how videos are encoded is said by a TokenizeConfig")
    check_kind(run, RunConfig, "how a job is carried out is said by a RunConfig")
    start = time.perf_counter()
    engine = pick("engine", run.engine, ENGINES)
    check_extras(source, out, config, run)
    store = open_store(out)
    if store.has_files() and store.size(PLAN) is None and store.size(LOCK) is None:
        raise UsageError(f"{out} is not empty, and holds no tokenised data set; give a folder of its own")
    device = device_kind(config, run)
    with engine(run, device, threads_for(run, device)) as make_shards:
        items = tuple(find_sources(source, path_column=path_column, caption_column=caption_column))
        tokenizer = config.load("cpu")  # so that wrong names, weights and settings show here and not in every worker
        recipe = recipe_of(config, tokenizer)
        store.prepare()
        with store.locked():
            store.clear()
            plan = agreed_plan(store, config, run, tokenizer, items)
            shards = plan.shards()
            progress = work(plan, shards, store, run, make_shards, watch)
            dataset, counts = finish(store, plan, shards, recipe)
            outcome = TokenizeResult(
                source=source, out=out, engine=run.engine, dataset=dataset, repeated=counts["repeated"],
                damaged=counts["damaged"], videos_before=progress.before, seconds=time.perf_counter() - start,
            )  # fmt: skip
            write_report(store, outcome)
    if not dataset.videos:
        raise VideoError(
            f"none of the {dataset.quarantined:,} videos could be tokenised; {store}/{QUARANTINE} says why of each"
        )
    return outcome


def check_extras(source: str, out: str, config: TokenizeConfig, run: RunConfig) -> None:
    """What is not installed is said before anything is done."""
    if config.format == PARQUET:
        require("pyarrow", extra="scale")
    if is_address(source) or is_address(out):
        require("fsspec", extra="scale")
    if run.engine == "ray":
        require("ray", extra="scale")
        require("pyarrow", extra="scale")


def recipe_of(config: TokenizeConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """The recipe that all token files share; tau and steps are None where a budget chooses them for each video."""
    encode, by_tau = tokenizer.settle(config.encode, config.budget), config.budget.kind == "tau"
    tau = 0.0 if not by_tau else tokenizer.default_tau(encode.criterion) if config.tau is None else config.tau
    recipe = tokenizer.recipe(encode, tau)
    by_video = {} if by_tau else {"tau": None}
    if config.budget.tau is not None or tokenizer.dial(encode) is not None:
        by_video |= {} if config.budget.kind != "bits" else {"step": None, "steps": None}
    if len(sizes_for(tokenizer, encode, config.budget)) > 1:
        by_video["scale"] = None
    return asdict(recipe) | by_video


def agreed_plan(
    store: Store, config: TokenizeConfig, run: RunConfig, tokenizer: Tokenizer, items: tuple[SourceItem, ...]
) -> ShardPlan:
    """The plan of a job that begins, or one that agrees with the plan it was begun with: what that chose for itself is
    kept, because it decides last bits."""
    begun, device = load_facts(store), device_kind(config, run)
    threads = begun["threads"] if begun else threads_for(run, device)
    batch = begun["batch"] if begun else config.batch or (GPU_BATCH if device == "cuda" else CPU_BATCH)
    weight_hash = tokenizer.spec.weight_hash
    plan = ShardPlan(config=config, items=items, device=device, threads=threads, batch=batch, weight_hash=weight_hash)
    if begun is None:
        plan.save(store)
    else:
        check_same(store, begun, plan)
    return plan


def device_kind(config: TokenizeConfig, run: RunConfig) -> str:
    """cpu, cuda or mps. The machine that starts a job on a cluster need not have the device that is named."""
    if run.address is not None and config.device != "auto":
        return config.device.partition(":")[0]
    return pick_device(config.device).type


def work(
    plan: ShardPlan, shards: list[Shard], store: Store, run: RunConfig, make_shards: MakeShards, watch: Watcher
) -> TokenizeProgress:
    """Have the shards made that are not there yet."""
    done = refused = 0
    todo: list[Shard] = []
    for shard in shards:
        record = ShardRecord.load(store, shard.number)
        if record is None:
            todo.append(shard)
        else:
            done, refused = done + len(shard.items), refused + len(record.refused)
    progress = TokenizeProgress(videos=len(plan.items), done=done, refused=refused, before=done)

    def count(more: int, more_refused: int) -> None:
        nonlocal progress
        progress = replace(progress, done=progress.done + more, refused=progress.refused + more_refused)
        watch(progress)

    watch(progress)
    if todo:
        device = plan.config.device if ":" in plan.config.device else plan.device
        task = Task(
            out=str(store), config=plan.config, device=device, threads=plan.threads, batch=plan.batch,
            run=uuid.uuid4().hex, helpers=helpers_for(plan.device, plan.threads),
        )  # fmt: skip
        make_shards(task, todo, run, count)
    return progress
