# SPDX-License-Identifier: Apache-2.0
"""The benchmark from file to file, at a tiny size: it runs the worker that users run, and what it reads is the clip."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from inlay.video import read_video
from inlay.video.frames import Video
from tests.conftest import moving_square

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def clips_on_disk() -> ModuleType:
    spec = importlib.util.spec_from_file_location("clips_on_disk", BENCHMARKS / "clips_on_disk.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def frames_of(reader: Any, frames: int) -> torch.Tensor:
    with reader:
        return torch.cat([piece.frames for piece in reader.chunks(frames)])


def test_rows_of_a_run(tmp_path: Path) -> None:
    for n in range(2):
        np.save(tmp_path / f"clip{n}.npy", moving_square(40, 32, 48, seed=n).frames.numpy())
    words = "--models tiny --kinds raw --device cpu --dtype float32 --videos 5 --batch 2 --helpers 2 0 --rounds 1"
    command = [sys.executable, str(BENCHMARKS / "file_rate.py"), "--clips", str(tmp_path), *words.split()]
    out = tmp_path / "rate.json"
    done = subprocess.run(
        [*command, "--repeats", "1", "--out", str(out)],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    helped, alone = json.loads(out.read_text())["rows"]
    assert (helped["helpers"], helped["videos"], helped["frames"]) == (2, 5, 200)
    assert (alone["helpers"], alone["videos"], alone["frames"]) == (0, 8, 320)
    for row in (helped, alone):
        assert min(row[f"{name}_ms"] for name in ("network", "files", "decode_core", "pack_core", "cores")) > 0
        assert row["bound_ms"] == pytest.approx(max(row["network_ms"], row["cores_ms"]))
        assert row["share_of_network"] == pytest.approx(row["network_ms"] / row["files_ms"], abs=2e-4)


def test_raw_clips_are_read_as_they_are(clips_on_disk: ModuleType, tmp_path: Path) -> None:
    frames = moving_square(20, 32, 48).frames
    np.save(tmp_path / "clip.npy", frames.numpy())
    opened = clips_on_disk.open_clip(str(tmp_path / "clip.npy"), size="keep", keep_going=False, start=0, frames=None)
    assert (opened.height, opened.width) == (32, 48)
    assert frames_of(opened, 7).equal(frames)


@pytest.mark.skipif(shutil.which("dav1d") is None, reason="the program dav1d is not installed")
def test_av1_is_read_as_the_library_reads_it(clips_on_disk: ModuleType, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    path, video = tmp_path / "clip.ivf", moving_square(9, 64, 96)
    with av.open(str(path), "w", format="ivf") as container:
        stream = container.add_stream("libsvtav1", rate=24, options={"preset": "8"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for picture in video.frames.numpy():
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    wanted: Video = read_video(path)
    opened = clips_on_disk.open_clip(str(path), size="keep", keep_going=False, start=0, frames=None)
    got = frames_of(opened, 4)
    assert got.shape == wanted.frames.shape
    assert float((got.float() - wanted.frames.float()).abs().mean()) < 3, "colours are repeated, not interpolated"
