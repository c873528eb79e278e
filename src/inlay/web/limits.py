# SPDX-License-Identifier: Apache-2.0
"""What the page takes from visitors, and the clip of an upload, or the reason why it is not taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from inlay.errors import ConfigError, TokenFileError, UsageError, VideoError
from inlay.sandbox import faults_of

if TYPE_CHECKING:
    from inlay.video.frames import Video

MB = 1 << 20
CHUNK_FRAMES = 128  # of a chunk of a token file, which is decoded at once
MOST_RATE = 60  # frames a second; a clip of many more is as dear as a long one
SIGNATURES: tuple[tuple[int, bytes], ...] = (  # (offset, bytes): files that hold their pictures themselves
    (4, b"ftyp"), (4, b"moov"), (4, b"mdat"), (4, b"wide"), (4, b"free"), (4, b"skip"),  # mp4, mov
    (0, b"\x1a\x45\xdf\xa3"),  # mkv, webm
    (8, b"AVI "), (0, b"FLV"), (0, b"OggS"), (0, b"GIF8"), (0, b"YUV4MPEG2"), (0, b"DKIF"),
    (0, b"\x00\x00\x01\xba"), (0, b"\x00\x00\x01\xb3"), (0, b"\x30\x26\xb2\x75"),  # mpeg, wmv
    (188, b"\x47"), (196, b"\x47"),  # transport streams
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one visitor may ask for."""

    max_mb: float = field(default=64.0, metadata={"help": "Largest upload in megabytes."})
    max_seconds: float = field(default=10.0, metadata={"help": "Longest video."})
    max_side: int = field(default=1920, metadata={"help": "Longest side of a video."})
    side: int = field(default=256, metadata={"help": "Short side worked at; larger videos are reduced to it."})
    max_work: float = field(default=300.0, metadata={"help": "Most seconds spent on one request."})

    def __post_init__(self) -> None:
        for name in ("max_mb", "max_seconds", "max_side", "side", "max_work"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be above 0 and finite; got {getattr(self, name):g}", about=name)

    @property
    def max_bytes(self) -> int:
        return int(self.max_mb * MB)

    @property
    def max_frames(self) -> int:
        return math.ceil(self.max_seconds * MOST_RATE)

    def check_pixels(self, name: str, pixels: int, *, at_once: int | None = None) -> None:
        """Of a whole clip, as it is worked on, or of `at_once` frames: what one visitor's memory comes to."""
        most, what = (at_once or self.max_frames) * 4 * self.side**2, " at once" if at_once else ""
        if pixels > most:
            raise UsageError(
                f"{name} comes to {pixels / 1e6:,.0f} million pixels{what}, and this page takes at most "
                f"{most / 1e6:,.0f}; cut it, or use the command line, which has no such limit"
            )

    def __str__(self) -> str:
        return f"up to {self.max_mb:g} MB, {self.max_seconds:g} s, {self.max_side} pixels on the longer side"

    def check_bytes(self, path: Path) -> None:
        size = path.stat().st_size
        if size > self.max_bytes:
            raise UsageError(
                f"{path.name} has {size / MB:.1f} MB, and this page takes at most {self.max_mb:g} MB; cut it, "
                "or use the command line, which has no such limit"
            )

    def check(self, name: str, holds: str, *, width: int, height: int, frames: int | None, fps: float) -> None:
        """Of a video that lasts, or a token file that holds, so much: a few bytes may promise hours of black."""
        if max(width, height) > self.max_side:
            raise UsageError(
                f"{name} is {width}x{height}, and this page takes at most {self.max_side} pixels on the longer side; "
                "reduce it, or use the command line, which has no such limit"
            )
        if frames is not None and (frames / fps > self.max_seconds * 1.001 or frames > self.max_frames):
            raise self.too_long(name, f"{holds} {frames / fps:.1f} s ({frames:,} frames)")

    def too_long(self, name: str, found: str) -> UsageError:
        return UsageError(
            f"{name} {found}, and this page takes at most {self.max_seconds:g} s and {self.max_frames:,} frames; "
            "cut it, or use the command line, which has no such limit"
        )


def check_signature(path: Path) -> None:
    """Playlists and other text can make a reader open further files: only what holds its own pictures is read."""
    with path.open("rb") as file:
        head = file.read(256)
    if not head:
        raise VideoError(f"{path.name} is empty (0 bytes); choose a video")
    if head.startswith(b"INLAY") or path.suffix.lower() == ".inlay":
        raise UsageError(f"{path.name} is a token file; give it under 'Token file'")
    if not any(head[at : at + len(sign)] == sign for at, sign in SIGNATURES):
        raise VideoError(f"{path.name} is not a video this page can read; convert it to mp4, mkv, webm, mov or avi")


def read_clip(path: Path, limits: Limits, advance: Callable[[int, int | None], None] | None = None) -> Video:
    """The video of an upload, reduced to the side worked at; every limit is checked before its frames are read."""
    from inlay.video import Geometry, open_video
    from inlay.video.frames import join_videos

    limits.check_bytes(path)
    check_signature(path)
    try:
        width, height = _stated_size(path)
        limits.check(path.name, "lasts", width=width, height=height, frames=None, fps=1.0)
        size = Geometry(short_side=limits.side) if min(width, height) > limits.side else Geometry()
        with open_video(path, size=size) as reader:
            limits.check(path.name, "lasts", width=width, height=height, frames=reader.frames, fps=float(reader.fps))
            limits.check_pixels(path.name, reader.width * reader.height * (reader.frames or 1))
            return join_videos(list(_counted(reader.chunks(), path.name, limits, reader.frames, advance)))
    except VideoError as error:
        raise VideoError(plain_reason(error, path)) from error


def _stated_size(path: Path) -> tuple[int, int]:
    from inlay.video.decoder import video_stream
    from inlay.video.source import Input

    with closing(Input(path)) as source, source.container() as container:
        stream = video_stream(container, path.name)
        return stream.codec_context.width, stream.codec_context.height


def _counted(
    chunks: Iterator[Video],
    name: str,
    limits: Limits,
    expected: int | None,
    advance: Callable[[int, int | None], None] | None,
) -> Iterator[Video]:
    """A header may lie about the length: the frames themselves are counted too."""
    count = 0
    for chunk in chunks:
        count += len(chunk)
        if count > limits.max_frames or count / float(chunk.fps) > limits.max_seconds * 1.001 + 1:
            raise limits.too_long(name, f"has more than {count:,} frames")
        limits.check_pixels(name, count * chunk.width * chunk.height)
        if advance is not None:
            advance(count, expected)
        yield chunk


def open_token_file(path: Path, limits: Limits) -> None:
    """Refuse a token file that is damaged or too much for this page, before anything of it is decoded here.

    The file is a stranger's, so a child reads all of it first: what passes there is sound, and takes no more here.
    """
    from inlay.container import TokenReader

    limits.check_bytes(path)
    try:
        with TokenReader(path) as reader:
            info, slots = reader.info, [span.slots for span in reader.spans]
            pixels_of_slot = reader.header.cells * reader.recipe.time_stride * reader.recipe.space_stride**2
    except TokenFileError as error:
        raise TokenFileError(plain_reason(error, path)) from error
    limits.check(path.name, "holds", width=info.width, height=info.height, frames=info.frames, fps=float(info.fps))
    limits.check_pixels(path.name, sum(slots) * pixels_of_slot)
    limits.check_pixels(path.name, max(slots) * pixels_of_slot, at_once=CHUNK_FRAMES)
    for fault in faults_of(path):
        raise TokenFileError(f"{path.name}: {fault.replace(str(path), path.name)}")


def plain_reason(error: Exception, path: Path) -> str:
    """An error without the folder: a visitor has no business with the place where uploads lie."""
    return str(error).replace(str(path), path.name)
