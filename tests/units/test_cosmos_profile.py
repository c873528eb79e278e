# SPDX-License-Identifier: Apache-2.0
"""The profile of Cosmos at a tiny size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.triton_here import DEVICE, needs_triton

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


@needs_triton
@pytest.mark.parametrize("frames", [1, 4, 5])
@pytest.mark.parametrize("with_past", [False, True])
def test_two_frames_a_program_are_the_same_convolution(
    frames: int, with_past: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from taps_pairs_triton import PAIRS, convolve_pairs

    from inlay.kernels.norm_triton import TAKEN
    from inlay.kernels.taps_triton import Taps, convolve

    torch.manual_seed(0)
    y = torch.randn(2 * frames, 32, 9, 8, device=DEVICE).contiguous(memory_format=torch.channels_last)
    taps = Taps.of(torch.randn(48, 32, 3, 1, 1, device=DEVICE), torch.randn(48, device=DEVICE))
    past = torch.randn(2, 2, 72, 32, device=DEVICE) if with_past else None
    add = torch.randn(2 * frames, 48, 9, 8, device=DEVICE)
    wanted = convolve(y, taps, frames, past_BPSC=past, add=add, norm=True)
    for pair in PAIRS:
        got = convolve_pairs(y, taps, frames, pair, past_BPSC=past, add=add, norm=True)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        means = [(TAKEN[z][..., 0] * TAKEN[z][..., 2]).sum(1) for z in (got, wanted)]
        torch.testing.assert_close(*means, rtol=1e-3, atol=1e-2)


@needs_triton
@pytest.mark.parametrize("frames", [1, 4, 5])
@pytest.mark.parametrize("with_past", [False, True])
def test_blocks_by_descriptors_are_the_same_convolution(
    frames: int, with_past: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from taps_tma_triton import Way, convolve_blocks

    from inlay.kernels.norm_triton import TAKEN
    from inlay.kernels.taps_triton import Taps, Tile, convolve

    torch.manual_seed(0)
    y = torch.randn(2 * frames, 32, 9, 8, device=DEVICE).contiguous(memory_format=torch.channels_last)
    once = Taps.of(torch.randn(48, 32, 3, 1, 1, device=DEVICE), torch.randn(48, device=DEVICE))
    twice = Taps.of_phases(torch.randn(2, 48, 32, 2, device=DEVICE), torch.randn(48, device=DEVICE))
    past = torch.randn(2, 2, 72, 32, device=DEVICE) if with_past else None
    add = torch.randn(2 * frames, 48, 9, 8, device=DEVICE)
    wanted = convolve(y, once, frames, past_BPSC=past, add=add, norm=True)
    later = None if past is None else past[:, 1:]
    doubled = convolve(y, twice, frames, past_BPSC=later)
    for way in (Way(Tile(64, 32, 32, 4, 3)), Way(Tile(32, 64, 16, 4, 3), lasting=True)):
        got = convolve_blocks(y, once, frames, way, past_BPSC=past, add=add, norm=True)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
        means = [(TAKEN[z][..., 0] * TAKEN[z][..., 2]).sum(1) for z in (got, wanted)]
        torch.testing.assert_close(*means, rtol=1e-3, atol=1e-2)
        torch.testing.assert_close(
            convolve_blocks(y, twice, frames, way, past_BPSC=later), doubled, rtol=1e-4, atol=1e-4
        )
