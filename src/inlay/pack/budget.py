# SPDX-License-Identifier: Apache-2.0
"""Token counts or shapes of clips in, batches of clips out: under a budget of tokens, or all of one shape."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from inlay.errors import ConfigError, UsageError
from inlay.pack.plan import PlannedSampler


class TokenBudgetSampler(PlannedSampler):
    """Every batch has at most `budget` tokens.

    sampler = TokenBudgetSampler(dataset.token_counts, budget=16_384, rank=rank, world=world)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate_sparse)

    Within windows of shuffled clips the largest are placed first, each where it leaves the least room. A clip larger
    than the budget is refused, or with `alone` makes a batch of its own.
    """

    def __init__(
        self, lengths: Sequence[int], *, budget: int, window: int = 1024, alone: bool = False, **options: Any
    ) -> None:
        super().__init__(**options)
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.budget, self.window, self.alone = budget, window, alone
        if budget < 1 or window < 1:
            raise ConfigError(f"budget and window are at least 1; got {budget} and {window}")
        if self.lengths.ndim != 1 or not len(self.lengths) or self.lengths.min() < 0:
            raise UsageError("token counts are one number for each clip, none below 0, and at least one")
        if not alone and self.lengths.max() > budget:
            clip = int(self.lengths.argmax())
            raise UsageError(
                f"clip {clip} has {self.lengths[clip]:,} tokens, the budget is {budget:,}; "
                "raise the budget, or let such clips go alone (alone=True)"
            )

    def settings(self) -> dict[str, Any]:
        counted = {"clips": len(self.lengths), "tokens": int(self.lengths.sum())}
        return counted | {"budget": self.budget, "window": self.window, "alone": self.alone}

    def plan(self, rng: np.random.Generator) -> list[list[int]]:
        order = rng.permutation(len(self.lengths)) if self.shuffle else np.arange(len(self.lengths))
        batches: list[list[int]] = []
        for start in range(0, len(order), self.window):
            batches += self._fit(order[start : start + self.window])
        return [batches[i] for i in rng.permutation(len(batches))] if self.shuffle else batches

    def fill_rate(self) -> float:
        """Tokens of the epoch's batches / what the budget would allow."""
        plan = self.batches(self.epoch)
        return float(self.lengths[[i for b in plan for i in b]].sum()) / (self.budget * len(plan))

    def _fit(self, clips: np.ndarray) -> list[list[int]]:
        """Best fit, largest first: bins are kept sorted by the room they have left."""
        bins: list[tuple[int, int]] = []  # (room, number of the batch)
        batches: list[list[int]] = []
        for clip in sorted(clips.tolist(), key=lambda i: -self.lengths[i]):
            need = int(self.lengths[clip])
            place = bisect_left(bins, (need, -1))
            if place < len(bins):
                room, number = bins.pop(place)
                batches[number].append(clip)
            else:
                room, number = self.budget, len(batches)
                batches.append([clip])
            insort(bins, (room - need, number))
        return batches


class ShapeSampler(PlannedSampler):
    """Batches of `batch_size` clips that have one shape, as dense latents must to be stacked.

    sampler = ShapeSampler(dataset.shapes, batch_size=8, rank=rank, world=world)
    """

    def __init__(self, shapes: Sequence[Hashable], *, batch_size: int, **options: Any) -> None:
        super().__init__(**options)
        if batch_size < 1 or not len(shapes):
            raise ConfigError(f"a batch has at least one clip, and there must be some; got {batch_size}, {len(shapes)}")
        self.batch_size = batch_size
        kinds: dict[Hashable, list[int]] = {}
        for clip, shape in enumerate(shapes):
            kinds.setdefault(shape, []).append(clip)
        self.groups = list(kinds.values())

    def settings(self) -> dict[str, Any]:
        return {"groups": [len(g) for g in self.groups], "batch_size": self.batch_size}

    def plan(self, rng: np.random.Generator) -> list[list[int]]:
        batches: list[list[int]] = []
        for group in self.groups:
            order = [group[i] for i in rng.permutation(len(group))] if self.shuffle else group
            batches += [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        return [batches[i] for i in rng.permutation(len(batches))] if self.shuffle else batches
