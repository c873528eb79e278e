# SPDX-License-Identifier: Apache-2.0
"""Memory of a worker over many small videos: flat."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path

import pytest
import torch

from inlay.scale.config import TokenizeConfig
from inlay.scale.plan import ShardPlan
from inlay.scale.sources import find_sources
from inlay.scale.worker import Task, Worker
from inlay.video import write_video
from tests.conftest import moving_square

VIDEOS = int(os.environ.get("INLAY_MEMORY_VIDEOS", "240"))  # 2000 for the whole measurement
ALLOWED_MIB = 24  # what an allocator may still gather after the first fifth


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_memory_is_flat(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    source = tmp_path / "videos"
    source.mkdir()
    first = write_video(moving_square(5, 32, 32), source / "00000.mp4")
    for n in range(1, VIDEOS):
        shutil.copyfile(first, source / f"{n:05d}.mp4")
    config = TokenizeConfig(backbone="mini-untrained", tau=0.1, shard_videos=max(VIDEOS // 20, 1))
    plan = ShardPlan(
        config=config, items=tuple(find_sources(str(source))), device="cpu", threads=1, batch=1, weight_hash=""
    )
    threads = torch.get_num_threads()
    (tmp_path / "out/job").mkdir(parents=True)
    worker = Worker(Task(out=str(tmp_path / "out"), config=config, device="cpu", threads=1, batch=1, run="r"))
    used = []
    for shard in plan.shards():
        worker.run(shard)
        gc.collect()
        used.append(psutil.Process().memory_info().rss >> 20)
    torch.set_num_threads(threads)
    assert used[-1] - used[len(used) // 5] < ALLOWED_MIB, used
