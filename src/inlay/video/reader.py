# SPDX-License-Identifier: Apache-2.0
"""Read a video file or pipe in chunks: upright, RGB, every frame at its time, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import chain, islice
from typing import TYPE_CHECKING, Self

import numpy as np
import torch

from inlay.errors import UsageError, VideoError
from inlay.video.decoder import Decoder, video_stream
from inlay.video.frames import Video, join_videos
from inlay.video.geometry import Geometry
from inlay.video.pixels import Converter
from inlay.video.source import Input, Source
from inlay.video.timing import UNTIMED, Clock, on_grid, packet_seconds, rate_of, stated_rates

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

CHUNK = 33


class VideoReader:
    """An open video: a context manager whose frames can be walked over once. Errors show here, not at the first chunk.

    Args:
        source: a path, `"-"` (standard input), an address or a binary file object.
        size: a `Geometry`, or what `Geometry.parse` reads.
        start: the first frame to take.
        frames: how many to take; all by default.
        interval: take every `interval`-th.
        keep_going: use what a damaged file still holds.

    `width`, `height` and `fps` are those of the chunks; `frames` is how many to expect, None where a pipe does not say;
    `constant` whether the rate is; `damage` what was wrong with the part walked over so far: frames that could not be
    decoded are an error unless keep_going is set, those that a decoder dropped or mended in silence are told here.
    """

    def __init__(
        self,
        source: Source,
        *,
        size: Geometry | str | None = None,
        start: int = 0,
        frames: int | None = None,
        interval: int = 1,
        keep_going: bool = False,
    ) -> None:
        counts = (start, interval, 1 if frames is None else frames)
        if not all(isinstance(n, int) and n >= least for n, least in zip(counts, (0, 1, 1), strict=True)):
            got = f"got start={start}, frames={frames}, interval={interval}"
            raise UsageError(f"start counts from 0, frames and interval from 1, in whole numbers; {got}")
        geometry = Geometry() if size is None else size if isinstance(size, Geometry) else Geometry.parse(size)
        self._span = slice(start, None if frames is None else start + (frames - 1) * interval + 1, interval)
        self._input = Input(source)
        self.name = self._input.name
        self._decoder: Decoder | None = None
        self._closed = False
        try:
            seconds = self._scan() if self._input.seekable else np.zeros(0)
            self._decoder = Decoder(self._input, keep_going=keep_going)
            self._set_rate(self._decoder, seconds)
            timed = self._timed(self._decoder)
            first = next(timed)  # an undecodable file is refused here, before any weights are loaded
            self._convert = Converter(first[1], self._decoder.stream.metadata, geometry, self.name)
            self.width, self.height = self._convert.width, self._convert.height
            self._selected = self._select(chain([first], timed))
        except BaseException:
            self.close()
            raise

    def _scan(self) -> np.ndarray:
        """The times of all frames, read ahead so that the first chunk already knows whether the rate is constant."""
        with self._input.container() as container:
            return packet_seconds(container, video_stream(container, self.name))

    def _set_rate(self, decoder: Decoder, seconds: np.ndarray) -> None:
        rates, self._tick = stated_rates(decoder.stream), float(decoder.stream.time_base or 0)
        self._rate, self.constant = rate_of(seconds, rates, self._tick) if len(seconds) else (rates[0], True)
        self.fps: Fraction = self._rate / self._span.step
        promised = len(seconds) or decoder.stream.frames or None
        self.frames: int | None = None if promised is None else len(range(promised)[self._span])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Video]:
        return self.chunks()

    def __repr__(self) -> str:
        return f"VideoReader({self.name!r}, {self.width}x{self.height}, fps={float(self.fps):g})"

    @property
    def damage(self) -> str | None:
        return None if self._decoder is None else self._decoder.damage

    def close(self) -> None:
        self._closed = True
        if self._decoder is not None:
            self._decoder.close()
        self._input.close()

    def chunks(self, frames: int = CHUNK) -> Iterator[Video]:
        """Videos of `frames` frames, the last one shorter; what has been walked over does not come again.

        A chunk has `seconds`, counted from the reader's first frame, when the rate is not constant. In a pipe this is
        known only from the first frame that stands off the grid; the chunks before it have none.
        """
        if frames < 1:
            raise UsageError(f"a chunk has at least one frame; got {frames}")
        while chunk := self._next(frames):
            seconds = torch.tensor([time for time, _ in chunk], dtype=torch.float64)
            x_THWC = torch.stack([x_HWC for _, x_HWC in chunk])
            yield Video(frames=x_THWC, fps=self.fps, seconds=None if self.constant else seconds)

    def _next(self, frames: int) -> list[tuple[float, torch.Tensor]]:
        if self._closed:
            raise UsageError(f"{self.name}: the reader is closed; open the video again")
        return list(islice(self._selected, frames))

    def _select(self, timed: Iterator[tuple[float, VideoFrame]]) -> Iterator[tuple[float, torch.Tensor]]:
        """(seconds since the first selected frame, [H, W, 3]) of the frames asked for."""
        origin: float | None = None
        for time, frame in islice(timed, self._span.start, self._span.stop, self._span.step):
            origin = time if origin is None else origin
            yield time - origin, self._convert(frame)
        if origin is None:
            raise VideoError(f"{self.name}: has no frame {self._span.start} to start at; start earlier")

    def _timed(self, decoder: Decoder) -> Iterator[tuple[float, VideoFrame]]:
        """(seconds since the first frame, frame)."""
        clock = Clock(float(self._rate))
        untimed = decoder.container.format.name in UNTIMED
        for index, frame in enumerate(decoder.frames()):
            stamp = None if untimed or frame.pts is None else frame.pts * self._tick
            time = clock.tell(stamp)
            if stamp is not None and self.constant and not self._input.seekable:
                self.constant = on_grid(np.array([time]), self._rate, self._tick, first=index)
            yield time, frame


open_video = VideoReader


def read_video(
    source: Source,
    *,
    size: Geometry | str | None = None,
    start: int = 0,
    frames: int | None = None,
    interval: int = 1,
    keep_going: bool = False,
) -> Video:
    """The whole video, or the part asked for, in memory; the arguments are those of `open_video`."""
    with open_video(source, size=size, start=start, frames=frames, interval=interval, keep_going=keep_going) as reader:
        return join_videos(list(reader.chunks()))
