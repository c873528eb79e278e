# SPDX-License-Identifier: Apache-2.0
"""Batch samplers: clips under a budget of tokens, or all of one shape; deterministic, resumable, shared among ranks.

The batches of an epoch are a pure function of the settings; rank r of n takes batches r, r + n, r + 2n and so on.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from inlay.errors import ConfigError, UsageError, check_number, pick

TAILS = {  # what is done so that all ranks make the same number of steps
    "split": "the fullest batches are halved: nothing is lost, nothing comes twice",
    "drop": "the last batches are left out",
    "keep": "nothing: some ranks make one step more",
}


class PlannedSampler(Sampler[list[int]]):
    """A batch sampler whose epochs are planned as a whole: deterministic, resumable, shared out among ranks."""

    def __init__(
        self, *, seed: int = 0, rank: int = 0, world: int = 1, shuffle: bool = True, tail: str = "split"
    ) -> None:
        pick("tail", tail, TAILS)
        for name, value in (("rank", rank), ("world", world)):
            check_number(name, value, "a whole number", whole=True)
        if not 0 <= rank < world:
            raise ConfigError(f"rank is counted from 0 and below world; got rank {rank} of {world}")
        self.seed, self.rank, self.world, self.shuffle, self.tail = seed, rank, world, shuffle, tail
        self.epoch = 0
        self._next = 0  # the batch of this rank that comes next
        self._plans: dict[int, list[list[int]]] = {}

    @abstractmethod
    def plan(self, rng: np.random.Generator) -> list[list[int]]:
        """The batches of one epoch, before they are shared out."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What the plan depends on: a state saved under other settings is refused."""

    def __repr__(self) -> str:
        rank = f", rank {self.rank} of {self.world}" if self.world > 1 else ""
        return f"{type(self).__name__}({self.about()}{rank}; epoch {self.epoch}, batch {self._next} is next)"

    @abstractmethod
    def about(self) -> str:
        """The settings for a person, in a few words."""

    def __len__(self) -> int:
        """Batches of this rank in this epoch, from its beginning."""
        return len(self._mine())

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of this epoch from where the sampler stands; at the end it stands at the beginning again."""
        mine = self._mine()
        while self._next < len(mine):
            self._next += 1
            yield mine[self._next - 1]
        self._next = 0

    def set_epoch(self, epoch: int) -> None:
        """Another order; begins at the first batch."""
        if epoch != self.epoch:
            self.epoch, self._next = epoch, 0

    def state_dict(self, *, done: int | None = None) -> dict[str, Any]:
        """Where the sampler stands. A loader with workers asks ahead: say how many batches are `done` instead."""
        return {"epoch": self.epoch, "done": self._next if done is None else done, "plan": self._key()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if (saved := state.get("plan")) != (now := self._key()):
            was = saved if isinstance(saved, dict) else {}
            other = [name for name in now if was.get(name) != now[name]]
            told = ", ".join(f"{name} {_short(was.get(name))} and not {_short(now[name])}" for name in other)
            raise UsageError(
                f"this state belongs to other batches: it was saved with {told or 'other settings'}; "
                "resume with the same data, settings and number of ranks"
            )
        self.epoch, self._next = state["epoch"], state["done"]

    def batches(self, epoch: int) -> list[list[int]]:
        """All batches of an epoch, of all ranks."""
        if epoch not in self._plans:
            rng = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
            self._plans = {epoch: share_out(self.plan(rng), self.world, self.tail)}  # only one epoch is kept
        return self._plans[epoch]

    def _mine(self) -> list[list[int]]:
        return self.batches(self.epoch)[self.rank :: self.world]

    def _key(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("seed", "world", "shuffle", "tail")}
        return own | self.settings()


def _short(value: object) -> str:
    """A setting in a message; the clips of each shape are thousands of numbers."""
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def share_out(batches: list[list[int]], world: int, tail: str) -> list[list[int]]:
    """A number of batches that all ranks can divide among them, by the way `tail` names."""
    extra = len(batches) % world
    if not extra or tail == "keep":
        return batches
    if tail == "drop":
        return batches[: len(batches) - extra]
    for _ in range(world - extra):
        fullest = max(range(len(batches)), key=lambda i: len(batches[i]))
        whole = batches[fullest]
        if len(whole) < 2:
            raise UsageError(
                f"{len(batches)} batches cannot be shared out evenly among {world} ranks, every one has one clip; "
                "choose tail='drop' or tail='keep', larger batches or fewer ranks"
            )
        batches[fullest] = whole[::2]  # every other one, so that both halves get large and small clips
        batches.append(whole[1::2])
    return batches


class TokenBudgetSampler(PlannedSampler):
    """Every batch has at most `budget` tokens.

    sampler = TokenBudgetSampler(dataset.token_counts, budget=16_384, rank=rank, world=world)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate_sparse)

    Within windows of shuffled clips the largest are placed first, each where it leaves the least space. A clip larger
    than the budget is refused, or with `alone` makes a batch of its own.

    Args:
        lengths: tokens of each clip.
        window: clips that are placed together.
        rank: of `world` ranks, among which batches are shared out.
        tail: how, so that all ranks make the same number of steps: "split", "drop" or "keep".
    """

    def __init__(
        self, lengths: Sequence[int], *, budget: int, window: int = 1024, alone: bool = False,
        seed: int = 0, rank: int = 0, world: int = 1, shuffle: bool = True, tail: str = "split",
    ) -> None:  # fmt: skip
        super().__init__(seed=seed, rank=rank, world=world, shuffle=shuffle, tail=tail)
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.budget, self.window, self.alone = budget, window, alone
        for name, value in (("budget", budget), ("window", window)):
            check_number(name, value, "a whole number, 1 or more", lambda n: n >= 1, whole=True)
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

    def about(self) -> str:
        return f"{len(self.lengths):,} clips, {int(self.lengths.sum()):,} tokens, budget {self.budget:,}"

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
        """Best fit, largest first: bins are kept sorted by the tokens they can still take."""
        bins: list[tuple[int, int]] = []  # (tokens left, number of the batch)
        batches: list[list[int]] = []
        for clip in sorted(clips.tolist(), key=lambda i: -self.lengths[i]):
            need = int(self.lengths[clip])
            place = bisect_left(bins, (need, -1))
            if place < len(bins):
                left, number = bins.pop(place)
                batches[number].append(clip)
            else:
                left, number = self.budget, len(batches)
                batches.append([clip])
            insort(bins, (left - need, number))
        return batches


class ShapeSampler(PlannedSampler):
    """Batches of `batch_size` clips that have one shape, as dense latents must to be stacked.

    sampler = ShapeSampler(dataset.shapes, batch_size=8, rank=rank, world=world)

    Args:
        shapes: of each clip: what is equal goes together.
        rank: of `world` ranks, among which batches are shared out.
        tail: how, so that all ranks make the same number of steps: "split", "drop" or "keep".
    """

    def __init__(
        self, shapes: Sequence[Hashable], *, batch_size: int,
        seed: int = 0, rank: int = 0, world: int = 1, shuffle: bool = True, tail: str = "split",
    ) -> None:  # fmt: skip
        super().__init__(seed=seed, rank=rank, world=world, shuffle=shuffle, tail=tail)
        check_number("batch_size", batch_size, "a number of clips, 1 or more", lambda n: n >= 1, whole=True)
        if not len(shapes):
            raise UsageError("there are no clips to make batches of; got no shapes")
        self.batch_size = batch_size
        kinds: dict[Hashable, list[int]] = {}
        for clip, shape in enumerate(shapes):
            kinds.setdefault(shape, []).append(clip)
        self.groups = list(kinds.values())

    def settings(self) -> dict[str, Any]:
        return {"groups": [len(g) for g in self.groups], "batch_size": self.batch_size}

    def about(self) -> str:
        clips = sum(map(len, self.groups))
        return f"{clips:,} clips, {len(self.groups):,} different shapes, batches of {self.batch_size}"

    def plan(self, rng: np.random.Generator) -> list[list[int]]:
        batches: list[list[int]] = []
        for group in self.groups:
            order = [group[i] for i in rng.permutation(len(group))] if self.shuffle else group
            batches += [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        return [batches[i] for i in rng.permutation(len(batches))] if self.shuffle else batches
