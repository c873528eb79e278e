# SPDX-License-Identifier: Apache-2.0
"""The profile of Cosmos at a tiny size, and its convolution in Triton against torch's."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from tests.triton_here import DEVICE, needs_triton

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


def test_every_part_leaves_its_numbers(tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    words = "--device cpu --small --repeats 1 --parts eager --jobs encode:1 --seconds 60"
    command = [sys.executable, str(BENCHMARKS / "cosmos_profile.py"), "--out", str(out), *words.split()]
    subprocess.run(command, check=True, capture_output=True)
    record = json.loads(out.read_text())
    assert record["eager: decode:1"]["norm kernels"]["difference"] == 0, "there are none on a CPU"
    assert record["compiled: encode:1"]["ms a clip"] > 0
    rows = record["compiled: encode:1"]["as it is"]["kernels"]
    assert rows == sorted(rows, key=lambda row: -row[1]) and sum(ms for _, ms, _ in rows) > 0


@pytest.fixture(scope="module")
def taps_triton() -> ModuleType:
    spec = importlib.util.spec_from_file_location("taps_triton", BENCHMARKS / "taps_triton.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_triton
@pytest.mark.parametrize("size", [(1, 3, 3), (3, 1, 1), (1, 1, 1)])
@pytest.mark.parametrize(("channels", "out"), [(16, 24), (64, 16)])
def test_taps_are_a_convolution(taps_triton: ModuleType, size: tuple[int, int, int], channels: int, out: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, channels, 5, 7, 6, device=DEVICE)  # two clips of five frames
    weight, bias = torch.randn(out, channels, *size, device=DEVICE), torch.randn(out, device=DEVICE)
    past = F.pad(x, (0, 0, 0, 0, size[0] - 1, 0), mode="replicate")
    wanted = F.conv3d(past, weight, bias, padding=(0, size[1] // 2, size[2] // 2))
    more = torch.randn_like(wanted)
    rows, add = (t.permute(0, 2, 3, 4, 1).flatten(0, 1).contiguous() for t in (x, more))
    got = taps_triton.convolve(rows, taps_triton.taps_of(weight), bias, 5, size, config="128x128x64", add_FHWN=add)
    wanted = (wanted + more).permute(0, 2, 3, 4, 1).flatten(0, 1)
    tolerance = 1e-4 if DEVICE == "cpu" else 5e-2  # TF32 on a GPU
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)
