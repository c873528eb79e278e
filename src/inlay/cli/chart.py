# SPDX-License-Identifier: Apache-2.0
"""Times and keep rates in, the curve that runs beneath a film out: one picture for each frame, grown to that frame.

Legend: T frames, H W pixels, N columns of the plot.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from inlay.cli.letters import ink, write

LINE, NOW = (86, 180, 233), (230, 159, 0)  # sky blue and orange: told apart with every kind of colour vision
INK, FAINT, PAPER = (235, 235, 235), (74, 78, 84), 24
WHOLE_SECONDS = 20.0  # a clip up to this long fits on one axis
WINDOW_SECONDS = 10.0  # of a longer one, or one whose length is unknown, the last seconds are shown
STEPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # seconds between two marks on the axis


@dataclass(kw_only=True)
class RunningCurve:
    """Grows while the film does; `duration` in seconds where it is known beforehand."""

    duration: float | None = None
    seconds: list[float] = field(default_factory=list)
    keep_rates: list[float] = field(default_factory=list)

    def draw(self, seconds: list[float], keep_rates: list[float], *, width: int, size: int) -> Tensor:
        """[T, H, width, 3] uint8 for the next frames, in type of `size` pixels."""
        rows = []
        for second, rate in zip(seconds, keep_rates, strict=True):
            self.seconds.append(second)
            self.keep_rates.append(rate)
            rows.append(self._picture(width, size))
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
            return 0.0, max(self.duration or 0.0, self.seconds[-1], 1e-3)
        end = max(self.seconds[-1], WINDOW_SECONDS)
        return end - WINDOW_SECONDS, end

    def _picture(self, width: int, size: int) -> Tensor:
        left, right = ink("100 %", size).shape[1] + size // 2, size // 2
        head, plot, foot = round(1.7 * size), 4 * size, round(1.5 * size)
        picture = torch.full((head + plot + foot, width, 3), PAPER, dtype=torch.uint8)
        box = picture[head : head + plot, left : width - right]
        start, end = self._span()
        self._grid(picture, box, left=left, head=head, size=size, start=start, end=end)
        now = self._line(box, start, end)
        box[:, max(0, now - 1) : now + 1] = torch.tensor(NOW, dtype=torch.uint8)
        text = f"kept cells over time: now {self.keep_rates[-1]:.0%}"
        write(picture, text, x=left, middle=head // 2, size=size, colour=INK)
        return picture

    def _grid(self, picture: Tensor, box: Tensor, *, left: int, head: int, size: int, start: float, end: float) -> None:
        plot, columns, _ = box.shape
        for share in (0, 50, 100):
            row = round((1 - share / 100) * (plot - 1))
            box[row] = torch.tensor(FAINT, dtype=torch.uint8)
            label = f"{share} %"
            x = left - ink(label, size).shape[1] - size // 4
            write(picture, label, x=x, middle=head + row, size=round(0.8 * size), colour=INK)
        step = next((s for s in STEPS if (end - start) / s <= 8), STEPS[-1])
        first = int(-(-start // step))
        for i in range(first, int(end / step + 1e-6) + 1):
            x = round((i * step - start) / (end - start) * (columns - 1))
            box[:, x] = torch.tensor(FAINT, dtype=torch.uint8)
            label = f"{i * step:g} s"
            at = min(left + x - ink(label, round(0.8 * size)).shape[1] // 2, picture.shape[1] - 2 * size)
            write(picture, label, x=at, middle=head + plot + round(0.8 * size), size=round(0.8 * size), colour=INK)

    def _line(self, box: Tensor, start: float, end: float) -> int:
        """Draw the steps up to now into the plot; returns the column of now."""
        plot, columns, _ = box.shape
        now = round((self.seconds[-1] - start) / (end - start) * (columns - 1))
        time_N = start + torch.arange(now + 1, dtype=torch.float64) / max(columns - 1, 1) * (end - start)
        times = torch.tensor(self.seconds, dtype=torch.float64)
        index_N = (torch.searchsorted(times, time_N + 1e-6, right=True) - 1).clamp(min=0)
        row_N = ((1 - torch.tensor(self.keep_rates)[index_N]) * (plot - 2)).round().long()
        before_N = torch.cat([row_N[:1], row_N[:-1]])
        rows = torch.arange(plot)[:, None]
        part = box[:, : now + 1]
        under = rows > row_N
        part[under] = (part[under] * 0.6 + torch.tensor(LINE) * 0.4).to(torch.uint8)
        line = (rows >= torch.minimum(row_N, before_N)) & (rows <= torch.maximum(row_N, before_N) + 1)
        part[line] = torch.tensor(LINE, dtype=torch.uint8)
        return now
