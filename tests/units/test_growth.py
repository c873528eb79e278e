# SPDX-License-Identifier: Apache-2.0
"""The growth benchmark on tiny sizes: every part leaves its points, a record is added to, plots are drawn from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent


def grow(out: Path, *words: str) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "benchmarks" / "growth.py"), "--out", str(out), "--small", "--repeats", "1"]
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


def test_networks_streams_and_keep(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out, plot = tmp_path / "growth.json", tmp_path / "growth.png"
    record = grow(out, "--parts", "networks", "keep")
    assert list(record["networks"]) == ["1x5x16x16", "1x9x16x16", "2x5x16x16", "1x5x24x24"]
    for row in record["networks"].values():
        assert all(row[step]["ms"] > 0 and row[step]["cpu_ms"] > 0 for step in ("encode", "lit", "decode"))
    rates = [row["keep_rate"] for row in record["keep"].values()]
    assert rates[0] == 1 and rates == sorted(rates, reverse=True)
    everything, little = record["keep"]["1.0"], record["keep"]["0.15"]
    assert everything["lit"]["fill"]["cpu_ms"] < little["lit"]["fill"]["cpu_ms"], (
        "nothing is dropped, nothing is filled"
    )
    again = grow(out, "--parts", "keep", "streams", "--plot", str(plot))
    assert again["keep"] == record["keep"], "what a record has is not measured again"
    assert [row["streams"] for row in again["streams"].values()] == [1, 2]
    assert plot.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_workers_and_nodes_write_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    record = grow(tmp_path / "growth.json", "--parts", "workers", "nodes", "--workers", "1", "2", "--nodes", "2")
    assert [row["same"] for row in [*record["workers"].values(), *record["nodes"].values()]] == [True] * 3
    model = record["model"]
    few, many = (model["videos_per_second"][n] for n in ("1", "1024"))
    assert few == pytest.approx(min(1 / model["worker_cpu_seconds"], 1 / model["main_cpu_seconds"]))
    assert many <= 1 / model["main_cpu_seconds"]
