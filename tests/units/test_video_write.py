# SPDX-License-Identifier: Apache-2.0
"""Writing: lossless to the bit, colours and times kept, odd sizes, chunks, pipes; whole or not at all."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from inlay.errors import ConfigError, OutputError, ShapeError, UsageError, VideoError
from inlay.video import VideoWriter, check_target, open_video, read_video, synthetic, write_video
from inlay.video.frames import Video
from tests.units.media import bars, gradient, psnr

SUFFIXES = [".mp4", ".m4v", ".mov", ".mkv"]
RATES = [Fraction(25), Fraction(30000, 1001), Fraction(24000, 1001), Fraction(60), Fraction(283, 12), Fraction(1, 2)]


def clip(frames: int = 12, height: int = 48, width: int = 64, **options: object) -> Video:
    return Video(frames=torch.from_numpy(gradient(frames, height, width)), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [16, 48, 63, 144])
def test_one_video_is_one_file_every_time(tmp_path: Path, width: int) -> None:
    video = synthetic.demo_clip(45, 64, width)
    made = {video.save(tmp_path / "a.mp4", force=True).read_bytes() for _ in range(6)}
    assert len(made) == 1


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("size", [(48, 64), (47, 63), (47, 64), (1, 1), (3, 2)])
def test_lossless_is_lossless(tmp_path: Path, suffix: str, size: tuple[int, int]) -> None:
    noise = torch.randint(0, 256, (5, *size, 3), dtype=torch.uint8)
    path = Video(frames=noise).save(tmp_path / f"a{suffix}", lossless=True)
    assert torch.equal(read_video(path).frames, noise)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("size", [(48, 64), (47, 63), (48, 63), (721, 35)])
def test_lossy_keeps_size_and_look(tmp_path: Path, suffix: str, size: tuple[int, int]) -> None:
    video = clip(4, *size)
    again = read_video(write_video(video, tmp_path / f"a{suffix}"))
    assert again.frames.shape == video.frames.shape
    assert psnr(again.frames, video.frames) > 38


@pytest.mark.parametrize("height", [64, 720], ids=["sd", "hd"])
def test_saturated_colours_survive(tmp_path: Path, height: int) -> None:
    want = bars(2, height, 128)
    path = write_video(Video(frames=torch.from_numpy(want)), tmp_path / "a.mp4", crf=4)
    got = read_video(path).frames.numpy().astype(int)
    middles = np.arange(8) * 16 + 8  # away from the edges, which 4:2:0 blurs
    assert np.abs(got - want)[:, :, middles].max() <= 6
    with av.open(str(path)) as container:  # a plain reader that follows the tags sees the same
        frame = next(container.decode(video=0))
        assert (frame.colorspace, frame.color_range) == (1 if height == 720 else 6, 1)
        assert np.abs(frame.to_ndarray(format="rgb24").astype(int) - want[0])[:, middles].max() <= 6


@pytest.mark.parametrize("fps", RATES, ids=str)
@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
@pytest.mark.parametrize("lossless", [False, True])
def test_rate_and_duration(tmp_path: Path, fps: Fraction, suffix: str, lossless: bool) -> None:
    path = write_video(clip(40, 16, 16, fps=fps), tmp_path / f"a{suffix}", lossless=lossless)
    again = read_video(path)
    assert (again.fps, again.seconds, len(again)) == (fps, None, 40)
    with av.open(str(path)) as container:
        assert container.duration is not None
        assert abs(container.duration / 1e6 - 40 / float(fps)) < 2e-3
        assert container.streams.video[0].average_rate == fps


def test_a_long_constant_video_stays_constant(tmp_path: Path) -> None:
    video = Video(frames=torch.zeros(3000, 8, 8, 3, dtype=torch.uint8), fps=Fraction(30000, 1001))
    for suffix in (".mp4", ".mkv"):
        again = read_video(write_video(video, tmp_path / f"a{suffix}"))
        assert (again.fps, again.seconds, len(again)) == (video.fps, None, 3000)


@pytest.mark.parametrize(("suffix", "slack"), [(".mp4", 1e-5), (".mkv", 1e-3)])
def test_variable_times_survive(tmp_path: Path, suffix: str, slack: float) -> None:
    seconds = torch.tensor([0, 0.04, 0.06, 0.16, 0.17, 0.30, 0.3333, 0.40], dtype=torch.float64)
    again = read_video(write_video(clip(8, fps=Fraction(20), seconds=seconds), tmp_path / f"a{suffix}"))
    assert again.seconds is not None
    assert (again.seconds - seconds).abs().max() <= slack


def test_times_that_stand_still_are_moved_on(tmp_path: Path) -> None:
    seconds = torch.tensor([0, 0, 0.1, 0.05], dtype=torch.float64)
    assert len(read_video(write_video(clip(4, seconds=seconds), tmp_path / "a.mp4"))) == 4


def test_another_rate_replaces_the_times(tmp_path: Path) -> None:
    seconds = torch.tensor([0, 0.3, 0.4], dtype=torch.float64)
    again = read_video(write_video(clip(3, seconds=seconds), tmp_path / "a.mp4", fps=Fraction(10)))
    assert (again.fps, again.seconds) == (10, None)


def test_chunks_are_the_whole(tmp_path: Path) -> None:
    video = clip(34)
    for size in (1, 7, 33):
        path = write_video((video[i : i + size] for i in range(0, 34, size)), tmp_path / f"{size}.mp4", lossless=True)
        again = read_video(path)
        assert torch.equal(again.frames, video.frames)
        assert again.seconds is None
    with open_video(path) as reader:  # from file to file, chunk by chunk
        copy = write_video(reader, tmp_path / "copy.mkv", lossless=True)
    assert torch.equal(read_video(copy).frames, video.frames)


def test_chunks_that_begin_constant_and_then_vary(tmp_path: Path) -> None:
    late = torch.tensor([0.5, 0.9], dtype=torch.float64)
    chunks = [clip(4, fps=Fraction(10)), clip(2, fps=Fraction(10), seconds=late)]
    seconds = read_video(write_video(chunks, tmp_path / "a.mp4")).seconds
    assert seconds is not None
    assert np.allclose(seconds, [0, 0.1, 0.2, 0.3, 0.5, 0.9], atol=1e-5)


def test_quality_is_a_dial(tmp_path: Path) -> None:
    video = synthetic.moving_square(8, 64, 64)
    sizes = [write_video(video, tmp_path / f"{crf}.mp4", crf=crf).stat().st_size for crf in (5, 20, 40)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3
    for crf in (-1, 52, float("nan"), "16"):
        with pytest.raises(ConfigError, match=r"crf is a quality from 0 \(best\) to 51; got"):
            write_video(video, tmp_path / "x.mp4", crf=crf)  # type: ignore[arg-type]
    for fps in ("x", 0, -1, float("nan")):
        with pytest.raises(ConfigError, match=f"the frame rate must be positive; got {fps!r}"):
            write_video(video, tmp_path / "x.mp4", fps=fps)  # type: ignore[arg-type]
    for wrong in (video.frames, [video.frames], 3, None, [video, video.frames]):
        with pytest.raises(UsageError, match=r"what is written is a Video, or its chunks one by one; got \w+$"):
            write_video(wrong, tmp_path / "x.mp4")  # type: ignore[arg-type]
    assert not (tmp_path / "x.mp4").exists()


def test_refusals_come_before_any_work(tmp_path: Path) -> None:
    taken = write_video(clip(1), tmp_path / "taken.mp4")
    before = taken.read_bytes()

    def untouched() -> Iterator[Video]:
        raise AssertionError("a chunk was asked for")
        yield

    for path, words in [
        (taken, "overwrite it"),
        (tmp_path / "a.xyz", ".mp4"),
        (tmp_path / "a", ".mp4"),
        (tmp_path / "none" / "a.mp4", "does not exist"),
    ]:
        with pytest.raises((UsageError, OutputError), match=words):
            write_video(untouched(), path)
    (tmp_path / "d.mp4").mkdir()
    with pytest.raises(OutputError, match="folder"):
        check_target(tmp_path / "d.mp4", force=True)
    with pytest.raises(UsageError, match="no chunks"):
        write_video([], tmp_path / "a.mp4")
    with pytest.raises(UsageError, match="written to a path; got Video"):
        write_video(tmp_path / "a.mp4", clip(1))  # type: ignore[arg-type]
    assert taken.read_bytes() == before
    assert len(read_video(write_video(clip(3), taken, force=True))) == 3


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    def failing() -> Iterator[Video]:
        yield clip(4)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_video(failing(), tmp_path / "a.mp4")
    with pytest.raises(ShapeError, match="64x48"):
        write_video([clip(1), clip(1, 16, 16)], tmp_path / "a.mp4")
    with pytest.raises(VideoError, match="no frame"), VideoWriter(tmp_path / "a.mp4", Fraction(5), 16, 16):
        pass
    with pytest.raises(VideoError, match="cannot be written"):
        VideoWriter(tmp_path / "a.mp4", Fraction(5), 100_000, 16).write(clip(1, 16, 100_000))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_overwrite_keeps_the_old_file(tmp_path: Path) -> None:
    path = write_video(clip(2), tmp_path / "a.mp4")
    before = path.read_bytes()
    with pytest.raises(ShapeError):
        write_video([clip(1), clip(1, 16, 16)], path, force=True)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_are_the_usual_ones(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    path = write_video(clip(1), tmp_path / "a.mp4")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.skipif(os.name != "posix" or not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("lossless", [False, True])
def test_standard_output(tmp_path: Path, lossless: bool) -> None:
    code = (
        "import sys; from inlay.video import synthetic, write_video; from fractions import Fraction;"
        f"write_video(synthetic.moving_square(40, 64, 64), '-', lossless={lossless}, fps=Fraction(30000, 1001))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stderr == b""
    again = read_video(io.BytesIO(done.stdout))
    want = synthetic.moving_square(40, 64, 64)
    assert torch.equal(again.frames, want.frames) if lossless else psnr(again.frames, want.frames) > 30
    assert (again.fps, again.seconds) == (Fraction(30000, 1001), None)
    if not lossless:
        with Path("/dev/full").open("wb") as full:
            failed = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, check=False)
        assert b"OutputError: standard output: cannot be" in failed.stderr
