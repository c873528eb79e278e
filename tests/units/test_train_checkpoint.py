# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: whole or not there, exact, and honest about a full disk."""

from __future__ import annotations

import errno
import json
import random
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inlay.errors import OutputError, UsageError
from inlay.files import write_atomic
from inlay.train import TrainConfig, TrainError
from inlay.train.checkpoint import (
    Checkpoint,
    load_checkpoint,
    random_state,
    restore_random,
    save_checkpoint,
)
from inlay.train.rundir import RunDir, RunIdentity


def checkpoint(step: int, size: int = 10) -> Checkpoint:
    return Checkpoint(tensors={"model.w": torch.full((size,), float(step))}, facts={"step": step, "note": "x"})


def test_a_checkpoint_comes_back_and_replaces_the_one_before(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path, "last") is None
    for step in (5, 10):
        save_checkpoint(tmp_path, "last", checkpoint(step))
    back = load_checkpoint(tmp_path, "last")
    assert back is not None
    assert (back.step, back.facts["note"]) == (10, "x")
    assert torch.equal(back.tensors["model.w"], torch.full((10,), 10.0))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["last-00000010.safetensors", "last.json"]


def refuse(error: int):  # type: ignore[no-untyped-def]
    def replace(self: Path, target: Path) -> Path:
        raise OSError(error, "refused")

    return replace


@pytest.mark.parametrize("at", [".safetensors", ".json"])
def test_a_full_disk_leaves_the_old_checkpoint_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    save_checkpoint(tmp_path, "last", checkpoint(5))
    whole = Path.replace

    def replace(self: Path, target: Any) -> Path:
        if str(target).endswith(at):
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(OutputError, match=r"checkpoint of step 10 .*disk is full.*last\.json, is intact.*make room"):
        save_checkpoint(tmp_path, "last", checkpoint(10))
    back = load_checkpoint(tmp_path, "last")
    assert back is not None
    assert back.step == 5
    assert not list(tmp_path.glob("*.part"))
    with pytest.raises(OutputError, match=r"step 10 \(0\.0 MB\): the disk is full; make room"):
        save_checkpoint(tmp_path / "new", "last", checkpoint(10))


def test_a_real_write_that_finds_no_room(tmp_path: Path) -> None:
    """The kernel refuses the bytes, as on a full disk."""
    import signal

    save_checkpoint(tmp_path, "last", checkpoint(5))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OutputError, match="the disk is full"):
            save_checkpoint(tmp_path, "last", checkpoint(10, size=100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    back = load_checkpoint(tmp_path, "last")
    assert back is not None
    assert back.step == 5


def test_damaged_checkpoints_are_named(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, "last", checkpoint(5))
    tensors = tmp_path / "last-00000005.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-3])
    with pytest.raises(TrainError, match=r"bytes.*were written"):
        load_checkpoint(tmp_path, "last")
    (tmp_path / "last.json").write_text("{")
    with pytest.raises(TrainError, match="not a readable checkpoint"):
        load_checkpoint(tmp_path, "last")


def test_all_random_generators_come_back() -> None:
    random.random()
    tensors, facts = random_state()
    facts = json.loads(json.dumps(facts))
    want = (random.random(), np.random.rand(), torch.rand(1).item())  # noqa: NPY002
    restore_random(tensors, facts)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == want  # noqa: NPY002


DATA: dict[str, Any] = {"train": [{"name": "a.mp4", "frames": 9}], "validate": []}


def plan(**changes: Any) -> RunIdentity:
    networks = {"lit": {"width": 8, "window": (4, 4)}, "from": []}
    return replace(RunIdentity(kind="lit", config=TrainConfig(), data=DATA, networks=networks), **changes)


def test_a_folder_holds_one_run(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.check(plan(), resume=False)
    run.begin(plan())
    record = json.loads((run.path / "config.json").read_text())
    assert {"kind", "config", "networks", "commit", "torch", "inlay", "python"} <= set(record)
    run.check(plan(config=TrainConfig().with_options(log_every=3)), resume=True)
    with pytest.raises(UsageError, match="holds a run already"):
        run.check(plan(), resume=False)
    with pytest.raises(UsageError, match=r"other settings: batch, optim\.lr"):
        run.check(plan(config=TrainConfig().with_options(lr=1e-4, batch=8)), resume=True)
    with pytest.raises(UsageError, match="kind 'lit', not 'backbone'"):
        run.check(plan(kind="backbone"), resume=True)
    with pytest.raises(UsageError, match=r"train videos have changed \(1 then, 0 now"):
        run.check(plan(data={**DATA, "train": []}), resume=True)
    with pytest.raises(UsageError, match=r"other settings: networks\.lit, networks\.from"):
        run.check(plan(networks={"lit": {"width": 16}, "from": ["a.safetensors"]}), resume=True)


def test_an_unreadable_video_is_noted_once(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.begin(plan(data={**DATA, "problems": ["a"]}))
    for line in ("a", "b", "b"):
        run.add_problem(line)
    assert json.loads((tmp_path / "data.json").read_text()) == {**DATA, "problems": ["a", "b"]}


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"the run's folder .*: (Not a directory|File exists); name a place"):
        RunDir(tmp_path / "file").begin(plan())
    with pytest.raises(OutputError, match=r"the checkpoint of step 3 .*: (Not a directory|File exists); name a place"):
        save_checkpoint(tmp_path / "file", "last", Checkpoint(tensors={}, facts={"step": 3}))


def test_the_log_forgets_what_will_be_done_again(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for step in (1, 2, 3):
        run.log({"kind": "train", "step": step, "loss": 0.5})
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # a kill in the middle of a line
    (tmp_path / "left.part").touch()
    run.rewind(2)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert not (tmp_path / "left.part").exists()


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    write_atomic(path, b"old", durable=True)
    monkeypatch.setattr(Path, "replace", refuse(errno.EIO))
    with pytest.raises(OutputError, match="refused"):
        write_atomic(path, b"new", durable=True)
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_bytes() == b"old"
