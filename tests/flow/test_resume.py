# SPDX-License-Identifier: Apache-2.0
"""An interrupted encode goes on with the same video and settings only, and ends in the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inlay.cli.main import main
from inlay.codec import EncodeConfig, Parts, VideoEncoder, encode_file
from inlay.codec.trail import trail_of
from inlay.container import part_of, unfinished
from inlay.errors import UsageError
from inlay.masking import Budget
from inlay.tokenizer import Tokenizer
from inlay.video import write_video
from inlay.video.frames import Video
from tests.conftest import moving_square

FRAMES = 150
CONFIG = EncodeConfig(chunk_frames=9, key_seconds=1.0)
BUDGETS = [
    Budget(tau=0.3),
    Budget(keep=0.4, bucket_seconds=1.0),
    Budget(bits=2.0, bucket_seconds=1.0),
    Budget(keep=0.4),
    Budget(tokens=300),
]
Killed = Callable[[Path, Video, Budget], None]


@pytest.fixture(scope="module")
def video() -> Video:
    return moving_square(FRAMES, 32, 32)


@pytest.fixture
def killed(tiny_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Killed:
    """An encode that ends half way, as a failing machine would end it."""

    def run(path: Path, video: Video, budget: Budget) -> None:
        seen = 0

        def fail(self: Parts, tokens: object) -> None:
            nonlocal seen
            seen += 1
            if seen > 12:
                raise RuntimeError("the power went")

        with monkeypatch.context() as patch:
            patch.setattr(Parts, "saw_tokens", fail)
            with pytest.raises(RuntimeError):
                encode_file(VideoEncoder(tiny_tokenizer, CONFIG, budget=budget), in_pieces(video), path)
        assert part_of(path).exists() and not path.exists()

    return run


def in_pieces(video: Video, size: int = 20) -> Iterator[Video]:
    for first in range(0, len(video), size):
        yield video[first : first + size]


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda b: b.kind + " bucket" * (b.bucket_seconds is not None))
def test_the_same_video_gives_the_same_bytes(
    tiny_tokenizer: Tokenizer, video: Video, killed: Killed, tmp_path: Path, budget: Budget
) -> None:
    def encode(name: str, **more: bool) -> bytes:
        encode_file(VideoEncoder(tiny_tokenizer, CONFIG, budget=budget), in_pieces(video, 7), tmp_path / name, **more)
        return (tmp_path / name).read_bytes()

    whole = encode("whole.inlay")
    killed(tmp_path / "x.inlay", video, budget)
    left = unfinished(tmp_path / "x.inlay")
    assert left is not None and left.frames > 20
    assert encode("x.inlay", resume=True) == whole
    assert sorted(p.name for p in tmp_path.iterdir()) == ["whole.inlay", "x.inlay"]


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda b: b.kind + " bucket" * (b.bucket_seconds is not None))
def test_another_video_of_the_same_size_is_refused(
    tiny_tokenizer: Tokenizer, video: Video, killed: Killed, tmp_path: Path, budget: Budget
) -> None:
    out = tmp_path / "x.inlay"
    killed(out, video, budget)
    before = part_of(out).read_bytes(), trail_of(out).read_bytes()
    late = video.frames.clone()
    late[3, 8:16] = 255 - late[3, 8:16]  # the others may be the same
    for other in (moving_square(FRAMES, 32, 32, seed=1), Video(frames=late, fps=video.fps)):
        with pytest.raises(UsageError, match="begun with another video: the first"):
            encode_file(VideoEncoder(tiny_tokenizer, CONFIG, budget=budget), in_pieces(other), out, resume=True)
        assert not out.exists()
        assert (part_of(out).read_bytes(), trail_of(out).read_bytes()) == before, "nothing is lost"


def test_a_part_of_which_nothing_can_stay_is_another_videos_all_the_same(
    tiny_tokenizer: Tokenizer, video: Video, killed: Killed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a second key chunk an encode begins at the first frame again."""
    monkeypatch.setitem(globals(), "CONFIG", EncodeConfig(chunk_frames=9, key_seconds=0, cuts=False))
    out, budget = tmp_path / "x.inlay", Budget(tau=0.3)
    killed(out, video, budget)
    assert unfinished(out) is None or not unfinished(out).frames  # type: ignore[union-attr]
    before = part_of(out).read_bytes(), trail_of(out).read_bytes()
    for other, tau, why in (
        (moving_square(FRAMES, 32, 32, seed=1), 0.3, "another video"),
        (video, 0.4, "other settings"),
    ):
        with pytest.raises(UsageError, match=why):
            encoder = VideoEncoder(tiny_tokenizer, CONFIG, budget=Budget(tau=tau))
            encode_file(encoder, in_pieces(other), out, resume=True)
        assert (part_of(out).read_bytes(), trail_of(out).read_bytes()) == before, "nothing is lost"
    trail_of(out).write_bytes(before[1].splitlines(keepends=True)[0])  # killed before its first chunk was noted
    encode_file(VideoEncoder(tiny_tokenizer, CONFIG, budget=budget), in_pieces(video, 7), out, resume=True)
    encode_file(VideoEncoder(tiny_tokenizer, CONFIG, budget=budget), in_pieces(video), tmp_path / "whole.inlay")
    assert out.read_bytes() == (tmp_path / "whole.inlay").read_bytes()


