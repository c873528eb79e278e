# SPDX-License-Identifier: Apache-2.0
"""Write an H.264 file or pipe: whole or not at all, every frame at its time."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from inlay.errors import ConfigError, OutputError, ShapeError, UsageError, VideoError, check_kind, check_number
from inlay.files import part_beside
from inlay.types import as_fraction
from inlay.video.frames import Video
from inlay.video.pixels import careful_bicubic
from inlay.video.source import pyav, reason
from inlay.video.target import CONTAINERS, STDOUT, check_target

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

WRITTEN = "what is written is a Video, or its chunks one by one"
DEFAULT_CRF = 16  # visually transparent: what the eye sees is the tokens' loss, not the codec's
_FINEST_TICK = 90_000  # ticks a second at least, so that variable times are kept to 11 microseconds
_HD_LINES = 720  # from here on players expect BT.709, below it BT.601
_LIMITED, _FULL = 1, 2
_FRAGMENTS = "frag_keyframe+empty_moov+default_base_moof"  # an mp4 that can be written to a pipe


@dataclass(frozen=True, kw_only=True)
class Coding:
    """A codec, the pixels it is given and the tags that tell a player how to show them."""

    codec: str
    pixels: str
    matrix: int  # numbers of ITU-T H.273
    range: int
    options: dict[str, str]


def coding(width: int, height: int, *, lossless: bool, crf: float) -> Coding:
    """How frames of this size are stored."""
    if lossless:
        # RGB itself is coded: any detour through YUV rounds
        return Coding(codec="libx264rgb", pixels="rgb24", matrix=0, range=_FULL, options={"qp": "0", "preset": "fast"})
    even = width % 2 == 0 and height % 2 == 0
    return Coding(
        codec="libx264",
        pixels="yuv420p" if even else "yuv444p",  # 4:2:0 has no odd sizes
        matrix=1 if height >= _HD_LINES else 6,
        range=_LIMITED,
        options={"crf": f"{crf:g}", "preset": "medium"} | _steady(),
    )


def _steady() -> dict[str, str]:
    """Without AVX-512 where there is any: with it x264's mb-tree comes out otherwise on every run, at many widths.
    Processors that have it have all that is named here."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return {"x264-params": "asm=AVX2,FMA3,BMI2"} if wide else {}


