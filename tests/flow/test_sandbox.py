# SPDX-License-Identifier: Apache-2.0
"""Strangers' files in a process of its own: the same result, and an end to memory, time and crashes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from inlay import sandbox
from inlay.cli.main import main
from inlay.errors import TokenFileError, UsageError, VideoError
from inlay.video import read_video, write_video
from inlay.web import child
from inlay.web.limits import Limits
from inlay.web.uploads import check_token_file, read_clip
from tests.conftest import moving_square
from tests.flow.test_limits import FULL, promise, section
from tests.hunt.forge import Parts
from tests.units.media import make

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


class TestPage:
    """Whatever a visitor gives is read by a child."""

    def test_a_sound_file_is_taken(self, tokens: Path) -> None:
        check_token_file(tokens, Limits())

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
            check_token_file(tokens, Limits())
        assert str(tokens.parent) not in str(caught.value)

    @pytest.mark.parametrize(("slots", "chunks", "words"), [(3, 1, "pixels at once"), (1, 12, "million pixels, and")])
    def test_cells_are_counted_not_frames(self, slots: int, chunks: int, words: str, tmp_path: Path) -> None:
        """Few frames of many cells are as dear as many frames."""
        path = tmp_path / "wide.inlay"
        path.write_bytes(promise(240, 240, slots, 0, 16, bytes(2), b"", chunks=chunks))
        with pytest.raises(UsageError, match=words):
            check_token_file(path, Limits())

    @pytest.mark.parametrize("limit", [pytest.param("memory", marks=LINUX), "time"])
    def test_tokens_that_want_too_much_are_refused(self, limit: str, tokens: Path) -> None:
        if limit == "time":
            with pytest.raises(TokenFileError, match=r"clip\.inlay could not be read within 0 s"):
                check_token_file(tokens, Limits(), seconds=0)
        else:
            tokens.write_bytes(MUCH)
            with pytest.raises(TokenFileError, match="more than 60 MB"):
                check_token_file(tokens, Limits(max_side=10_000, side=8_000), memory_mb=60)

    def test_damage_is_told_without_the_folder(self, tokens: Path) -> None:
        tokens.write_bytes(tokens.read_bytes()[:-300])
        with pytest.raises(TokenFileError, match=r"^clip\.inlay: .*promises"):
            check_token_file(tokens, Limits())

    def test_a_video_is_the_same_through_a_child(self, tokens: Path) -> None:
        path = tokens.with_suffix(".mp4")
        want, got = read_video(path), read_clip(path, Limits()).video
        assert torch.equal(got.frames, want.frames) and got.fps == want.fps and got.seconds is want.seconds is None

    def test_times_come_through_too(self, tmp_path: Path) -> None:
        stamps = [0, 40, 77, 167, 200, 261, 301, 338, 428, 461, 522, 562, 599, 689, 722, 783, 823, 860, 950, 983]
        frames = moving_square(20, 32, 32).frames.numpy()
        make(tmp_path / "uneven.mp4", frames, fps=Fraction(25), stamps=stamps, clock=Fraction(1, 1000))
        want, got = read_video(tmp_path / "uneven.mp4"), read_clip(tmp_path / "uneven.mp4", Limits()).video
        assert want.seconds is not None and got.seconds is not None and torch.equal(got.seconds, want.seconds)

    @LINUX
    def test_a_video_that_wants_much_memory_is_refused(self, tmp_path: Path) -> None:
        path = moving_square(2, 1900, 1900).save(tmp_path / "large.mkv", lossless=True)
        with pytest.raises(VideoError, match=r"large\.mkv"):
            read_clip(path, Limits(), memory_mb=24)
        assert len(read_clip(path, Limits()).video) == 2

    def test_a_child_is_there_in_a_moment(self, tokens: Path) -> None:
        """The libraries, which take seconds to load, are loaded already."""
        spent = []
        for _ in range(4):
            start = time.monotonic()
            read_clip(tokens.with_suffix(".mp4"), Limits())
            spent.append(time.monotonic() - start)
        assert min(spent) < 1, spent

    def test_reading_has_an_end(self, tokens: Path) -> None:
        with pytest.raises(VideoError, match="could not be read within"):
            read_clip(tokens.with_suffix(".mp4"), Limits(max_work=1e-9))


# --- the child --------------------------------------------------------------------------------------------------------


def asked(
    work: Callable[..., Iterator[bytes]], *args: object, seconds: float = 30, most_bytes: int = 100
) -> list[bytes]:
    limits = {"memory_mb": 64, "seconds": seconds, "most_bytes": most_bytes}
    return list(child.stream(work, *args, name="x.mp4", refuse=VideoError, **limits))  # type: ignore[arg-type]


def two(value: str) -> Iterator[bytes]:
    yield value.encode()
    yield b""


def abort() -> Iterator[bytes]:
    yield b"one"
    os.abort()


def refuse() -> Iterator[bytes]:
    yield b"one"
    raise TokenFileError("the reason")


def take() -> Iterator[bytes]:
    yield bytes(200 << 20)[:1]


def wait() -> Iterator[bytes]:
    yield str(os.getpid()).encode()
    time.sleep(600)


def flood() -> Iterator[bytes]:
    yield bytes(101)


def test_a_child_sends_bytes() -> None:
    assert asked(two, "a") == [b"a", b""]


@pytest.mark.parametrize(
    ("work", "kind", "words"),
    [
        (abort, VideoError, "ended with code -6"),
        (refuse, TokenFileError, "the reason"),
        pytest.param(take, VideoError, "more than 64 MB", marks=LINUX),
        (flood, VideoError, "cannot be read"),
    ],
    ids=["crash", "error", "memory", "flood"],
)
def test_what_goes_wrong_in_a_child_is_told(
    work: Callable[[], Iterator[bytes]], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        asked(work)


@pytest.mark.parametrize("how", ["late", "left"])
@LINUX
def test_a_child_that_is_no_longer_wanted_ends(how: str) -> None:
    limits = {"memory_mb": 64, "seconds": 20.0 if how == "left" else 3.0, "most_bytes": 100}
    messages = child.stream(wait, name="x.mp4", refuse=VideoError, **limits)  # type: ignore[arg-type]
    pid = next(messages).decode()
    assert Path("/proc", pid).exists()
    if how == "late":
        with pytest.raises(VideoError, match="within 3 s"):
            next(messages)
    else:
        messages.close()  # type: ignore[attr-defined]
    assert not Path("/proc", pid).exists()
