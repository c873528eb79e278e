# SPDX-License-Identifier: Apache-2.0
"""The profile of Cosmos at a tiny size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


def test_every_part_leaves_its_numbers(tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    words = "--device cpu --small --repeats 1 --parts eager --jobs encode:1 --seconds 60"
    command = [sys.executable, str(BENCHMARKS / "cosmos_profile.py"), "--out", str(out), *words.split()]
    subprocess.run(command, check=True, capture_output=True)
    record = json.loads(out.read_text())
    assert record["eager: decode:1"]["difference"] == 0, "a CPU has no other layers"
    assert record["compiled: encode:1"]["ms a clip"] > 0
    rows = record["compiled: encode:1"]["as it is"]["kernels"]
    assert rows == sorted(rows, key=lambda row: -row[1]) and sum(ms for _, ms, _ in rows) > 0