class VideoWriter:
    """Takes chunks, leaves a file; leaves nothing when the `with` block fails."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        fps: float | Fraction,
        width: int,
        height: int,
        *,
        lossless: bool = False,
        crf: float = DEFAULT_CRF,
        force: bool = False,
    ) -> None:
        check_number("crf", crf, "a quality from 0 (best) to 51", lambda v: 0 <= v <= 51)
        self.path = check_target(path, force=force)
        self.fps, self.width, self.height = as_fraction(fps).limit_denominator(100_000), width, height
        if self.fps <= 0:
            raise ConfigError(f"the frame rate must be positive; got {fps!r}", about="fps")
        self.count = 0
        self._force = force
        self._coding = coding(width, height, lossless=lossless, crf=crf)
        numerator = self.fps.numerator
        self._tick = Fraction(1, numerator * -(-_FINEST_TICK // numerator))  # fine, and a whole part of a frame
        self._last_stamp = -1
        self._part = part_beside(self.path)
        self._reformatter = pyav().video.reformatter.VideoReformatter()
        self._flags = careful_bicubic()
        self._open = False
        self._start()

    def _start(self) -> None:
        av = pyav()
        with self._explained("written"):
            if self.path == STDOUT:
                self._container = av.open(_Pipe(), "w", format="mp4", options={"movflags": _FRAGMENTS})
            else:
                options = {} if self.path.suffix.lower() == ".mkv" else {"movflags": "+faststart"}
                if options and self.fps > 1000:  # an mp4 counts its length in milliseconds unless told otherwise
                    options["movie_timescale"] = str(_FINEST_TICK)
                kind = CONTAINERS[self.path.suffix.lower()]
                self._container = av.open(f"file:{self._part}", "w", format=kind, options=options)
            self._open = True
            self._stream = self._add_stream()

    @contextlib.contextmanager
    def _explained(self, done: str) -> Iterator[None]:
        """Whatever PyAV or the system raises as one line, and nothing left behind."""
        try:
            yield
        except BrokenPipeError:  # whoever read standard output has gone
            self.abandon()
            raise
        except (pyav().FFmpegError, OSError, ValueError) as error:
            self.abandon()
            kind = OutputError if isinstance(error, OSError) else VideoError  # the place, or the pictures
            place = "standard output" if self.path == STDOUT else self.path
            raise kind(f"{place}: cannot be {done}: {reason(error)}") from error

    def _add_stream(self) -> VideoStream:
        how = self._coding
        stream: Any = self._container.add_stream(how.codec, rate=self.fps, options=how.options)
        stream.width, stream.height, stream.pix_fmt = self.width, self.height, how.pixels
        stream.time_base = stream.codec_context.time_base = self._tick
        context = stream.codec_context
        context.colorspace, context.color_range = how.matrix, how.range
        context.color_primaries = context.color_trc = 1  # BT.709, near enough to sRGB for every player
        return stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def write(self, video: Video) -> None:
        """Append a chunk. Its `seconds`, where given, are those of the whole video."""
        check_kind(video, Video, WRITTEN)
        if (video.width, video.height) != (self.width, self.height):
            raise ShapeError(
                f"all frames of {self.path} are {self.width}x{self.height}; got a chunk of {video.width}x{video.height}"
            )
        per_frame = 1 / (self.fps * self._tick)
        x_THWC = video.frames.cpu().contiguous().numpy()
        for index in range(len(video)):
            if video.seconds is None:
                stamp = self.count * int(per_frame)
            else:
                stamp = round(float(video.seconds[index]) / float(self._tick))
            self._last_stamp = max(stamp, self._last_stamp + 1)  # a codec wants times that grow
            self._encode(self._frame(x_THWC[index], self._last_stamp, int(per_frame)))
            self.count += 1

    def close(self) -> None:
        """Finish the file and give it its name."""
        if not self._open:
            return
        if self.count == 0:
            self.abandon()
            raise VideoError(f"{self.path}: there is no frame to write")
        self._encode(None)
        try:
            with self._explained("finished"):
                self._open = False
                self._container.close()
                if self.path != STDOUT:
                    check_target(self.path, force=self._force)  # it may have come into being since
                    self._part.replace(self.path)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Give up, and leave nothing behind."""
        av = pyav()
        if self._open:
            self._open = False
            with contextlib.suppress(av.FFmpegError, OSError, ValueError):  # what made us give up is the error to show
                self._container.close()
        if self.path != STDOUT:
            self._part.unlink(missing_ok=True)

    def _frame(self, x_HWC: Any, stamp: int, duration: int) -> VideoFrame:
        how = self._coding
        frame = pyav().VideoFrame.from_ndarray(x_HWC, format="rgb24")
        if how.pixels != "rgb24":
            frame = self._reformatter.reformat(
                frame,
                format=how.pixels,
                interpolation=self._flags,
                dst_colorspace={1: "ITU709", 6: "ITU601"}[how.matrix],
                dst_color_range="MPEG",
            )
        frame.colorspace, frame.color_range = how.matrix, how.range
        frame.pts, frame.time_base, frame.duration = stamp, self._tick, duration
        return frame

    def _encode(self, frame: VideoFrame | None) -> None:
        with self._explained("written"):
            for packet in self._stream.encode(frame):
                self._container.mux(packet)


class _Pipe:
    """Standard output without seek and close, so that the muxer streams and the pipe stays ours."""

    def write(self, data: Any) -> int:
        written = sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return written


def write_video(
    video: Video | Iterable[Video],
    path: str | os.PathLike[str],
    *,
    lossless: bool = False,
    crf: float = DEFAULT_CRF,
    fps: float | Fraction | None = None,
    force: bool = False,
) -> Path:
    """Write a video, or its chunks as they come, to a file (`.mp4`, `.m4v`, `.mov`, `.mkv`) or `"-"`.

    H.264 at quality `crf`, or `lossless` to the bit. `fps` replaces the video's own rate and times.
    """
    check_target(path, force=force)  # before the first chunk is asked for, which may be dear
    check_kind(video, (Video, Iterable), WRITTEN)
    chunks = iter((video,) if isinstance(video, Video) else video)
    first = next(chunks, None)
    if first is None:
        raise UsageError(f"{path}: there are no chunks to write")
    check_kind(first, Video, WRITTEN)
    rate = first.fps if fps is None else fps
    with VideoWriter(path, rate, first.width, first.height, lossless=lossless, crf=crf, force=force) as writer:
        for chunk in chain((first,), chunks):
            writer.write(chunk if fps is None else Video(frames=chunk.frames, fps=writer.fps))
    return writer.path
