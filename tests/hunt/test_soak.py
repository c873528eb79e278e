# SPDX-License-Identifier: Apache-2.0
"""A short soak finds nothing; and it would find something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hunt.soak import Soak, die_and_resume, in_child


def soak(*words: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "tests.hunt.soak", *words], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout)["parts"]


def test_killed_encodes_lose_nothing() -> None:
    parts = soak("--only", "encode", "--kills", "4", "--seed", "7")
    assert parts["encode"]["killed"] >= 4 and parts["encode"]["resumed"] >= 1


def test_a_stream_stays_flat(tmp_path: Path) -> None:
    parts = soak("--only", "stream", "--frames", "2000", "--out", str(tmp_path / "record.json"))
    assert parts["stream"]["frames"] == 2000 and parts["stream"]["kept"] <= 0.3
    assert json.loads((tmp_path / "record.json").read_text())["findings"] == []


@pytest.mark.slow
def test_the_page_serves_many_at_once() -> None:
    pytest.importorskip("gradio")
    assert soak("--only", "page", "--requests", "600")["page"]["requests"] == 600


@pytest.mark.slow
@pytest.mark.parametrize("part", ["train", "local"])
def test_killed_runs_and_jobs_lose_nothing(part: str) -> None:
    pytest.importorskip("psutil")
    assert soak("--only", part, "--kills", "2")[part]["killed"] >= 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked off")
@pytest.mark.filterwarnings(
    "ignore:.*fork:DeprecationWarning"
)  # other tests leave threads, which --help has no use for
def test_a_case_dies_at_the_same_place_and_a_loss_is_found(tmp_path: Path) -> None:
    """With a command that takes no time: `inlay --help`."""
    here = Soak(seed=1, folder=tmp_path)
    code, calls = in_child(["--help"], tmp_path / "log")
    assert code == 0 and calls > 100 and "video tokeniser" in (tmp_path / "log").read_text()
    assert in_child(["--help"], tmp_path / "log")[1] == calls, "the same calls every time"
    assert in_child(["--help"], tmp_path / "log", die_at=calls // 2)[0] == -9
    seen = die_and_resume(here, "help", 3, lambda out: ["--help"], lambda out: "a", "b", calls)
    assert seen["resumed"] == 1 and [finding["case"] for finding in here.findings] == [3]
    assert "another than" in here.findings[0]["what"]
    die_and_resume(here, "help", 4, lambda out: ["--wrong"], lambda out: "a", "a", calls)
    assert "exit code 2" in here.findings[-1]["what"]
