# SPDX-License-Identifier: Apache-2.0
"""A wish in tokens, bits or decibels in, the tau that grants it out; and for streams a leaky bucket that steers tau."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from inlay.errors import ConfigError

KINDS = {  # budget -> what it promises
    "tau": "keep a cell that changed by at least this",
    "keep": "never more than this share of the cells",
    "tokens": "exactly this many tokens",
    "bits": "never more than this many bits a pixel, container included",
    "psnr": "the fewest tokens that reach this PSNR",
}
STRENGTH = 3.0  # a bucket that is full or empty divides or multiplies tau by e to this
MOST_TRIALS = 48
_DOUBLINGS = 64


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a video may cost, or how good it must be. At most one of the five; none of them: the model's own tau."""

    tau: float | None = field(default=None, metadata={"help": "threshold"})
    keep: float | None = field(default=None, metadata={"help": "share of the cells"})
    tokens: int | None = field(default=None, metadata={"help": "number of tokens"})
    bits: float | None = field(default=None, metadata={"help": "bits a pixel"})
    psnr: float | None = field(default=None, metadata={"help": "decibels"})
    exact: bool = field(default=False, metadata={"help": "with keep: exactly that share, rounded down to whole cells"})
    bucket_seconds: float | None = field(default=None, metadata={"help": "steer causally, with a bucket this long"})

    def __post_init__(self) -> None:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) > 1:
            flags = " and ".join(f"--{kind}" for kind in given)
            raise ConfigError(f"{flags} contradict each other; a video has one budget, so give one of them")
        _check("tau", self.tau, lambda v: 0 <= v < math.inf, "a distance: zero or more, and finite")
        _check("keep", self.keep, lambda v: 0 < v <= 1, "a share of the cells, above 0 and at most 1")
        _check("tokens", self.tokens, lambda v: v >= 1, "a number of tokens, 1 or more")
        _check("bits", self.bits, lambda v: 0 < v < math.inf, "bits a pixel, above 0 and finite")
        _check("psnr", self.psnr, lambda v: 0 < v <= 100, "decibels, above 0 and at most 100")
        _check("bucket", self.bucket_seconds, lambda v: 0 < v < math.inf, "a time in seconds, above 0 and finite")
        if self.exact and self.keep is None:
            raise ConfigError("--exact makes --keep an exact count; give --keep with it (--tokens is exact by itself)")
        if self.bucket_seconds is not None and self.keep is None and self.bits is None:
            raise ConfigError("--bucket steers towards a rate; give --keep or --bits with it")
        if self.exact and self.bucket_seconds is not None:
            raise ConfigError("--exact counts the whole video and --bucket steers without knowing it; give one of them")

    @property
    def kind(self) -> str:
        return next((kind for kind in KINDS if getattr(self, kind) is not None), "tau")

    @property
    def causal(self) -> bool:
        """Can be kept without having seen the whole video."""
        return self.kind == "tau" or self.bucket_seconds is not None


def _check(name: str, value: float | None, ok: Callable[[float], bool], wanted: str) -> None:
    if value is not None and not ok(value):  # NaN compares false, and so is refused
        raise ConfigError(f"--{name} is {wanted}; got {value:g}")


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A tau that was tried and found to grant the wish, what it gave, and how many were tried."""

    tau: float
    value: float
    trials: int


def smallest_tau(cost: Callable[[float], float], limit: float, *, start: float, slack: float = 0.0) -> Solution | None:
    """The smallest tau found whose cost is within `limit`, at most `slack` of it unused; None if no tau is.

    Every answer was itself tried, so the limit holds even where cost does not fall steadily with tau.
    """
    trials = 0

    def tried(tau: float) -> float:
        nonlocal trials
        trials += 1
        return cost(tau)

    low, high, value = 0.0, start, tried(start)
    while value > limit:
        if trials > _DOUBLINGS:
            return None
        low, high = high, high * 2
        value = tried(high)
    while trials < MOST_TRIALS + _DOUBLINGS and value < limit * (1 - slack) and high - low > 1e-6 * high:
        if low == 0 and high < start * 1e-6:
            low, high, value = 0.0, 0.0, tried(0.0)
            break
        middle = high / 4 if low == 0 else math.sqrt(low * high)
        if not low < middle < high:
            break
        spent = tried(middle)
        if spent <= limit:
            high, value = middle, spent
        else:
            low = middle
    return Solution(tau=high, value=value, trials=trials)


def largest_tau(
    quality: Callable[[float], float], target: float, *, start: float, slack: float = 0.05, most: int = 12
) -> Solution | None:
    """The largest tau found whose quality reaches `target`, by at most `slack` more; None if tau 0 does not reach it.

    Trials are dear (each is a decode), so the next tau is where a line through the last two in log tau meets the
    target, as long as that lies well inside the bracket.
    """
    trials: list[tuple[float, float]] = []

    def tried(tau: float) -> float:
        trials.append((tau, quality(tau)))
        return trials[-1][1]

    good: tuple[float, float] | None = None
    bad: tuple[float, float] | None = None
    tau = start
    while len(trials) < most - 1:
        value = tried(tau)
        if value >= target:
            good = (tau, value)
            if value <= target + slack:
                break
        else:
            bad = (tau, value)
        if good is None:
            assert bad is not None, "a trial is either good or bad"
            if bad[0] < start / 1000:
                break
            tau = bad[0] / 3
        elif bad is None:
            if good[0] > start * 1000:
                break
            tau = good[0] * 2
        elif bad[0] < good[0] * 1.01:
            break
        else:
            tau = _between(good, bad, target)
    if good is None:
        value = tried(0.0)
        good = (0.0, value) if value >= target else None
    return None if good is None else Solution(tau=good[0], value=good[1], trials=len(trials))


def _between(good: tuple[float, float], bad: tuple[float, float], target: float) -> float:
    share = (good[1] - target) / max(good[1] - bad[1], 1e-9)
    return good[0] * (bad[0] / good[0]) ** min(max(share, 0.1), 0.9)


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Credit saved and debt owed, both at most `size`, in cells or in bits. A slot earns its income and pays its cost.

    Credit beyond the size is lost. So what a stream has spent exceeds what it has earned by no more than the size,
    except where a key slot, which is kept whole, found the bucket too empty.
    """

    size: float
    level: float = 0.0
    lowest: float = 0.0
    earned: float = 0.0
    spent: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.size < math.inf:
            raise ConfigError(f"a bucket has a size above 0; got {self.size}")

    def tau(self, tau: float) -> float:
        """A full bucket lowers tau, debt raises it: a function of the level alone."""
        return tau * math.exp(-STRENGTH * max(self.level, -self.size) / self.size)

    def room(self, income: float, price: float) -> int:
        """How many tokens at `price` the next slot may keep."""
        return max(0, math.floor((self.level + income + self.size) / price))

    def after(self, income: float, cost: float) -> Bucket:
        level = min(self.level + income - cost, self.size)
        return replace(
            self,
            level=level,
            lowest=min(self.lowest, level),
            earned=self.earned + income,
            spent=self.spent + cost,
        )

    @property
    def peak(self) -> float:
        """How far spending has been ahead of earning, at worst."""
        return max(0.0, -self.lowest)

    @property
    def overshoot(self) -> float:
        """How much more than its income the stream has spent so far, as a share of it; negative when it spent less."""
        return self.spent / self.earned - 1 if self.earned else 0.0
