# SPDX-License-Identifier: Apache-2.0
"""The curve that runs beneath a film: one picture for each frame, grown to that frame.

Drawn with Pillow: a plotting library would take longer for a frame than encoding it does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from inlay.draw.images import INK, blank, font, pixels

LINE, NOW = (86, 180, 233), (230, 159, 0)  # sky blue and orange: told apart with every kind of colour vision
FAINT, UNDER = (74, 78, 84), (48, 86, 108)  # the grid, and the area under the line
WHOLE_SECONDS = 20.0  # a clip up to this long fits on one axis
WINDOW_SECONDS = 10.0  # of a longer one, or one whose length is unknown, the last seconds are shown
RATES = (0.0, 0.5, 1.0)
STEPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # seconds between two marks on the axis


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Where times and keep rates stand in the picture."""

    left: int
    right: int
    top: int
    bottom: int
    start: float
    end: float

    def x(self, second: float) -> int:
        share = (max(second, self.start) - self.start) / (self.end - self.start)
        return self.left + round(share * (self.right - self.left))

    def y(self, rate: float) -> int:
        return self.bottom - round(rate * (self.bottom - self.top))

    def marks(self) -> list[float]:
        """Round times, at most nine."""
        step = next((s for s in STEPS if (self.end - self.start) / s <= 8), STEPS[-1])
        return [i * step for i in range(int(-(-self.start // step)), int(self.end / step + 1e-6) + 1)]


@dataclass(kw_only=True)
class RunningCurve:
    """Grows while the film does; `duration` in seconds where it is known beforehand."""

    duration: float | None = None
    frame: float = 0.0  # seconds that a frame is shown
    frames: int = 0  # drawn so far
    seconds: list[float] = field(default_factory=list)
    keep_rates: list[float] = field(default_factory=list)

    def draw(self, seconds: list[float], keep_rates: list[float], *, width: int, size: int) -> Tensor:
        """[T, H, width, 3] uint8 for the next frames, in type of `size` pixels."""
        rows = []
        for second, rate in zip(seconds, keep_rates, strict=True):
            self.seconds.append(second)
            self.keep_rates.append(rate)
            rows.append(self._picture(width, size))
        self.frames += len(rows)
        self._forget()
        return torch.stack(rows)

    def _forget(self) -> None:
        """A film of hours needs no more of the past than is on the axis."""
        if self._whole():
            return
        first = next((i for i, s in enumerate(self.seconds) if s >= self.seconds[-1] - WINDOW_SECONDS), 0)
        first = max(0, first - 1)  # the step that reaches into the window
        self.seconds, self.keep_rates = self.seconds[first:], self.keep_rates[first:]

    def _whole(self) -> bool:
        return self.duration is not None and self.duration <= WHOLE_SECONDS

    def _span(self) -> tuple[float, float]:
        if self._whole():
            return 0.0, max(self.duration or 0.0, self.seconds[-1] + self.frame, 1e-3)
        end = max(self.seconds[-1] + self.frame, WINDOW_SECONDS)
        return end - WINDOW_SECONDS, end

    def _picture(self, width: int, size: int) -> Tensor:
        head, left = round(1.7 * size), round(font(size).getlength("100 %")) + size // 2
        start, end = self._span()
        at = Axes(left=left, right=width - size // 2, top=head, bottom=head + 4 * size - 1, start=start, end=end)
        paper = _labelled(at, width, size).copy()
        pen = ImageDraw.Draw(paper)
        steps = self._steps(at)
        now = steps[-1][0]
        pen.polygon([(steps[0][0], at.bottom), *steps, (now, at.bottom)], fill=UNDER)
        for y in map(at.y, RATES):
            pen.line([(at.left, y), (at.right, y)], fill=FAINT)
        for x in map(at.x, at.marks()):
            pen.line([(x, at.top), (x, at.bottom)], fill=FAINT)
        pen.line(steps, fill=LINE, width=2)
        pen.line([(now, at.top), (now, at.bottom)], fill=NOW, width=2)
        text = f"kept cells over time: now {100 * self.keep_rates[-1]:.0f} %"
        pen.text((left, head // 2), text, fill=INK, font=font(size), anchor="lm")
        return pixels(paper)

    def _steps(self, at: Axes) -> list[tuple[int, int]]:
        """Each rate from its time to the next one's, the last to the end of its frame."""
        ends = [*self.seconds[1:], self.seconds[-1] + self.frame]
        levels = zip(self.seconds, ends, self.keep_rates, strict=True)
        return [(at.x(time), at.y(rate)) for start, end, rate in levels for time in (start, end)]


@lru_cache(maxsize=1)  # where the whole film is on the axes they stay
def _labelled(at: Axes, width: int, size: int) -> Image.Image:
    """Paper with the rates at the left and the times below."""
    paper = blank(at.bottom + 1 + round(1.5 * size), width)
    pen, small = ImageDraw.Draw(paper), font(round(0.8 * size))
    for rate in RATES:
        pen.text((at.left - size // 4, at.y(rate)), f"{100 * rate:.0f} %", fill=INK, font=small, anchor="rm")
    for second in at.marks():
        text = f"{second:g} s"
        middle = min(at.x(second), at.right - round(small.getlength(text)) // 2)
        pen.text((middle, at.bottom + round(0.8 * size)), text, fill=INK, font=small, anchor="mm")
    return paper
