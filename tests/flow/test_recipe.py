# SPDX-License-Identifier: Apache-2.0
"""The script that made the shipped weights, from videos to packed weights, at rehearsal size on a CPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from inlay.weightfile import load_weights
from tests.conftest import moving_square

ROOT = Path(__file__).parents[2]
REHEARSAL = ("--device", "cpu", "--tiny", "--seconds", "1", "--detail-power", "2")
SMALL = ("--blocks", "1", "1", "1", "1")
needs_dav1d = pytest.mark.skipif(shutil.which("dav1d") is None, reason="the dav1d program is not installed")


def recipe(*words: str | Path) -> str:
    command = [sys.executable, str(ROOT / "recipes" / "mini.py"), *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def write_av1(path: Path, seed: int) -> None:
    av = pytest.importorskip("av")
    try:
        av.codec.Codec("libsvtav1", "w")
    except av.error.FFmpegError:
        pytest.skip("this PyAV cannot write AV1")
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libsvtav1", rate=Fraction(24), options={"svtav1-params": "lp=1", "preset": "12"})
        stream.width = stream.height = 96
        stream.pix_fmt = "yuv420p"
        for frame in moving_square(12, 96, 96, seed=seed).frames.numpy():
            file.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        file.mux(stream.encode())


@needs_dav1d
def test_from_videos_to_packed_weights(tmp_path: Path) -> None:
    videos, clips, run = tmp_path / "videos", tmp_path / "clips", tmp_path / "run"
    videos.mkdir()
    for seed in range(3):
        write_av1(videos / f"{seed}.mp4", seed)
    recipe("clips", videos, clips)
    assert len(list(clips.glob("*.ivf"))) == 3

    recipe("backbone", "--clips", clips, "--run", run / "mini", *SMALL, *REHEARSAL)
    recipe("pack", "--run", run / "mini", "--out", tmp_path / "first.safetensors")
    start = ("--from", tmp_path / "first.safetensors", "--blocks", "1", "1", "2", "1")
    said = recipe("together", "--clips", clips, "--run", run / "both", *start, *REHEARSAL)
    assert "new: decoder.coarse.1" in said, "a block more, begun from weights without it"

    packed = tmp_path / "mini.safetensors"
    recipe("pack", "--run", run / "both", "--out", packed, "--stored", "int10")
    assert load_weights(packed).meta["config"]["decoder_blocks"] == [2, 1]
    lit = ("--backbone", packed, "--kind", "plus", "--from", run / "both" / "lit.safetensors")
    recipe("lit", "--clips", clips, "--run", run / "lit", *lit, *REHEARSAL)
    assert (run / "lit" / "weights.safetensors").is_file()
