# SPDX-License-Identifier: Apache-2.0
"""Which clip to cut, from seed, step and place in the batch: a pure function, so a resumed run sees the same clips.

No state is carried from step to step; neither workers nor processes can change the order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from inlay.errors import VideoError
from inlay.train.config import ClipConfig


@dataclass(frozen=True, kw_only=True)
class ClipEntry:
    """One video of a data set."""

    name: str
    frames: int
    height: int
    width: int
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One clip to cut. Places are shares of the free space, so they fit videos of every size."""

    clip: int  # index into the source's entries
    start: int
    frames: int
    size: int
    interval: int = 1
    zoom: float = 1.0
    y: float = 0.5
    x: float = 0.5
    flip: bool = False
    reverse: bool = False
    level: float = 0.5  # uniform in [0, 1): the task's own dial, such as tau
    seed: int = 0  # for whatever else is random about this clip: noise, camera paths

    @property
    def span(self) -> int:
        """Frames of the video from the first to the last, both included."""
        return (self.frames - 1) * self.interval + 1

    def window(self, height: int, width: int) -> tuple[int, int, int]:
        """(top, left, side) of the square to cut, in the video's own pixels."""
        side = max(1, round(min(height, width) / self.zoom))
        return round(self.y * (height - side)), round(self.x * (width - side)), side


class Sampler:
    """Says which clips make up a step."""

    def __init__(
        self,
        entries: Sequence[ClipEntry],
        config: ClipConfig,
        *,
        seed: int = 0,
        weights: Sequence[float] | None = None,
    ) -> None:
        self.entries, self.config, self.seed = tuple(entries), config, seed
        self.usable = long_enough(self.entries, config)
        self.skipped = len(self.entries) - len(self.usable)
        if weights is None and config.balance == "frames":
            weights = [e.frames - config.shortest + 1 for e in self.entries]
        self._share: np.ndarray | None = None
        if weights is not None:
            share = np.asarray(weights, dtype=np.float64)[list(self.usable)]
            self._share = np.cumsum(share / share.sum())
        self._order = lru_cache(maxsize=4)(self._permutation)

    def step(self, step: int, batch: int) -> list[Draw]:
        """The clips of step `step` (from 0), all processes together."""
        return [self.draw(step, slot, batch) for slot in range(batch)]

    def draw(self, step: int, slot: int, batch: int) -> Draw:
        c = self.config
        rng = _generator(self.seed, 1, step, slot)
        clip, visit = self._choose(step * batch + slot, rng)
        frames = self.entries[clip].frames
        longest = c.interval[1] if c.frames == 1 else min(c.interval[1], (frames - 1) // (c.frames - 1))
        interval = int(rng.integers(c.interval[0], longest + 1))
        start = self._start(frames - (c.frames - 1) * interval, (c.frames - 1) * interval + 1, visit, rng)
        zoom = math.exp(rng.uniform(math.log(c.zoom[0]), math.log(c.zoom[1])))
        y, x = rng.random(2) if c.crop == "random" else (0.5, 0.5)
        flip, reverse = rng.random(2) < 0.5
        return Draw(
            clip=clip, start=start, frames=c.frames, size=c.size, interval=interval, zoom=zoom, y=float(y), x=float(x),
            flip=bool(flip and c.flip), reverse=bool(reverse and c.reverse), level=float(rng.random()),
            seed=int(rng.integers(2**62)),
        )  # fmt: skip

    def _choose(self, count: int, rng: np.random.Generator) -> tuple[int, int]:
        """(clip, how often it was visited before): shuffled rounds, or by weight where weights are given."""
        if self._share is not None:
            place = int(np.searchsorted(self._share, rng.random(), side="right"))
            return self.usable[min(place, len(self.usable) - 1)], count
        epoch, place = divmod(count, len(self.usable))
        return self.usable[int(self._order(epoch)[place])], epoch

    def _start(self, starts: int, span: int, visit: int, rng: np.random.Generator) -> int:
        if self.config.start == "random":
            return int(rng.integers(starts))
        windows = (starts - 1) // span + 1
        return visit % windows * span

    def _permutation(self, epoch: int) -> np.ndarray:
        return _generator(self.seed, 0, epoch, 0).permutation(len(self.usable))


def long_enough(entries: Sequence[ClipEntry], config: ClipConfig) -> tuple[int, ...]:
    """Indices of the videos that can yield a clip; an error if there is none."""
    usable = tuple(i for i, e in enumerate(entries) if e.frames >= config.shortest)
    if usable:
        return usable
    if not entries:
        raise VideoError("there are no videos to train on; give a folder or a list that names some")
    longest = max(entries, key=lambda e: e.frames)
    raise VideoError(
        f"every video is too short: the longest, {longest.name}, has {longest.frames} frames, but clips of "
        f"{config.frames} frames at interval {config.interval[0]} need {config.shortest}; "
        "use longer videos, fewer frames or a smaller interval"
    )


def fixed_draws(
    entries: Sequence[ClipEntry], *, frames: int, size: int, interval: int = 1, limit: int | None = None
) -> list[Draw]:
    """The first clip of each video, centre crop: what validation looks at. Videos that are too short are left out."""
    need = (frames - 1) * interval + 1
    long = [i for i, e in enumerate(entries) if e.frames >= need]
    if limit is not None and limit < len(long):
        long = [long[k * len(long) // limit] for k in range(limit)]  # spread over the list: folders sort by subject
    return [Draw(clip=i, start=0, frames=frames, size=size, interval=interval) for i in long]


def _generator(seed: int, stream: int, a: int, b: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, stream], counter=[0, 0, a, b]))
