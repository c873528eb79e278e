# SPDX-License-Identifier: Apache-2.0
"""Animated AVIF and WebP: a film that a web page or a README shows like any picture.

Written with PyAV, frame by frame: Pillow wants all frames of a film in memory at once. AVIF stores what changes from
frame to frame, so that it is smaller, sharper and smoother; WebP is shown by more programs.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain
from typing import TYPE_CHECKING, Any

from inlay.errors import UsageError, VideoError
from inlay.video.frames import Video
from inlay.video.pixels import careful_bicubic
from inlay.video.source import pyav
from inlay.video.svt import undisturbed

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

WEBP_QUALITY = 90  # of 100: the input must look as the input does, so that what is lost is the tokens' loss
AVIF_CRF = 18  # of 63, the worst, for the same reason
_TICK = Fraction(1, 1000)  # both formats count milliseconds
# limited range, BT.709, BT.709, sRGB; SVT-AV1 does not write full range into the stream, where browsers look for it
_SRGB = {"color_range": 1, "colorspace": 1, "color_primaries": 1, "color_trc": 13}


@dataclass(frozen=True, kw_only=True)
class _Format:
    """How frames become a file."""

    name: str
    container: str
    encoder: str
    pixels: str
    options: dict[str, str]
    most_fps: int  # a film in a page should load quickly: faster ones are thinned out evenly
    colours: dict[str, int] = field(default_factory=dict)


def avif_bytes(video: Video | Iterable[Video], *, crf: int = AVIF_CRF) -> bytes:
    """The whole film as one file in memory; frames that come faster than 30 a second are thinned out evenly."""
    options = {"crf": str(crf), "preset": "6", "svtav1-params": "lp=1"}
    avif = _Format(
        name="AVIF", container="avif", encoder="libsvtav1", pixels="yuv420p", options=options, most_fps=30,
        colours=_SRGB,
    )  # fmt: skip
    return _written(video, avif)


def webp_bytes(video: Video | Iterable[Video], *, quality: int = WEBP_QUALITY) -> bytes:
    """The same as a WebP; frames that come faster than 16 a second are thinned out evenly."""
    options = {"quality": str(quality), "compression_level": "5"}
    # as RGB: libwebp's own conversion is 1.6 dB closer on saturated edges than the one before the encoder
    webp = _Format(
        name="WebP", container="webp", encoder="libwebp_anim", pixels="bgra", options=options, most_fps=16
    )  # fmt: skip
    return _written(video, webp)


ANIMATED: dict[str, Callable[[Iterable[Video]], bytes]] = {".avif": avif_bytes, ".webp": webp_bytes}  # by suffix


def _written(video: Video | Iterable[Video], made: _Format) -> bytes:
    av = pyav()
    chunks = iter((video,) if isinstance(video, Video) else video)
    first = next(chunks, None)
    if first is None:
        raise UsageError(f"there are no chunks to write as {made.name}")
    step = max(1, -(-first.fps.numerator // (first.fps.denominator * made.most_fps)))
    buffer = io.BytesIO()
    try:
        with av.open(buffer, "w", format=made.container, options={"loop": "0"}) as container:
            stream: Any = container.add_stream(made.encoder, rate=first.fps / step)
            stream.width, stream.height, stream.pix_fmt = first.width, first.height, made.pixels
            stream.options = made.options
            stream.codec_context.time_base = _TICK
            for name, value in made.colours.items():
                setattr(stream.codec_context, name, value)
            for picture, milliseconds in chain(_pictures(first, chunks, step), ((None, 0),)):
                frame = None if picture is None else _frame(picture, milliseconds, made)
                with undisturbed():
                    container.mux(stream.encode(frame))
    except (av.FFmpegError, OSError, ValueError) as error:
        raise VideoError(f"the film cannot be written as {made.name}: {error}; write an mp4 instead") from error
    return buffer.getvalue()


def _frame(picture: Any, milliseconds: int, made: _Format) -> VideoFrame:
    frame: VideoFrame = pyav().VideoFrame.from_ndarray(picture, format="rgb24")
    if made.colours:
        frame = frame.reformat(
            format=made.pixels, interpolation=careful_bicubic(), dst_colorspace="ITU709", dst_color_range="MPEG"
        )
    frame.pts, frame.time_base = milliseconds, _TICK
    return frame


def _pictures(first: Video, rest: Iterator[Video], step: int) -> Iterator[tuple[Any, int]]:
    """Every `step`-th frame with its time."""
    count = 0
    for chunk in chain((first,), rest):
        for i in range(-count % step, len(chunk), step):
            second = (count + i) / first.fps if chunk.seconds is None else float(chunk.seconds[i])
            yield chunk.frames[i].cpu().contiguous().numpy(), round(1000 * second)
        count += len(chunk)
