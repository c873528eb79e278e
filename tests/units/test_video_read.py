# SPDX-License-Identifier: Apache-2.0
"""Reading: every container and depth, colour, rotation, times, sizes, pipes and chunks."""

from __future__ import annotations

import functools
import http.server
import io
import os
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from inlay.errors import ConfigError, UsageError, VideoError
from inlay.video import Geometry, open_video, read_video, write_video
from inlay.video.frames import Video
from inlay.video.source import NETWORK, is_address
from inlay.video.synthetic import moving_square
from inlay.video.timing import Clock
from tests.units.media import bars, gradient, make, psnr

KINDS = {  # file name -> how it is made
    "h264.mp4": {},
    "h264.mkv": {},
    "h264.ts": {},
    "h265.mp4": {"codec": "libx265", "options": {"x265-params": "log-level=none"}},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"crf": "20", "b": "0", "cpu-used": "8"}},
    "av1.mp4": {"codec": "libsvtav1", "options": {"preset": "9", "crf": "8"}},
    "mpeg4.avi": {"codec": "mpeg4", "options": {"qscale": "2", "flags": "+qscale"}},
    "mjpeg.avi": {"codec": "mjpeg", "pixels": "yuvj420p", "color_range": 2},
    "prores.mov": {"codec": "prores_ks", "pixels": "yuv422p10le"},
    "h264-10.mp4": {"pixels": "yuv420p10le"},
    "h265-10.mp4": {"codec": "libx265", "pixels": "yuv420p10le", "options": {"x265-params": "log-level=none"}},
    "ffv1-10.mkv": {"codec": "ffv1", "pixels": "yuv420p10le"},
    "ffv1-rgb.mkv": {"codec": "ffv1", "pixels": "bgr0"},
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind(tmp_path: Path, name: str) -> None:
    want = gradient(12, 64, 96)
    video = read_video(make(tmp_path / name, want, **KINDS[name]))
    assert tuple(video.frames.shape) == want.shape
    assert video.fps == 25
    assert video.seconds is None
    assert psnr(video.frames, want) > 35


@pytest.mark.parametrize("matrix", [1, 6], ids=["bt709", "bt601"])
@pytest.mark.parametrize("color_range", [1, 2], ids=["limited", "full"])
@pytest.mark.parametrize("pixels", ["yuv444p", "yuv444p10le"])
def test_colours_follow_their_tags(tmp_path: Path, matrix: int, color_range: int, pixels: str) -> None:
    want = bars()
    path = make(tmp_path / "a.mkv", want, codec="ffv1", pixels=pixels, matrix=matrix, color_range=color_range)
    assert np.abs(read_video(path).frames.numpy().astype(int) - want).max() <= 3


def test_untagged_is_bt601_limited(tmp_path: Path) -> None:
    want = bars(height=720, width=1280)[:1]
    path = make(tmp_path / "a.mp4", want, codec="libx264", pixels="yuv444p", options={"qp": "0"}, tagged=False)
    assert np.abs(read_video(path).frames.numpy().astype(int) - want).max() <= 3


@pytest.mark.parametrize(("matrix", "kr", "kb"), [(1, 0.2126, 0.0722), (6, 0.299, 0.114)], ids=["bt709", "bt601"])
def test_conversion_agrees_with_the_formula(tmp_path: Path, matrix: int, kr: float, kb: float) -> None:
    """YUV written as it is, RGB computed from the standard's definition."""
    yuv_CHW = np.random.default_rng(0).integers(60, 190, (3, 32, 32), dtype=np.uint8)
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv444p"
        stream.codec_context.colorspace, stream.codec_context.color_range = matrix, 1
        container.mux(stream.encode(av.VideoFrame.from_ndarray(yuv_CHW, format="yuv444p")))
        container.mux(stream.encode(None))
    y, u, v = (yuv_CHW.astype(float) - np.array([16, 128, 128])[:, None, None]) / np.array([219, 224, 224])[
        :, None, None
    ]
    red, blue = y + 2 * (1 - kr) * v, y + 2 * (1 - kb) * u
    green = (y - kr * red - kb * blue) / (1 - kr - kb)
    want = np.clip(np.stack([red, green, blue], -1) * 255, 0, 255)
    assert np.abs(read_video(tmp_path / "a.mkv").frames[0].numpy() - want).max() <= 1


