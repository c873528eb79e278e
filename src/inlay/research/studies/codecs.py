# SPDX-License-Identifier: Apache-2.0
"""Video codecs to compare with: FFmpeg's encoders on the frames of a clip, and those frames as they come back.

The encoders are those of the FFmpeg libraries that PyAV brings, since few builds of the program have all three. Each
setting is also a command for the program (`Codec.command`), and a record keeps it.
"""

from __future__ import annotations

import io
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from inlay.errors import MissingError, VideoError
from inlay.video.frames import Video
from inlay.video.geometry import Geometry
from inlay.video.pixels import Converter, careful_bicubic
from inlay.video.source import pyav, reason
from inlay.video.svt import undisturbed

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

RATE = 24  # frames a second for all: encoders weigh a frame by how long it lasts, and arrays have no rate


@dataclass(frozen=True, kw_only=True)
class Codec:
    """An encoder at one speed; `crf` turns its quality. Threads are one, so that every machine makes the same bytes."""

    name: str
    encoder: str
    format: str  # of the elementary stream, whose bytes are counted
    options: dict[str, str]
    crfs: tuple[int, ...]
    strip: str = ""  # a filter that drops what no decoder needs: a comment would weigh much in so short a clip

    def command(self, crf: int | str, size: str) -> str:
        """What makes the same stream of the same frames with the program."""
        frames = ["-f", "rawvideo", "-pix_fmt", "yuv420p", "-video_size", size, "-framerate", str(RATE)]
        options = [word for name, value in self.options.items() for word in (f"-{name}", value)]
        words = ["ffmpeg", *frames, "-i", "clip.yuv", "-c:v", self.encoder, "-threads", "1", *options]
        words += ["-crf", str(crf), *(["-bsf:v", self.strip] if self.strip else []), "-f", self.format]
        return shlex.join([*words, f"clip.{self.format}"])

    def check(self) -> None:
        """Refuse where the encoder is not there."""
        av = pyav()
        try:
            av.codec.Codec(self.encoder, "w")
        except av.codec.codec.UnknownCodecError as error:
            raise MissingError(
                f"PyAV {av.__version__} was built without {self.encoder}; run: pip install --force-reinstall av"
            ) from error


CODECS = {
    "x264": Codec(
        name="x264 medium", encoder="libx264", format="h264", options={"preset": "medium"},
        crfs=(20, 24, 28, 32, 36, 40, 44, 48, 51), strip="filter_units=remove_types=6",
    ),
    "x265": Codec(
        name="x265 medium", encoder="libx265", format="hevc",
        options={"preset": "medium", "x265-params": "pools=none:frame-threads=1:info=0:log-level=error"},
        crfs=(20, 24, 28, 32, 36, 40, 44, 48, 51),
    ),
    "svt-av1": Codec(
        name="SVT-AV1 preset 6", encoder="libsvtav1", format="obu", options={"preset": "6", "svtav1-params": "lp=1"},
        crfs=(20, 27, 34, 41, 48, 55, 59, 63),
    ),
}  # fmt: skip


def version() -> str:
    """Of the library that holds the encoders."""
    return ".".join(map(str, pyav().library_versions["libavcodec"]))


def recode(video: Video, codec: Codec, crf: int) -> tuple[Video, int]:
    """(the frames as a decoder gives them back, bytes of the stream)."""
    av = pyav()
    if video.width % 2 or video.height % 2:
        raise VideoError(f"{codec.name}: 4:2:0 has no odd sizes, and frames are {video.width}x{video.height}")
    try:
        with undisturbed():
            stream = _encoded(video, codec, crf)
        frames, size = _decoded(stream, codec)
    except (av.FFmpegError, OSError, ValueError) as error:
        raise VideoError(f"{codec.name} at {video.width}x{video.height}: {reason(error)}") from error
    if len(frames) != len(video):
        raise VideoError(f"{codec.name}: {len(video)} frames went in, {len(frames)} came back")
    return Video(frames=torch.stack(frames), fps=video.fps), size


def yuv_frames(video: Video) -> Iterator[VideoFrame]:
    """Frames as every encoder is given them: 4:2:0, BT.601, limited range."""
    av = pyav()
    reformatter, flags = av.video.reformatter.VideoReformatter(), careful_bicubic()
    for index, x_HWC in enumerate(video.frames.cpu().contiguous().numpy()):
        frame: Any = reformatter.reformat(
            av.VideoFrame.from_ndarray(x_HWC, format="rgb24"),
            format="yuv420p",
            interpolation=flags,
            dst_colorspace="ITU601",
            dst_color_range="MPEG",
        )
        frame.pts = index
        yield frame


def _encoded(video: Video, codec: Codec, crf: int) -> bytes:
    target = io.BytesIO()
    with pyav().open(target, "w", format=codec.format) as container:
        stream = container.add_stream(codec.encoder, rate=RATE, options={**codec.options, "crf": str(crf)})
        stream.width, stream.height, stream.pix_fmt = video.width, video.height, "yuv420p"
        stream.codec_context.thread_count = 1
        for frame in (*yuv_frames(video), None):
            container.mux(stream.encode(frame))
        return target.getvalue()


def _decoded(data: bytes, codec: Codec) -> tuple[list[torch.Tensor], int]:
    av, frames, size = pyav(), list[torch.Tensor](), 0
    with av.open(io.BytesIO(data), format=codec.format) as container:
        stream = container.streams.video[0]
        stripped = av.bitstream.BitStreamFilterContext(codec.strip or "null", in_stream=stream)
        convert: Converter | None = None
        for packet in container.demux(stream):
            end = packet.size == 0
            for frame in stream.codec_context.decode(None if end else packet):
                convert = convert or Converter(frame, {}, Geometry(), codec.name)
                frames.append(convert(frame))
            size += sum(p.size for p in stripped.filter(None if end else packet))  # which takes the packet away
    return frames, size
