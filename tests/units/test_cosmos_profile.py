# SPDX-License-Identifier: Apache-2.0
"""The profile of Cosmos at a tiny size, and its convolution in Triton against torch's."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from inlay.backbones.cosmos import Cosmos, tiny_cosmos
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
    got, _ = taps_triton.convolve(rows, taps_triton.taps_of(weight), bias, 5, size, config="128x128x64", add_FHWN=add)
    wanted = (wanted + more).permute(0, 2, 3, 4, 1).flatten(0, 1)
    tolerance = 1e-4 if DEVICE == "cpu" else 5e-2  # TF32 on a GPU
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


@needs_triton
def test_taps_leave_what_a_norm_asks_for(taps_triton: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from inlay.kernels.norm_triton import frame_norm

    torch.manual_seed(0)
    monkeypatch.setitem(taps_triton.CONFIGS, "small", (16, 16, 16, 4, 2))
    x, weight = torch.randn(3, 8, 8, 16, device=DEVICE), torch.randn(32, 16, 3, 1, 1, device=DEVICE)
    taps, bias = taps_triton.taps_of(weight), torch.randn(32, device=DEVICE)
    made, moments = taps_triton.convolve(x, taps, bias, 3, (3, 1, 1), config="small", sums=True)
    assert moments.shape == (3, 8, 2)
    y, ones = made.permute(0, 3, 1, 2), torch.ones(32, device=DEVICE)
    known = frame_norm(y, ones, bias, 1e-6, silu=True, moments=moments)
    torch.testing.assert_close(known, frame_norm(y, ones, bias, 1e-6, silu=True), rtol=1e-5, atol=1e-5)
    odd, none = taps_triton.convolve(x[:, :7], taps, bias, 3, (3, 1, 1), config="small", sums=True)
    assert none is None and odd.shape == (3, 7, 8, 32), "a tile would lie in two frames"


@needs_triton
@pytest.mark.parametrize("sums", [False, True])
def test_cosmos_with_products_over_time_is_cosmos(sums: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    profile = importlib.import_module("cosmos_profile")
    torch.manual_seed(0)
    plain = Cosmos(tiny_cosmos()).eval().requires_grad_(False).to(DEVICE)
    taps = importlib.import_module("taps_triton")
    monkeypatch.setitem(taps.CONFIGS, "small", (16, 16, 16, 4, 2))  # tiles that fit into small frames
    other = profile.by_taps(copy.deepcopy(plain), "small", sums=sums)
    x = torch.rand(1, 3, 9, 32, 32, device=DEVICE) * 2 - 1
    tolerance = 1e-4 if DEVICE == "cpu" else 5e-2  # TF32 on a GPU
    with torch.inference_mode():
        z = plain.encode(x)
        torch.testing.assert_close(other.encode(x), z, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(other.decode(z), plain.decode(z), rtol=tolerance, atol=tolerance)
