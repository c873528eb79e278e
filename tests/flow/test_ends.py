# SPDX-License-Identifier: Apache-2.0
"""Requests that no machine can serve are refused in one line, before anything is read or loaded."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from inlay.cli.main import main
from inlay.video import write_video
from tests.conftest import moving_square

MODEL = ["--backbone", "mini-untrained"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["serve", "--threads", "100000"], "from 1 to"),
        (["serve", "--threads", "0"], "from 1 to"),
        (["serve", "--max-work", "nan"], "max_work"),
        (["serve", "--port", "many"], "'--port': Input should be a valid integer; got 'many' (see"),
        (["eval", "DATA", "--limit", "-1"], "greater than or equal to 0; got '-1' (see"),
        (["bench", "--sizes", "100000x100000"], "pixels"),
        (["bench", "--sizes", f"{'9' * 5000}x1"], "unknown size"),
        (["bench", "--sizes", "64x64", "--frames", "1000000000"], "pixels"),
        (["bench", "--frames", "9" * 5000], "whole numbers"),
        (["export", "OUT", "--size", "100000x100000"], "pixels"),
        (["demo", "--size", "abc", "--out", "OUT"], "a size is"),
        (["demo", "--tau", "nan", "--out", "OUT"], "tau"),
        (["eval", "DATA", "--tau", "nan", *MODEL], "tau"),
        (["eval", "DATA", "--rate", "nan", *MODEL], "--rate"),
        (["study", "main", "--data-davis", "DATA", "--out", "OUT", "--tau", "nan", *MODEL], "tau"),
        (["encode", "DATA", "OUT", "--profile", "NESTED"], "not a profile"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_it_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    data = write_video(moving_square(9, 32, 32), tmp_path / "data.mp4")
    (tmp_path / "nested.json").write_text("[" * 100_000)
    places = {"DATA": str(data), "OUT": str(tmp_path / "new.inlay"), "NESTED": str(tmp_path / "nested.json")}
    start = time.monotonic()
    assert main([places.get(word, word) for word in words]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1 and "unexpected" not in err and len(err) < 6000
    assert time.monotonic() - start < 30
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.mp4", "nested.json"]


def test_an_original_of_another_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clip, tokens = write_video(moving_square(9, 32, 32), tmp_path / "clip.mp4"), tmp_path / "clip.inlay"
    other = write_video(moving_square(9, 48, 64), tmp_path / "other.mp4")
    assert main(["encode", str(clip), str(tokens), "--tau", "0.1", "--quiet", *MODEL]) == 0
    assert main(["view", str(tokens), str(tmp_path / "x.mp4"), "--original", str(other)]) == 2
    err = capsys.readouterr().err
    assert "is 64x48" in err and "of 32x32" in err and "--size" in err and err.count("\n") == 1
    assert not (tmp_path / "x.mp4").exists()