@pytest.mark.parametrize(
    ("begun", "other"),
    [
        (Budget(keep=0.4, bucket_seconds=1.0), Budget(keep=0.5, bucket_seconds=1.0)),
        (Budget(keep=0.4, bucket_seconds=1.0), Budget(keep=0.4, bucket_seconds=2.0)),
        (Budget(tau=0.3), Budget(tau=0.31)),
        (Budget(tau=0.0), Budget()),
    ],
    ids=str,
)
def test_other_settings_are_refused(
    tiny_tokenizer: Tokenizer, video: Video, killed: Killed, tmp_path: Path, begun: Budget, other: Budget
) -> None:
    out = tmp_path / "x.inlay"
    killed(out, video, begun)
    with pytest.raises(UsageError, match=r"other settings: budget was [\w ,.]+ and is [\w ,.']+;"):
        encode_file(VideoEncoder(tiny_tokenizer, CONFIG, budget=other), in_pieces(video), out, resume=True)


@pytest.mark.parametrize("note", [None, b"", b"[]\n", b"{}\n", b"\xff\xfe", b"[" * 200_000, b"{}\nx y\n9 zz\n"])
def test_a_part_without_its_record_is_refused(
    tiny_tokenizer: Tokenizer, video: Video, killed: Killed, tmp_path: Path, note: bytes | None
) -> None:
    out = tmp_path / "x.inlay"
    killed(out, video, BUDGETS[0])
    trail_of(out).unlink()
    if note is not None:
        trail_of(out).write_bytes(note)
    with pytest.raises(UsageError, match="no record of the video"):
        encode_file(VideoEncoder(tiny_tokenizer, CONFIG, budget=BUDGETS[0]), in_pieces(video), out, resume=True)
    encode_file(VideoEncoder(tiny_tokenizer, CONFIG, budget=BUDGETS[0]), in_pieces(video), out, force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["x.inlay"]


def test_the_command_refuses_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clips = [write_video(moving_square(80, 32, 32, seed=seed), tmp_path / f"{seed}.mp4") for seed in (0, 1)]
    words = ["--tau", "0.1", "--chunk", "9", "--key-every", "1", "--backbone", "mini-untrained", "--device", "cpu"]
    seen: list[object] = []

    def fail(self: Parts, tokens: object) -> None:
        seen.append(tokens)
        if len(seen) == 7:
            raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(Parts, "saw_tokens", fail)
        assert main(["encode", str(clips[0]), str(tmp_path / "x.inlay"), *words]) == 1
    capsys.readouterr()
    assert main(["encode", str(clips[1]), str(tmp_path / "x.inlay"), *words, "--resume"]) == 2
    err = capsys.readouterr().err
    assert "another video" in err and "(--resume, --force)" in err and err.count("\n") == 1
    assert main(["encode", str(clips[0]), str(tmp_path / "x.inlay"), *words, "--resume", "--quiet"]) == 0
