# SPDX-License-Identifier: Apache-2.0
"""What a video may cost or how good it must be, checked; and for streams a leaky bucket that steers tau."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from inlay.errors import ConfigError, check_number

KINDS = {  # budget -> what it promises
    "tau": "keep a cell that changed by at least this",
    "keep": "never more than this share of the cells",
    "tokens": "exactly this many tokens",
    "bits": "never more than this many bits a pixel, container included",
    "psnr": "the fewest bits found that reach this PSNR",
}
LARGEST_TAU = 1e6  # latents are nowhere near as far apart: nothing but key slots is kept long before
STRENGTH = 3.0  # a bucket that is full divides tau by e to this


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a video may cost, or how good it must be. At most one of the five; none of them: the model's own tau.

    With bits or a PSNR a tau may stand as well: it is then fixed, and the step alone grants the budget.
    """

    tau: float | None = field(default=None, metadata={"help": "threshold"})
    keep: float | None = field(default=None, metadata={"help": "share of the cells"})
    tokens: int | None = field(default=None, metadata={"help": "number of tokens"})
    bits: float | None = field(default=None, metadata={"help": "bits a pixel"})
    psnr: float | None = field(default=None, metadata={"help": "decibels"})
    exact: bool = field(default=False, metadata={"help": "with keep: exactly that share, rounded down to whole cells"})
    bucket_seconds: float | None = field(default=None, metadata={"help": "steer causally, with a bucket this long"})

    def __post_init__(self) -> None:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) > 1 and given not in (["tau", "bits"], ["tau", "psnr"]):
            raise ConfigError(
                f"{' and '.join(given)} contradict each other; a video has one budget, so give one of them",
                about=tuple(given),
            )
        _check("tau", self.tau, lambda v: 0 <= v <= LARGEST_TAU, f"a distance, from 0 to {LARGEST_TAU:g}")
        _check("keep", self.keep, lambda v: 0 < v <= 1, "a share of the cells, above 0 and at most 1")
        _check("tokens", self.tokens, lambda v: v >= 1, "a number of tokens, 1 or more", whole=True)
        _check("bits", self.bits, lambda v: 0 < v < math.inf, "bits a pixel, above 0 and finite")
        _check("psnr", self.psnr, lambda v: 0 < v <= 100, "decibels, above 0 and at most 100")
        _check(
            "bucket_seconds", self.bucket_seconds, lambda v: 0 < v < math.inf, "a time in seconds, above 0 and finite"
        )
        if self.exact and self.keep is None:
            raise ConfigError(
                "exact makes a keep rate an exact count; give one (a number of tokens is exact by itself)",
                about=("exact", "keep"),
            )
        if self.bucket_seconds is not None and self.keep is None and self.bits is None:
            raise ConfigError(
                "a bucket steers towards a rate; give a keep rate or bits with it",
                about=("bucket_seconds", "keep", "bits"),
            )
        if self.tau is not None and self.bucket_seconds is not None:
            raise ConfigError(
                "a bucket steers tau, which therefore cannot be fixed; give one of them",
                about=("tau", "bucket_seconds"),
            )
        if self.exact and self.bucket_seconds is not None:
            raise ConfigError(
                "exact counts the whole video and a bucket steers without knowing it; give one of them",
                about=("exact", "bucket_seconds"),
            )

    @property
    def kind(self) -> str:
        return next((kind for kind in KINDS if kind != "tau" and getattr(self, kind) is not None), "tau")

    @property
    def asked(self) -> float:
        """The number that stands for its kind; 0 for the model's own tau."""
        asked: float = getattr(self, self.kind) or 0.0
        return asked

    @property
    def causal(self) -> bool:
        """Can be kept without having seen the whole video."""
        return self.kind == "tau" or self.bucket_seconds is not None


def _check(name: str, value: float | None, ok: Callable[[float], bool], wanted: str, *, whole: bool = False) -> None:
    if value is not None:
        check_number(name, value, wanted, ok, whole=whole)


class Income(NamedTuple):
    """What a slot, or several, earn in their time."""

    credit: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Credit saved, in cells or in bits: a slot earns its income and pays its cost. Credit beyond the size is lost.

    Only a key slot, which is kept whole, can bring a stream into debt. The slots after it put a share of their income
    by until the debt is paid and a reserve stands ready for the next key slot; then all of it is theirs.
    """

    size: float
    reserve: float = 0.0  # credit that only a key slot may take
    saving: float = 0.0  # share of their income that slots put by while the level is below the reserve
    level: float = 0.0
    lowest: float = 0.0
    earned: float = 0.0
    spent: float = 0.0
    seconds: float = 0.0
    ahead_until: float = 0.0  # the second up to which spending was ahead of earning

    def __post_init__(self) -> None:
        if not 0 < self.size < math.inf:
            raise ConfigError(f"a bucket has a size above 0; got {self.size}")

    def tau(self, tau: float) -> float:
        """Credit beyond the reserve lowers tau: a function of the level alone."""
        return tau * math.exp(-STRENGTH * max(self.level - self.reserve, 0.0) / self.size)

    def allowed(self, income: float, debt: float = 0.0) -> float:
        """The most that slots with this income may cost; `debt` more where a key slot is among them."""
        least = min(self.reserve, self.level - debt + self.saving * income)  # the level to leave
        return self.level + income - least

    def room(self, income: float, price: float) -> int:
        """How many tokens at `price` the next slot may keep."""
        return max(0, math.floor(self.allowed(income) / price * (1 + 1e-12)))

    def after(self, income: Income, cost: float) -> Bucket:
        level, earned = min(self.level + income.credit - cost, self.size), self.earned + income.credit
        seconds = self.seconds + income.seconds
        return replace(
            self,
            level=level,
            lowest=min(self.lowest, level),
            earned=earned,
            spent=self.spent + cost,
            seconds=seconds,
            ahead_until=seconds if self.spent + cost > earned * (1 + 1e-9) else self.ahead_until,
        )

    def learnt(self, debt: float, income: float) -> Bucket:
        """After a key chunk that took the level down by `debt`: as much is put by as pays it back in time."""
        needed = max(debt, -self.level, 0.0)
        saving = max(self.saving, min(needed / max(self.size - income, 1e-9), 1.0))
        return replace(self, saving=saving, reserve=min(max(self.reserve, debt), self.size) if self.reserve else 0.0)

    @property
    def peak(self) -> float:
        """How far spending has been ahead of earning, at worst."""
        return max(0.0, -self.lowest)

    @property
    def overshoot(self) -> float:
        """How much more than its income the stream has spent so far, as a share of it; negative when it spent less."""
        return self.spent / self.earned - 1 if self.earned else 0.0
