# SPDX-License-Identifier: Apache-2.0
"""The frame rate behind presentation times, and whether it is constant."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from inlay.video.source import pyav

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

FALLBACK_FPS = Fraction(25)
UNTIMED = {"avi"}  # containers of frames at one rate and no times; those of the demuxer are in decoding order
_LEAP = 1.0  # seconds back: no jitter, but a stream that starts anew
_MOST_FPS = 10_000  # beyond this a "rate" is the clock of a stream that states none


def stated_rates(stream: VideoStream) -> list[Fraction]:
    """The rates the container states or the demuxer guesses, best first; never empty."""
    rates = [stream.average_rate, stream.guessed_rate, stream.base_rate]
    return [Fraction(r) for r in rates if r and 0 < r <= _MOST_FPS] or [FALLBACK_FPS]


def packet_seconds(container: InputContainer, stream: VideoStream) -> np.ndarray:
    """[N] the times of all frames from the first one on, in order, without decoding any; empty if there are none."""
    if container.format.name in UNTIMED:
        return np.zeros(0)
    stamps: list[int] = []
    try:
        for packet in container.demux(stream):
            if packet.size and packet.pts is not None and not packet.is_discard:
                stamps.append(packet.pts)
    except (pyav().FFmpegError, OSError):
        pass  # damage is the decoder's to report, with the frames it could read
    times = np.sort(np.asarray(stamps, dtype=np.float64)) * float(stream.time_base or 0)
    return times - times[:1].sum()


def on_grid(seconds: np.ndarray, fps: Fraction, tick: float, *, first: int = 0) -> bool:
    """Whether frames `first`, `first + 1`, ... stand where a constant rate puts them, up to the clock's rounding."""
    grid = (first + np.arange(len(seconds))) / float(fps)
    # a whole frame missing shows even where the clock ticks once a frame
    slack = min(1.01 * tick, 0.5 / float(fps))
    return bool(np.all(np.abs(seconds - grid) <= slack))


def rate_of(seconds: np.ndarray, rates: list[Fraction], tick: float) -> tuple[Fraction, bool]:
    """(fps, constant). Of a variable rate the average."""
    for rate in rates:
        if on_grid(seconds, rate, tick):
            return rate, True
    average = Fraction(len(seconds) - 1) / Fraction(float(seconds[-1])) if seconds[-1] > 0 else rates[0]
    near = abs(rates[0] / average - 1) < Fraction(1, 4)  # a stated average that the times contradict is no average
    return (rates[0] if near else max(average.limit_denominator(1001), Fraction(1, 1001))), False


class Clock:
    """Turns the stamps of decoded frames into seconds since the first one, which never run backwards."""

    def __init__(self, rate: float) -> None:
        self._step = 1 / rate
        self._origin: float | None = None
        self._time = -self._step

    def tell(self, stamp: float | None) -> float:
        """The time of the next frame; one without a stamp, or after a leap back, follows the frame before."""
        after = self._time + self._step
        if stamp is None:
            self._time = after
            return after
        if self._origin is None or stamp - self._origin < self._time - _LEAP:
            self._origin = stamp - after
        self._time = max(self._time, stamp - self._origin)
        return self._time
