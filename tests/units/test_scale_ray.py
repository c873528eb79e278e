# SPDX-License-Identifier: Apache-2.0
"""How work is laid out for Ray, and an actor's workers, replaced when they die; Ray itself is in tests/kill."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from inlay.errors import InlayError
from inlay.scale.config import TokenizeConfig
from inlay.scale.plan import Shard
from inlay.scale.ray_engine import ROW_VIDEOS, concurrent_calls, rows_of, workers_of_an_actor
from inlay.scale.shards import ShardRecord
from inlay.scale.sources import SourceItem, find_sources
from inlay.scale.store import open_store
from inlay.scale.worker import Task
from inlay.scale.workers import WorkerConfig, WorkerSlot
from inlay.video import write_video
from tests.conftest import moving_square


def shards(count: int, videos: int) -> list[Shard]:
    item = SourceItem(name="a.mp4", address="a.mp4", size_bytes=1)
    return [Shard(number=n, first=n * videos, items=(item,) * videos) for n in range(count)]


@pytest.mark.parametrize(("count", "videos", "workers"), [(64, 1, 2), (64, 4, 2), (7, 2, 2), (5, 300, 1), (64, 1, 64)])
def test_rows_hold_every_shard_once_and_grow_small_towards_the_end(count: int, videos: int, workers: int) -> None:
    rows = list(rows_of(shards(count, videos), workers))
    assert [shard.number for row in rows for shard in row] == list(range(count))
    sizes = [len(row) for row in rows]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] == 1
    assert all(len(row) == 1 or len(row) * videos <= ROW_VIDEOS for row in rows)
    assert len(rows) >= min(count, 4 * workers)


@pytest.mark.parametrize(
    ("first", "most", "each"), [(2, 2, 2), (16, 16, 8), (12, 16, 6), (11, 16, 1), (4, 1, 1), (6, 3, 3), (1, 0, 1)]
)
def test_actors_have_as_many_workers_together_as_there_are_to_be(first: int, most: int, each: int) -> None:
    assert workers_of_an_actor(first, most) == each


def test_an_old_ray_gets_one_worker_for_each_actor() -> None:
    class Data:
        class ActorPoolStrategy:
            def __init__(self, *, size: int) -> None: ...

    assert concurrent_calls(Data, 4) == {}


def test_what_an_actor_loads_is_small() -> None:
    """Ray's process has no use for torch: workers are forks of a server that has it."""
    code = "import sys, inlay.scale.ray_actor; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_a_worker_of_an_actor_is_replaced_when_it_dies(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_video(moving_square(9, 32, 32, seed=0), tmp_path / "in/a.mp4")
    items = tuple(find_sources(str(tmp_path / "in")))
    (tmp_path / "out/job").mkdir(parents=True)
    config = TokenizeConfig(backbone="mini-untrained", tau=0.1)
    task = Task(out=str(tmp_path / "out"), config=config, device="cpu", threads=1, batch=1, run="r")
    slot = WorkerSlot(WorkerConfig(task=pickle.dumps(task), workers=1, device="cpu", threads=1), 0)
    try:
        for number in (0, 1):
            shard = Shard(number=number, first=number, items=items)
            counts: list[tuple[int, int]] = []
            slot.run(pickle.dumps(shard), lambda *count, seen=counts: seen.append(count))
            assert tuple(map(sum, zip(*counts, strict=True))) == (1, 0)
            assert ShardRecord.load(open_store(str(tmp_path / "out")), number) is not None
            slot.process.kill()
    finally:
        slot.stop()


@pytest.mark.slow
def test_workers_that_cannot_load_the_model_say_why(tmp_path: Path) -> None:
    task = Task(out=str(tmp_path), config=TokenizeConfig(backbone="nothing"), device="cpu", threads=1, batch=1, run="r")
    slot = WorkerSlot(WorkerConfig(task=pickle.dumps(task), workers=1, device="cpu", threads=1), 0)
    try:
        with pytest.raises(InlayError, match="unknown backbone 'nothing'"):
            slot.run(pickle.dumps(shards(1, 1)[0]), lambda done, refused: None)
    finally:
        slot.stop()
