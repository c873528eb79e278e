# SPDX-License-Identifier: Apache-2.0
"""Strangers' files in a process of its own: the same result, and an end to memory, time and crashes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from inlay import sandbox
from inlay.cli.main import main
from inlay.errors import TokenFileError, UsageError
from inlay.video import read_video, write_video
from inlay.web.limits import Limits, open_token_file
from tests.conftest import moving_square
from tests.flow.test_limits import FULL, promise, section
from tests.hunt.forge import Parts

MUCH = promise(840, 840, 1, 705_600, 16, FULL, section(16, 16_500))  # 66 KB that want 250 MB
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="memory is limited on Linux only")


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    write_video(moving_square(9, 24, 32), tmp_path / "clip.mp4")
    words = ["--tau", "0.5", "--backbone", "mini-untrained", "--device", "cpu", "--quiet"]
    assert main(["encode", str(tmp_path / "clip.mp4"), *words]) == 0
    return tmp_path / "clip.inlay"


def test_an_untrusted_file_decodes_to_the_same_video(tokens: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for out, words in (("a.mkv", []), ("b.mkv", ["--untrusted"])):
        words = [*words, "--fill", "hold", "--device", "cpu", "--lossless", "--quiet"]
        assert main(["decode", str(tokens), str(tokens.parent / out), *words]) == 0
    a, b = (read_video(tokens.parent / name) for name in ("a.mkv", "b.mkv"))
    assert torch.equal(a.frames, b.frames)
    assert main(["decode", str(tokens), str(tokens.parent / "b.mkv"), "--untrusted"]) == 2  # it is there already
    assert "exists already" in capfd.readouterr().err
    assert main(["decode", str(tokens.parent / "no.inlay"), "--untrusted"]) == 4


@LINUX
def test_memory_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "much.inlay"
    path.write_bytes(MUCH)
    with pytest.raises(TokenFileError, match="asked for more than 60 MB") as caught:
        sandbox.run(["verify", str(path)], memory_mb=60, seconds=60, quiet=True)
    assert caught.value.about == ("untrusted",)


def test_time_has_an_end_and_nothing_is_left(
    tokens: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tokens.parent.iterdir())
    monkeypatch.setattr("inlay.cli.commands.decode.MOST_SECONDS", 0.5)
    start = time.monotonic()
    assert main(["decode", str(tokens), str(tokens.parent / "x.mp4"), "--untrusted"]) == 4
    assert time.monotonic() - start < 0.5 + sandbox.GRACE_SECONDS + 5
    assert "not done within 0.5 s, the limit for untrusted files" in capsys.readouterr().err
    assert sorted(tokens.parent.iterdir()) == before


@pytest.mark.skipif(sys.platform == "win32", reason="other signals there")
def test_a_crash_stays_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "fake.py").write_text("import os\nos.abort()\n")
    real = subprocess.Popen

    def crash(args: list[str], **more: object) -> subprocess.Popen[str]:
        return real([sys.executable, str(tmp_path / "fake.py")], **more)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(sandbox.subprocess, "Popen", crash)
    with pytest.raises(TokenFileError, match="ended by signal 6"):
        sandbox.run(["verify", "x.inlay"], memory_mb=100, seconds=30, quiet=True)


def test_faults_are_those_of_verify(tokens: Path, tmp_path: Path) -> None:
    assert sandbox.faults_of(tokens) == []
    bad = tmp_path / "-bad.inlay"  # a name that might be taken for a flag
    bad.write_bytes(tokens.read_bytes()[:-300])
    found = sandbox.faults_of(bad)
    assert len(found) >= 1 and "promises" in found[0]
    assert sandbox.faults_of(tmp_path / "no.inlay") == ["no such file"]


@pytest.mark.parametrize("limit", [pytest.param("memory", marks=LINUX), "time"])
def test_what_wants_too_much_has_a_fault(limit: str, tokens: Path) -> None:
    if limit == "time":
        (found,) = sandbox.faults_of(tokens, seconds=0.2)
        assert "not done within 0.2 s" in found
    else:
        tokens.write_bytes(MUCH)
        (found,) = sandbox.faults_of(tokens, memory_mb=60)
        assert "more than 60 MB" in found


class TestPage:
    """Every token file that a visitor gives goes through the child first."""

    def test_a_sound_file_is_taken(self, tokens: Path) -> None:
        open_token_file(tokens, Limits())

    @pytest.mark.parametrize(
        ("forge", "words"),
        [
            (lambda parts: parts.header.update(streaming="psychic"), "'streaming' should be one of"),
            (lambda parts: parts.header.update(space_stride=16, height=48, width=64), "8 pixels a cell"),
            (lambda parts: parts.chunks[0].numbers.__setitem__(1, 0), "goes on from a chunk before it"),
        ],
    )
    def test_a_file_that_would_not_decode_is_refused(
        self, forge: Callable[[Parts], None], words: str, tokens: Path
    ) -> None:
        parts = Parts.of(tokens.read_bytes())
        forge(parts)
        tokens.write_bytes(parts.pack())
        with pytest.raises(TokenFileError, match=words) as caught:
            open_token_file(tokens, Limits())
        assert str(tokens.parent) not in str(caught.value)

    @pytest.mark.parametrize(("slots", "chunks", "words"), [(4, 1, "pixels at once"), (1, 12, "million pixels, and")])
    def test_cells_are_counted_not_frames(self, slots: int, chunks: int, words: str, tmp_path: Path) -> None:
        """Few frames of many cells are as dear as many frames."""
        path = tmp_path / "wide.inlay"
        path.write_bytes(promise(240, 240, slots, 0, 16, bytes(2), b"", chunks=chunks))
        with pytest.raises(UsageError, match=words):
            open_token_file(path, Limits())
