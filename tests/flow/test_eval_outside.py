# SPDX-License-Identifier: Apache-2.0
"""Another system's reconstructions: which file belongs to which clip, how it is cut, what is said of the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inlay.cli.main import main
from inlay.video import write_video
from tests.conftest import moving_square

SMALL = ("--frames", "6", "--side", "32", "--metrics", "psnr,error-level")


def score(capsys: pytest.CaptureFixture[str], data: Path, theirs: Path, *more: object) -> dict[str, Any]:
    words = ("eval", data, "--reconstructions", theirs, *SMALL, *more, "--json", "--quiet")
    assert main([str(w) for w in words]) == 0
    record = json.loads(capsys.readouterr().out)
    return {"data": record["data"], **next(iter(record["rules"].values()))}


def save(path: Path, frames: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, frames)
    return path


def clip(seed: int, frames: int = 6) -> np.ndarray:
    return moving_square(frames, 32, 32, seed=seed).frames.numpy()


def test_the_file_of_another_clip_is_not_taken_for_a_missing_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i, name in enumerate(("x", "y")):
        save(tmp_path / "data" / name / "clip.npy", clip(i))
    save(tmp_path / "theirs" / "x" / "clip.npy", clip(0))
    found = score(capsys, tmp_path / "data", tmp_path / "theirs")
    assert found["clips"] == {"x/clip": {"psnr": 100.0, "error-level": 0.0}}
    assert found["data"]["clips"] == ["x/clip"] and found["data"]["left_out"] == [
        "y/clip: there is no reconstruction of this name"
    ]
    save(tmp_path / "flat" / "y_clip.npy", clip(1))
    assert list(score(capsys, tmp_path / "data", tmp_path / "flat")["clips"]) == ["y/clip"]


def test_a_file_name_alone_will_do_where_it_is_the_only_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "data" / "x" / "clip.npy", clip(0))
    save(tmp_path / "theirs" / "out" / "clip.npy", clip(0))
    assert list(score(capsys, tmp_path / "data", tmp_path / "theirs")["clips"]) == ["x/clip"]


def test_another_size_is_refused_but_the_size_of_the_video_is_cut_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "theirs").mkdir()
    for i, name in enumerate(("small", "whole", "cut")):
        video = moving_square(6, 48, 64, seed=i)
        write_video(video, tmp_path / "data" / f"{name}.mkv", lossless=True)
        if name == "whole":
            write_video(video, tmp_path / "theirs" / f"{name}.mkv", lossless=True)
    save(tmp_path / "theirs" / "small.npy", np.zeros((6, 16, 16, 3), np.uint8))
    save(tmp_path / "theirs" / "cut.npy", np.zeros((6, 32, 32, 3), np.uint8))
    found = score(capsys, tmp_path / "data", tmp_path / "theirs")
    assert set(found["clips"]) == {"whole", "cut"} and found["clips"]["whole"]["psnr"] == 100.0
    assert found["data"]["left_out"] == [
        "small: the clip is 6x32x32 (frames, height, width), its reconstruction 6x16x16; cut or resize it alike"
    ]


@pytest.mark.parametrize("step", [1, 2])
def test_every_second_frame_may_be_all_that_was_reconstructed(
    step: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "data" / "a.npy", clip(0, 12))
    save(tmp_path / "theirs" / "a.npy", clip(0, 12)[::step])
    found = score(capsys, tmp_path / "data", tmp_path / "theirs", "--interval", 2)
    assert found["clips"]["a"]["psnr"] == 100.0


def test_several_clips_of_a_video_by_one_file_or_by_one_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "data" / "a.npy", clip(0, 12))
    save(tmp_path / "one" / "a.npy", clip(0, 12))
    for i in range(2):
        save(tmp_path / "each" / f"a@{i}.npy", clip(0, 12)[6 * i : 6 * i + 6])
    for theirs in ("one", "each"):
        found = score(capsys, tmp_path / "data", tmp_path / theirs, "--clips", 2)
        assert [row["psnr"] for row in found["clips"].values()] == [100.0, 100.0]


def test_records_are_kept_and_follow_what_the_files_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "data" / "a.npy", clip(0))
    theirs = save(tmp_path / "theirs" / "a.npy", clip(0))
    records = tmp_path / "out" / "records" / "eval"
    assert score(capsys, tmp_path / "data", theirs.parent, "--out", tmp_path / "out")["clips"]["a"]["psnr"] == 100.0
    assert len(list(records.iterdir())) == 1
    save(theirs, clip(1))  # as many bytes, other frames
    assert score(capsys, tmp_path / "data", theirs.parent, "--out", tmp_path / "out")["clips"]["a"]["psnr"] < 40
    assert len(list(records.iterdir())) == 2
