# SPDX-License-Identifier: Apache-2.0
"""What visitors upload, read in a child: the clip of a video, or that a token file is sound and not too much."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import torch

from inlay.codec import verify
from inlay.container import TokenReader
from inlay.errors import TokenFileError, UsageError, VideoError
from inlay.video import Geometry, open_video
from inlay.video.decoder import video_stream
from inlay.video.frames import Video, join_videos
from inlay.video.source import Input
from inlay.web import child
from inlay.web.limits import CHUNK_FRAMES, Limits

VIDEO_MB, TOKENS_MB = 1024, 512  # memory of a child, beyond what the libraries take
TOKENS_SECONDS = 60.0
PIECE_FRAMES = 16  # of a clip on its way back from a child
MOST_ODDITY = 1 << 16  # bytes of a message that is not pixels
SIGNATURES: tuple[tuple[int, bytes], ...] = (  # (offset, bytes): files that hold their pictures themselves
    (4, b"ftyp"), (4, b"moov"), (4, b"mdat"), (4, b"wide"), (4, b"free"), (4, b"skip"),  # mp4, mov
    (0, b"\x1a\x45\xdf\xa3"),  # mkv, webm
    (8, b"AVI "), (0, b"FLV"), (0, b"OggS"), (0, b"GIF8"), (0, b"YUV4MPEG2"), (0, b"DKIF"),
    (0, b"\x00\x00\x01\xba"), (0, b"\x00\x00\x01\xb3"), (0, b"\x30\x26\xb2\x75"),  # mpeg, wmv
    (188, b"\x47"), (196, b"\x47"),  # transport streams
)  # fmt: skip
Counted = Callable[[int, int | None], None]  # frames read, of how many


@dataclass(frozen=True, kw_only=True)
class Clip:
    """The video of an upload as it is worked on."""

    video: Video
    reduced: bool  # to the side worked at


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


# --- a video ----------------------------------------------------------------------------------------------------------


def read_clip(path: Path, limits: Limits, advance: Counted | None = None, *, memory_mb: int = VIDEO_MB) -> Clip:
    """The video of an upload, reduced to the side worked at. A child reads it; what it sends is checked once more."""
    limits.check_bytes(path)
    check_signature(path)
    messages = child.stream(
        _pieces, path, limits, name=path.name, refuse=VideoError, memory_mb=memory_mb, seconds=limits.max_work,
        most_bytes=3 * PIECE_FRAMES * limits.side * limits.max_side + MOST_ODDITY,
    )  # fmt: skip
    parts: list[Video] = []
    count, reduced = 0, False
    with closing(messages):  # type: ignore[type-var]
        for head in messages:
            piece, expected, reduced = _unpacked(head, next(messages, b""), path.name)
            count += len(piece)
            limits.check_length(path.name, count, float(piece.fps))
            limits.check_pixels(path.name, count * piece.width * piece.height)
            parts.append(piece)
            if advance is not None:
                advance(count, expected)
    if not parts:
        raise VideoError(f"{path.name}: no frame could be decoded")
    return Clip(video=join_videos(parts), reduced=reduced)


def _pieces(path: Path, limits: Limits) -> Iterator[bytes]:
    """In the child: what each piece is, and its pixels. Every limit is checked before the frames are read."""
    try:
        width, height = _stated_size(path)
        limits.check(path.name, "lasts", width=width, height=height, frames=None, fps=1.0)
        reduce = min(width, height) > limits.side
        size = Geometry(short_side=limits.side) if reduce else Geometry()
        with open_video(path, size=size) as reader:
            limits.check(path.name, "lasts", width=width, height=height, frames=reader.frames, fps=float(reader.fps))
            limits.check_pixels(path.name, reader.width * reader.height * (reader.frames or 1))
            for piece in reader.chunks(PIECE_FRAMES):
                yield from _packed(piece, reader.frames, reduce)
    except VideoError as error:
        raise VideoError(plain_reason(error, path)) from error


def _stated_size(path: Path) -> tuple[int, int]:
    with closing(Input(path)) as source, source.container() as container:
        stream = video_stream(container, path.name)
        return stream.codec_context.width, stream.codec_context.height


def _packed(piece: Video, expected: int | None, reduced: bool) -> Iterator[bytes]:
    seconds = None if piece.seconds is None else piece.seconds.tolist()
    head = {"size": list(piece.frames.shape[:3]), "fps": str(piece.fps), "seconds": seconds}
    yield json.dumps(head | {"of": expected, "reduced": reduced}).encode()
    yield piece.frames.numpy().tobytes()


def _unpacked(head: bytes, pixels: bytes, name: str) -> tuple[Video, int | None, bool]:
    try:
        said = json.loads(head)
        frames = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(*map(int, said["size"]), 3)
        seconds = None if said["seconds"] is None else torch.tensor(said["seconds"], dtype=torch.float64)
        expected = None if said["of"] is None else int(said["of"])
        return Video(frames=frames, fps=Fraction(said["fps"]), seconds=seconds), expected, bool(said["reduced"])
    except (ValueError, KeyError, TypeError, RuntimeError, ArithmeticError) as error:
        raise VideoError(f"{name} cannot be read") from error


# --- a token file -----------------------------------------------------------------------------------------------------


def check_token_file(
    path: Path, limits: Limits, *, memory_mb: int = TOKENS_MB, seconds: float = TOKENS_SECONDS
) -> None:
    """Refuse a token file that is damaged or too much for this page, before anything of it is opened here.

    The file is a stranger's, so a child reads all of it: what passes there is sound, and takes no more here.
    """
    limits.check_bytes(path)
    for _ in child.stream(
        _faults, path, limits, name=path.name, refuse=TokenFileError, memory_mb=memory_mb, seconds=seconds,
        most_bytes=MOST_ODDITY,
    ):  # fmt: skip
        pass


def _faults(path: Path, limits: Limits) -> Iterator[bytes]:
    """In the child: the first fault there is, as an error."""
    try:
        with TokenReader(path) as reader:
            info, slots = reader.info, [span.slots for span in reader.spans]
            pixels_of_slot = int(reader.header.cells * reader.recipe.time_stride * reader.recipe.cell_side**2)
    except TokenFileError as error:
        raise TokenFileError(plain_reason(error, path)) from error
    limits.check(path.name, "holds", width=info.width, height=info.height, frames=info.frames, fps=float(info.fps))
    limits.check_pixels(path.name, sum(slots) * pixels_of_slot)
    limits.check_pixels(path.name, max(slots) * pixels_of_slot, at_once=CHUNK_FRAMES)
    for fault in verify(path):
        said = fault.removeprefix(f"{path}: ").replace(str(path), path.name)
        raise TokenFileError(f"{path.name}: {said}")
    yield from ()


def plain_reason(error: Exception, path: Path) -> str:
    """An error without the folder: a visitor has no business with the place where uploads lie."""
    return str(error).replace(str(path), path.name)
