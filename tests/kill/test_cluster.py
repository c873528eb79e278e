# SPDX-License-Identifier: Apache-2.0
"""Several Ray nodes on one machine: a node comes, a node is killed, and the job finishes as if nothing had been."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inlay.scale import RunConfig, TokenizeConfig, TokenizeResult, tokenize
from inlay.video import write_video
from tests.conftest import moving_square
from tests.kill.test_kill import files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # Ray's own, which are none of ours
]
VIDEOS = 24
NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}


@pytest.fixture
def cluster() -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = pytest.importorskip("ray")
    utils = pytest.importorskip("ray.cluster_utils")
    made = utils.Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    yield made
    ray.shutdown()
    made.shutdown()


def test_a_node_comes_and_a_node_is_killed(cluster: Any, tmp_path: Path) -> None:
    source = tmp_path / "videos"
    source.mkdir()
    for i in range(VIDEOS):
        write_video(moving_square(17, 64, 64, seed=i), source / f"v{i:02d}.mp4")
    config = TokenizeConfig(backbone="mini-untrained", tau=0.1, shard_videos=1)
    tokenize(str(source), str(tmp_path / "whole"), config, RunConfig(workers=2))

    doomed = cluster.add_node(**NODE)
    done: list[TokenizeResult] = []
    run = RunConfig(engine="ray", address=cluster.address)
    job = threading.Thread(target=lambda: done.append(tokenize(str(source), str(tmp_path / "out"), config, run)))
    job.start()
    wait_for(tmp_path / "out", 4, job)
    cluster.add_node(**NODE)
    wait_for(tmp_path / "out", 8, job)
    cluster.remove_node(doomed, allow_graceful=False)
    job.join(timeout=240)
    assert done and done[0].dataset.videos == VIDEOS
    assert shards(files(tmp_path / "out")) == shards(files(tmp_path / "whole"))


def shards(found: dict[str, bytes]) -> dict[str, bytes]:
    """All but the plan, which says how many threads each worker had."""
    return {name: data for name, data in found.items() if name != "job/plan.json"}


def wait_for(out: Path, count: int, job: threading.Thread) -> None:
    deadline = time.monotonic() + 120
    while job.is_alive() and time.monotonic() < deadline and len(list(out.glob("job/shard-*.json"))) < count:
        time.sleep(0.05)
