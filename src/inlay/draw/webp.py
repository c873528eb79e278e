# SPDX-License-Identifier: Apache-2.0
"""Animated WebP: a film that a web page or a README shows like any picture.

Written with PyAV, frame by frame: Pillow wants all frames of a film in memory at once.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import chain
from typing import Any

from inlay.errors import UsageError, VideoError
from inlay.video.frames import Video
from inlay.video.source import pyav

QUALITY = 90  # of 100: the input must look as the input does, so that what is lost is the tokens' loss
MOST_FPS = 16  # pictures a second: a film in a page should load quickly, and need not be smooth
_TICK = Fraction(1, 1000)  # the format counts milliseconds


def webp_bytes(video: Video | Iterable[Video], *, quality: int = QUALITY) -> bytes:
    """The whole film as one file in memory; frames that come faster than 16 a second are thinned out evenly."""
    av = pyav()
    chunks = iter((video,) if isinstance(video, Video) else video)
    first = next(chunks, None)
    if first is None:
        raise UsageError("there are no chunks to write as WebP")
    step = max(1, -(-first.fps.numerator // (first.fps.denominator * MOST_FPS)))
    buffer = io.BytesIO()
    try:
        with av.open(buffer, "w", format="webp", options={"loop": "0"}) as container:
            stream: Any = container.add_stream("libwebp_anim", rate=first.fps)
            # as RGB: libwebp's own conversion is 1.6 dB closer on saturated edges than the one before the encoder
            stream.width, stream.height, stream.pix_fmt = first.width, first.height, "bgra"
            stream.options = {"quality": str(quality), "compression_level": "5"}
            stream.codec_context.time_base = _TICK
            for picture, milliseconds in _pictures(first, chunks, step):
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts, frame.time_base = milliseconds, _TICK
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    except (av.FFmpegError, OSError, ValueError) as error:
        raise VideoError(f"the film cannot be written as WebP: {error}; write an mp4 instead") from error
    return buffer.getvalue()


def _pictures(first: Video, rest: Iterator[Video], step: int) -> Iterator[tuple[Any, int]]:
    """Every `step`-th frame with its time."""
    count = 0
    for chunk in chain((first,), rest):
        for i in range(-count % step, len(chunk), step):
            second = (count + i) / first.fps if chunk.seconds is None else float(chunk.seconds[i])
            yield chunk.frames[i].cpu().contiguous().numpy(), round(1000 * second)
        count += len(chunk)