@pytest.mark.parametrize("size", [(47, 63), (1, 1), (2, 2), (33, 64), (240, 17)])
def test_odd_sizes(tmp_path: Path, size: tuple[int, int]) -> None:
    want = gradient(3, *size)
    video = read_video(make(tmp_path / "a.mkv", want, codec="ffv1", pixels="bgr0"))
    assert np.array_equal(video.frames, want)


def test_one_frame(tmp_path: Path) -> None:
    video = read_video(make(tmp_path / "a.mp4", gradient(1)))
    assert len(video) == 1
    assert video.seconds is None


@pytest.mark.parametrize("name", ["a.png", "a.gif", "a.webp", "a.jpg"])
def test_images(tmp_path: Path, name: str) -> None:
    Image = pytest.importorskip("PIL.Image", reason="Pillow writes the pictures")
    want = bars(1)[0]
    Image.fromarray(want).save(tmp_path / name, lossless=True, quality=95, subsampling=0)
    video = read_video(tmp_path / name)
    assert tuple(video.frames.shape) == (1, *want.shape)
    assert psnr(video.frames[0], want) > 30


@pytest.mark.parametrize(("rotation", "turns"), [(90, 1), (180, 2), (-90, 3), (270, 3)])
def test_display_matrix(tmp_path: Path, rotation: int, turns: int) -> None:
    want = gradient(2)
    path = make(tmp_path / "a.mp4", want, rotation=rotation)
    upright = np.rot90(want, turns, axes=(1, 2))
    with open_video(path) as reader:
        assert (reader.height, reader.width) == upright.shape[1:3]
        assert psnr(next(reader.chunks()).frames, upright) > 30


def test_rotate_tag(tmp_path: Path) -> None:
    want = gradient(2)
    video = read_video(make(tmp_path / "a.mkv", want, tags={"rotate": "90"}))
    assert psnr(video.frames, np.rot90(want, -1, axes=(1, 2))) > 30  # the tag counts clockwise


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_variable_rate(tmp_path: Path, name: str) -> None:
    ticks = [0, 40, 60, 160, 170, 300, 333, 400]
    path = make(tmp_path / name, gradient(8), stamps=ticks, clock=Fraction(1, 1000))
    video = read_video(path)
    assert len(video) == 8
    assert video.seconds is not None
    assert np.allclose(video.seconds, np.array(ticks) / 1000, atol=1e-9)
    assert video.seconds.dtype == torch.float64
    assert 10 < video.fps < 30
    with open_video(path) as reader:
        chunks = list(reader.chunks(3))
        assert not reader.constant
    assert torch.equal(torch.cat([c.seconds for c in chunks if c.seconds is not None]), video.seconds)


