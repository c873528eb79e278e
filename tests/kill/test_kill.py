# SPDX-License-Identifier: Apache-2.0
"""kill -9 of a worker, the driver, the whole job, at random moments; then the same command again: nothing is lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from inlay.scale import RunConfig, TokenizeConfig, tokenize
from inlay.scale import job as jobs
from inlay.scale.plan import Shard
from inlay.scale.worker import Task, Worker
from inlay.scale.workers import Progress
from inlay.video import write_video
from tests.conftest import moving_square

psutil = pytest.importorskip("psutil")

VIDEOS, SHARD = 14, 2
PATIENCE_SECONDS = 240
TIMES = {"report.json", "report.md", "lock"}


@dataclass(frozen=True, kw_only=True)
class Job:
    """The command of one data set, as somebody would type it."""

    source: Path
    out: Path
    engine: str = "local"
    more: tuple[str, ...] = ()

    def start(self) -> subprocess.Popen[bytes]:
        options = ["--backbone", "mini-untrained", "--tau", "0.1", "--shard-videos", str(SHARD), "--workers", "2"]
        command = [sys.executable, "-m", "inlay", "tokenize", str(self.source), str(self.out)]
        return subprocess.Popen(
            [*command, *options, "--engine", self.engine, *self.more],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def finish(self) -> None:
        process = self.start()
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, errors.decode()

    def shards(self) -> int:
        return len(list((self.out / "job").glob("shard-*.json")))


def files(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file() and p.name not in TIMES}


def below(process: subprocess.Popen[bytes]) -> list:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def workers(process: subprocess.Popen[bytes]) -> list:
    """Those that encode, and the one that workers of the local engine are forked from."""
    found = []
    for child in below(process):
        try:
            line = " ".join(child.cmdline())
        except psutil.Error:
            continue
        if "spawn_main" in line or "forkserver" in line or "ShardActor" in line:
            found.append(child)
    return found


def kill(child) -> None:  # type: ignore[no-untyped-def]
    with contextlib.suppress(psutil.NoSuchProcess):
        child.kill()


def kill_worker(process: subprocess.Popen[bytes]) -> None:
    alive = workers(process)
    if alive:
        kill(random.choice(alive))


def kill_driver(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)


def kill_job(process: subprocess.Popen[bytes]) -> None:
    children = below(process)
    process.send_signal(signal.SIGKILL)
    for child in children:
        kill(child)


KILLS = {"worker": kill_worker, "driver": kill_driver, "job": kill_job}


def wait_for_shards(job: Job, count: int, process: subprocess.Popen[bytes]) -> None:
    """Until the work is under way: before that, a kill is easy to survive."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while job.shards() < count and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)


def all_gone(children: list, seconds: float = 60.0) -> bool:
    _, alive = psutil.wait_procs(children, timeout=seconds)
    return not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]


def strike(job: Job, kind: str, pause: float) -> None:
    """Start, kill, and see that nobody is left who should not be."""
    process = job.start()
    wait_for_shards(job, min(job.shards() + random.randrange(3), VIDEOS // SHARD - 1), process)
    time.sleep(pause)
    children = workers(process)
    KILLS[kind](process)
    if kind == "worker":
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, errors.decode()
    else:
        process.communicate(timeout=PATIENCE_SECONDS)
        assert all_gone(children), "workers outlived their job"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("videos")
    for i in range(VIDEOS):
        write_video(moving_square(9, 32, 32 + 16 * (i % 2), seed=i), root / f"v{i:02d}.mp4")
    (root / "v03.mp4").write_bytes(b"no video")
    return root


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an unbroken run leaves."""
    out = tmp_path_factory.mktemp("whole") / "out"
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:  # workers in this process: quicker, and the bytes are the same
        patch.setitem(jobs.ENGINES, "local", lambda *settings: contextlib.nullcontext(in_this_process))
        config = TokenizeConfig(backbone="mini-untrained", tau=0.1, shard_videos=SHARD)
        tokenize(str(source), str(out), config, RunConfig(workers=2))
    torch.set_num_threads(threads)
    return files(out)


def in_this_process(task: Task, shards: list[Shard], run: RunConfig, progress: Progress) -> None:
    worker = Worker(task)
    for shard in shards:
        worker.run(shard, progress)


def check(job: Job, whole: dict[str, bytes]) -> None:
    job.finish()
    found = files(job.out)
    assert found.keys() == whole.keys()
    assert [name for name in whole if found[name] != whole[name]] == []


def test_job_killed_in_the_middle_goes_on(source: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    job = Job(source=source, out=tmp_path / "out")
    strike(job, "job", random.random() * 0.2)
    assert not (job.out / "dataset.json").exists() or job.shards() == VIDEOS // SHARD
    check(job, whole)


@pytest.mark.slow
def test_worker_killed_is_replaced(source: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    job = Job(source=source, out=tmp_path / "out")
    strike(job, "worker", random.random() * 0.2)
    check(job, whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_anything_killed_again_and_again(source: Path, whole: dict[str, bytes], tmp_path: Path, seed: int) -> None:
    random.seed(seed + int(os.environ.get("INLAY_KILL_SEED", "0")))
    job = Job(source=source, out=tmp_path / "out")
    for _ in range(3):
        strike(job, random.choice(list(KILLS)), random.random() * 1.0)
    check(job, whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_anything_killed_before_the_work_began(
    source: Path, whole: dict[str, bytes], tmp_path: Path, seed: int
) -> None:
    random.seed(seed)
    job = Job(source=source, out=tmp_path / "out")
    for _ in range(3):
        process = job.start()
        time.sleep(random.random() * 4)
        children = workers(process)
        kill_driver(process)
        process.communicate(timeout=PATIENCE_SECONDS)
        assert all_gone(children)
    check(job, whole)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KILLS))
@pytest.mark.parametrize("seed", range(3))
def test_ray_killed(source: Path, whole: dict[str, bytes], tmp_path: Path, kind: str, seed: int) -> None:
    pytest.importorskip("ray")
    random.seed(seed)
    job = Job(source=source, out=tmp_path / "out", engine="ray")
    strike(job, kind, random.random() * 1.0)
    check(job, whole)


@pytest.mark.slow
def test_begun_on_one_engine_finished_on_the_other(source: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    job = Job(source=source, out=tmp_path / "out", engine="ray")
    strike(job, "job", 0.3)
    check(Job(source=source, out=tmp_path / "out"), whole)


@pytest.mark.slow
def test_a_full_disk_stops_the_job_with_one_line(source: Path, tmp_path: Path) -> None:
    """Files may not grow beyond some bytes, as on a disk that is full; processes inherit this limit."""
    job = Job(source=source, out=tmp_path / "out")
    limited = ["bash", "-c", 'ulimit -f 4; exec "$@"', "-"]
    command = [sys.executable, "-m", "inlay", "tokenize", str(source), str(job.out), "--shard-videos", "7"]
    options = ["--backbone", "mini-untrained", "--tau", "0.1", "--workers", "2"]
    done = subprocess.run([*limited, *command, *options], capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    lines = done.stderr.decode().strip().splitlines()
    assert done.returncode == 6 and len(lines) == 1, done.stderr.decode()
    assert lines[0].startswith("inlay: cannot write ") and "run the same command again" in lines[0]
    assert not list(job.out.rglob("*.part")) and not list((job.out / "shards").glob("*"))
