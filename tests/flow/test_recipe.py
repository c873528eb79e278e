# SPDX-License-Identifier: Apache-2.0
"""The script that makes the weights that ship, from videos to packed weights, at rehearsal size on a CPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from inlay.fill import Lit, plus
from inlay.tokenizer import Tokenizer
from inlay.video import write_video
from inlay.weightfile import load_weights, save_weights
from tests.conftest import moving_square, scripts

ROOT = Path(__file__).parents[2]
needs_dav1d = pytest.mark.skipif(shutil.which("dav1d") is None, reason="the dav1d program is not installed")


def recipe(*words: str | Path, code: int = 0) -> str:
    command = [sys.executable, str(ROOT / "recipes" / "mini.py"), *map(str, words)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == code, done.stderr[-2000:]
    return done.stdout if code == 0 else done.stderr


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


@pytest.fixture
def mini() -> Iterator[Any]:
    with scripts(ROOT / "recipes", "mini") as found:
        yield found["mini"]


def test_one_command_makes_all_weights(tmp_path: Path) -> None:
    videos, photos, out = tmp_path / "videos", tmp_path / "photos", tmp_path / "out"
    videos.mkdir()
    photos.mkdir()
    for seed in range(2):
        write_video(moving_square(12, 72, 72, seed=seed), videos / f"{seed}.mp4")
        Image.fromarray(moving_square(1, 330, 330, seed=seed).frames[0].numpy()).save(photos / f"{seed}.png")
    said = recipe("all", videos, out, "--photos", photos, "--tiny", "--device", "cpu")
    rows = json.loads((out / "run" / "results.json").read_text())
    assert [row["name"] for row in rows] == ["backbone", "together", "lit", "paper"]
    assert all(row["steps"] == 4 and row["held"]["psnr"] > 5 for row in rows)
    assert all(len(row["held"]["places"]) == 5 for row in rows)
    assert "lit_0.35" in rows[-2]["held"] and "paper_0.35" in rows[-1]["held"]
    assert "mini.lit-paper.safetensors" in said

    tokenizer = Tokenizer.from_pretrained(out / "weights", device="cpu")
    assert set(tokenizer.filler.lits) == {"lit", "lit-paper"}, "trained for these very weights"
    stds = torch.tensor(tokenizer.spec.latent_std)
    assert 0.5 < stds.mean() < 2, "in units of about one deviation"
    video = moving_square(9, 64, 64, seed=5)
    tokens = tokenizer.encode(video, tau=0.5, fill="lit")
    assert len(tokenizer.decode(tokens)) == 9

    said = recipe("all", videos, out, "--tiny", "--device", "cpu", code=1)
    assert said.count("\n") == 1 and "holds networks of an earlier run (backbone.safetensors)" in said
    shipped = ROOT / "src" / "inlay" / "weights"
    said = recipe("train", videos, tmp_path / "other", "--weights", shipped, "--tiny", "--device", "cpu", code=1)
    assert said.count("\n") == 1 and "mini.safetensors is of another shape than the plan asks for" in said


def test_packing_changes_units_and_nothing_else(mini: Any) -> None:
    """A network on latents in other units gives the same pictures."""
    torch.manual_seed(0)
    for kind in ("plus", "paper"):
        lit = Lit.build(replace(plus(), kind=kind, channels=4, width=32, heads=1, blocks=1)).eval()
        for parameter in lit.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        lit.set_statistics((0.5,) * 4, (2.0,) * 4)
        other = Lit.build(lit.config).eval()
        other.load_state_dict(mini.in_units(lit.state_dict(), kind, 8.0))
        z, keep = torch.randn(1, 4, 3, 8, 8), torch.rand(1, 3, 8, 8) < 0.5
        with torch.no_grad():
            assert torch.allclose(other(z / 8, keep, 0.25) * 8, lit(z, keep, 2.0), atol=1e-4)


def test_more_blocks_and_channels_begin_as_if_they_were_not_there(mini: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    small = Lit.build(replace(plus(), channels=2, width=32, heads=1, blocks=1)).eval()
    for parameter in small.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    save_weights(tmp_path / "lit.safetensors", small.state_dict(), {}, stored="fp32")
    large = Lit.build(replace(small.config, channels=3, blocks=2)).eval()
    mini.take(large, tmp_path, "lit", mini.widen_lit, 1.0)
    z, keep = torch.randn(1, 3, 3, 8, 8), torch.rand(1, 3, 8, 8) < 0.5
    with torch.no_grad():
        assert torch.allclose(large(z, keep, 0.5)[:, :2], small(z[:, :2], keep, 0.5), atol=1e-4)


def test_frames_of_a_slot_may_share_their_error() -> None:
    """A sharp frame among soft ones is worth more than four alike by the logarithm of each, less by that of all."""
    with scripts(ROOT / "recipes", "stages", "results") as found:
        shared, by_place = found["stages"].shared_by_slot, found["results"].by_place
    alike, apart = torch.tensor([[1.0, 4, 4, 4, 4]]), torch.tensor([[1.0, 6, 6, 1, 6]])
    assert apart.log().mean() < alike.log().mean()
    assert shared(apart).tolist() == [[1.0, 4.75, 4.75, 4.75, 4.75]]
    assert shared(alike).log().mean() < shared(apart).log().mean()
    assert by_place(torch.tensor([[9.0, 1, 2, 3, 4, 3, 4, 5, 6]])) == [9.0, 2.0, 3.0, 4.0, 5.0]


@needs_dav1d
def test_av1_goes_by_way_of_ivf(tmp_path: Path) -> None:
    videos, clips = tmp_path / "videos", tmp_path / "clips"
    videos.mkdir()
    for seed in range(2):
        write_av1(videos / f"{seed}.mp4", seed)
    recipe("clips", videos, clips, "--frames", "10")
    assert len(list(clips.glob("*.ivf"))) == 2
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"channels": 4, "lit": {"blocks": 1}, "stages": [{"name": "b", "kind": "backbone"}]}))
    recipe("train", clips, tmp_path / "run", "--tiny", "--device", "cpu", "--plan", plan)
    assert load_weights(tmp_path / "run" / "backbone.safetensors").meta["config"]["channels"] == 4


def test_a_folder_without_clips_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no clip to train on" in recipe("train", tmp_path / "empty", tmp_path / "run", "--tiny", code=1)
    assert "is not a folder of clips" in recipe("train", tmp_path / "gone", tmp_path / "run", "--tiny", code=1)