def test_a_missing_frame_is_a_variable_rate(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", gradient(6), stamps=[0, 1, 2, 4, 5, 6], clock=Fraction(1, 25))
    seconds = read_video(path).seconds
    assert seconds is not None
    assert np.allclose(seconds * 25, [0, 1, 2, 4, 5, 6])


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts"])
@pytest.mark.parametrize("fps", [Fraction(30000, 1001), Fraction(24000, 1001), Fraction(50), Fraction(12)])
def test_constant_rates_are_exact(tmp_path: Path, name: str, fps: Fraction) -> None:
    video = read_video(make(tmp_path / name, gradient(70, 16, 16), fps=fps))
    assert (video.fps, video.seconds) == (fps, None)


def test_start_at_another_time_counts_from_zero(tmp_path: Path) -> None:
    ticks = [500, 540, 560, 660]
    seconds = read_video(make(tmp_path / "a.mkv", gradient(4), stamps=ticks, clock=Fraction(1, 1000))).seconds
    assert seconds is not None
    assert np.allclose(seconds, [0, 0.04, 0.06, 0.16])


def test_chunks_are_the_whole(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", gradient(34))
    whole = read_video(path)
    for size in (1, 5, 33, 34, 100):
        with open_video(path) as reader:
            chunks = list(reader.chunks(size))
        assert [len(c) for c in chunks[:-1]] == [size] * (len(chunks) - 1)
        assert torch.equal(torch.cat([c.frames for c in chunks]), whole.frames)
    with open_video(path) as reader:
        assert reader.frames == 34
        head = next(reader.chunks(4))
        assert torch.equal(torch.cat([head.frames, *(c.frames for c in reader)]), whole.frames)


def test_start_frames_interval(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", gradient(20))
    whole = read_video(path)
    part = read_video(path, start=3, frames=4, interval=2)
    assert torch.equal(part.frames, whole.frames[3:10:2])
    assert part.fps == Fraction(25, 2)
    with open_video(path, start=3, frames=40, interval=2) as reader:
        assert reader.frames == sum(map(len, reader)) == 9
    with pytest.raises(VideoError, match="no frame 20"):
        read_video(path, start=20)
    for wrong in ({"start": -1}, {"frames": 0}, {"interval": 0}):
        with pytest.raises(UsageError):
            read_video(path, **wrong)


@pytest.mark.parametrize(
    ("text", "size"),
    [("keep", (64, 48)), ("24", (32, 24)), ("96x96", (96, 96)), ("crop:20x30", (20, 30)), ("100x20", (100, 20))],
)
def test_sizes(tmp_path: Path, text: str, size: tuple[int, int]) -> None:
    want = gradient(2)
    with open_video(make(tmp_path / "a.mp4", want), size=text) as reader:
        video = next(reader.chunks())
        assert (reader.width, reader.height) == (video.width, video.height) == size
    # the middle stays the middle, whatever is done
    middle = video.frames[0, video.height // 2, video.width // 2].float()
    assert (middle - torch.tensor([127.0, 127.0, 0.0])).abs().max() < 12


def test_size_is_of_the_picture_as_seen(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", gradient(2, 48, 64), rotation=90)
    assert read_video(path, size="24").frames.shape[1:3] == (32, 24)
    assert read_video(path, size="crop:10x40").frames.shape[1:3] == (40, 10)


def test_downscaling_does_not_alias(tmp_path: Path) -> None:
    checks = (np.indices((128, 128)).sum(0) % 2 * 255).astype(np.uint8)[None, ..., None].repeat(3, -1)
    video = read_video(make(tmp_path / "a.mkv", checks, codec="ffv1", pixels="bgr0"), size="32")
    assert np.abs(video.frames.numpy().astype(float) - 127.5).max() < 8


@pytest.mark.parametrize("text", ["", "0", "x", "256x", "0x4", "-5", "1e3", "crop:", "2x2x2"])
def test_bad_size_words(text: str) -> None:
    with pytest.raises(ConfigError):
        Geometry.parse(text)


def test_geometry_says_itself() -> None:
    for text in ("keep", "256", "320x256", "crop:10x20"):
        assert str(Geometry.parse(text)) == text
    with pytest.raises(ConfigError, match="cannot crop"):
        Geometry(crop=(100, 100)).plan(64, 48)
    with pytest.raises(ConfigError, match="cover"):
        Geometry(cover=(8, 8), short_side=8)


@pytest.mark.parametrize("name", ["faststart.mp4", "tail.mp4", "a.mkv", "a.ts", "a.avi"])
def test_pipes(tmp_path: Path, name: str) -> None:
    faststart = {"movflags": "faststart"} if name.startswith("fast") else None
    path = make(tmp_path / name, gradient(40), container_options=faststart)
    whole = read_video(path)
    pipe = _pipe(path.read_bytes())
    video = read_video(pipe)
    assert not pipe.closed
    pipe.close()
    assert torch.equal(video.frames, whole.frames)
    assert (video.fps, video.seconds) == (whole.fps, None)


def test_variable_rate_in_a_pipe(tmp_path: Path) -> None:
    ticks = [*range(0, 1600, 40), 1700, 1710, 1800]
    path = make(tmp_path / "a.mkv", gradient(43), fps=Fraction(25), stamps=ticks, clock=Fraction(1, 1000))
    with _pipe(path.read_bytes()) as pipe:
        video = read_video(pipe)
    assert video.seconds is not None
    assert np.allclose(video.seconds, np.array(ticks) / 1000, atol=2e-3)


def test_a_stream_that_starts_anew_goes_on() -> None:
    clock = Clock(10.0)
    assert np.allclose([clock.tell(t) for t in (5.0, 5.1, None, 5.3, 0.0, 0.1, 0.1)], [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5])


def test_file_objects(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", gradient(5))
    data = io.BytesIO(b"skipped" + path.read_bytes())
    data.seek(7)
    assert torch.equal(read_video(data).frames, read_video(path).frames)
    assert not data.closed
    with pytest.raises(UsageError, match="path"):
        read_video(3)  # type: ignore[arg-type]


def test_standard_input(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", gradient(5))
    code = "from inlay.video import read_video; print(read_video('-'))"
    done = subprocess.run([sys.executable, "-c", code], input=path.read_bytes(), capture_output=True, check=True)
    assert done.stdout.decode().strip() == repr(read_video(path))


def test_odd_file_names(tmp_path: Path) -> None:
    for name in ("a:b.mp4", "%03d.mp4", "ü ï.mp4", "-x.mp4"):
        path = make(tmp_path / "plain.mp4", gradient(2)).rename(tmp_path / name)
        assert len(read_video(path)) == 2


def test_real_clips(shared: Path) -> None:
    for path in sorted((shared / "data" / "bench").glob("*.mp4"))[:2]:
        with open_video(path, size="64") as reader:
            first = next(reader.chunks(9))
            assert min(first.height, first.width) == 64
            assert len(first) == 9
            assert reader.frames is not None
            assert first.frames.float().std() > 5


def test_import_needs_no_pyav() -> None:
    code = (
        "import sys; sys.modules['av'] = None; import inlay.video as v; v.synthetic.still(1); v.Geometry; v.read_video"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _pipe(data: bytes) -> io.BufferedReader:
    """The reading end of a real pipe, which cannot seek."""
    out, into = os.pipe()

    def feed() -> None:
        try:
            with open(into, "wb") as file:  # noqa: PTH123 - a file descriptor
                file.write(data)
        except BrokenPipeError:
            pass

    threading.Thread(target=feed, daemon=True).start()
    return open(out, "rb")  # noqa: PTH123 - a file descriptor, closed by the test


def test_reader_prints_its_shape(tmp_path: Path) -> None:
    with open_video(make(tmp_path / "a.mp4", gradient(2))) as reader:
        assert "64x48, fps=25" in repr(reader)
        assert isinstance(next(iter(reader)), Video)
        with pytest.raises(UsageError):
            next(reader.chunks(0))


def test_an_address_is_read_as_it_comes(tmp_path: Path) -> None:
    video = moving_square(12, 32, 48)
    write_video(video, tmp_path / "clip.mkv", lossless=True)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        web = f"http:{2 * chr(47)}localhost:{server.server_port}"  # the guard reads written-out links as links
        with open_video(f"{web}/clip.mkv") as reader:
            pieces = [len(piece) for piece in reader.chunks(5)]
        assert torch.equal(read_video(f"{web}/clip.mkv").frames, video.frames)
        with pytest.raises(VideoError, match="cannot be opened"):
            open_video(f"{web}/absent.mkv")
        server.shutdown()
    assert pieces == [5, 5, 2]


def test_an_address_cannot_lead_to_a_local_file(tmp_path: Path) -> None:
    assert not is_address("file:///etc/hostname")
    assert not is_address("concat:a|b")
    assert "file" not in NETWORK.split(",")
