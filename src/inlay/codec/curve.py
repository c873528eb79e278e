# SPDX-License-Identifier: Apache-2.0
"""`KeepCurve`: the share of cells kept over time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from inlay.codec.config import continues
from inlay.codec.watch import Watch
from inlay.container.tokens import Tokens


@dataclass(kw_only=True)
class KeepCurve(Watch):
    """One point a slot; grows while a video is encoded, by a few bytes a second of it. Looks on, or is given chunks."""

    seconds: list[float] = field(default_factory=list)  # when each slot begins
    keep_rates: list[float] = field(default_factory=list)
    keys: list[float] = field(default_factory=list)  # when key chunks begin
    tokens: int = 0
    cells: int = 0
    frames: int = 0
    end: float = 0.0  # seconds: when the last frame ends

    def on_tokens(self, tokens: Tokens) -> None:
        self.add(tokens)

    def add(self, chunk: Tokens) -> None:
        """One more chunk of the video."""
        stride, slots = chunk.recipe.time_stride, len(chunk.mask)
        lead = stride if continues(chunk) else 1
        starts = [0 if t == 0 else min(lead + (t - 1) * stride, chunk.info.frames - 1) for t in range(slots)]
        if chunk.seconds is not None:
            times, last = chunk.seconds[starts].tolist(), float(chunk.seconds[-1])
        else:
            times = [float((self.frames + s) / chunk.info.fps) for s in starts]
            last = float((self.frames + chunk.info.frames - 1) / chunk.info.fps)
        self.end = last + float(1 / chunk.info.fps)
        if chunk.spans[0].key:
            self.keys.append(times[0])
        self.seconds += times
        self.keep_rates += chunk.mask.flatten(1).float().mean(1).tolist()
        self.tokens, self.cells = self.tokens + len(chunk), self.cells + chunk.cells
        self.frames += chunk.info.frames

    @property
    def keep_rate(self) -> float:
        return self.tokens / self.cells if self.cells else 0.0

    def record(self) -> dict[str, object]:
        """Plain JSON, for reports."""
        return {
            "seconds": self.seconds,
            "keep_rates": self.keep_rates,
            "key_seconds": self.keys,
            "keep_rate": self.keep_rate,
            "frames": self.frames,
        }


def keep_curve(chunks: Iterable[Tokens]) -> KeepCurve:
    """The curve of all chunks of a video."""
    curve = KeepCurve()
    for chunk in chunks:
        curve.add(chunk)
    return curve
