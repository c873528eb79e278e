# SPDX-License-Identifier: Apache-2.0
"""Find the tau that meets a target: one bracketing search for counts, bits, keep rates and decibels.

What is searched for always falls as tau grows: a higher threshold keeps fewer cells, costs fewer bits, looks worse.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

CHEAP_TRIALS = 112  # of what needs latents alone
DECODES = 12  # of what needs the decoder
NEAR = 1e-6  # how close, relative to tau, the ends of a bracket may come


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A tau that was tried and found to grant the wish, what it gave, and how many were tried."""

    tau: float
    value: float
    trials: int


class Trial(NamedTuple):
    """A tau and what came of it."""

    tau: float
    value: float


class Reach(NamedTuple):
    """How far from its start a search goes, and by what factors while one side of the bracket is missing."""

    up: float
    down: float
    highest: float  # times the start
    lowest: float


CHEAP = Reach(up=2, down=4, highest=2.0**64, lowest=1e-6)
DEAR = Reach(up=2, down=3, highest=1000, lowest=1 / 1000)


class Bracket:
    """Two taus between which the target lies: at `below` the value is still over the target, at `above` no more."""

    def __init__(self, value: Callable[[float], float], over: Callable[[float], bool]) -> None:
        self.value, self.over = value, over
        self.below: Trial | None = None
        self.above: Trial | None = None
        self.trials: list[Trial] = []

    def attempt(self, tau: float) -> None:
        trial = Trial(tau, self.value(tau))
        self.trials.append(trial)
        if self.over(trial.value):
            self.below = trial
        else:
            self.above = trial

    def search(
        self,
        start: float,
        between: Callable[[Trial, Trial], float],
        done: Callable[[], bool],
        *,
        reach: Reach = CHEAP,
        most: int,
    ) -> None:
        """Narrow the bracket until it is `done`, nothing is left to try, or `most` were tried."""
        tau: float | None = start
        while tau is not None and len(self.trials) < most:
            self.attempt(tau)
            tau = None if done() else self.next(start, between, reach)

    def next(self, start: float, between: Callable[[Trial, Trial], float], reach: Reach) -> float | None:
        """The tau to try next; None where there is nothing left to try."""
        below, above = self.below, self.above
        if above is None:
            assert below is not None, "a trial is on one side or the other"
            return below.tau * reach.up if below.tau <= start * reach.highest else None
        if below is None:
            return above.tau / reach.down if above.tau >= start * reach.lowest else None
        tau = between(below, above)
        return tau if below.tau < tau < above.tau else None

    def narrow(self, share: float) -> bool:
        """Whether the ends lie within this share of each other."""
        if self.below is None or self.above is None:
            return False
        return self.above.tau - self.below.tau <= share * self.above.tau

    def solution(self, trial: Trial | None) -> Solution | None:
        return None if trial is None else Solution(tau=trial.tau, value=trial.value, trials=len(self.trials))


def smallest_tau(cost: Callable[[float], float], limit: float, *, start: float, slack: float = 0.0) -> Solution | None:
    """The smallest tau found whose cost is within `limit`, at most `slack` of it unused; None if no tau is.

    Every answer was itself tried, so the limit holds even where cost does not fall steadily with tau.
    """
    bracket = Bracket(cost, lambda value: value > limit)

    def done() -> bool:
        spent = bracket.above is not None and bracket.above.value >= limit * (1 - slack)
        return spent or bracket.narrow(NEAR)

    bracket.search(start, lambda below, above: math.sqrt(below.tau * above.tau), done, most=CHEAP_TRIALS)
    if bracket.above is not None and bracket.below is None and not done():
        bracket.attempt(0.0)  # every cell may be affordable
    return bracket.solution(bracket.above)


def largest_tau(
    quality: Callable[[float], float], target: float, *, start: float, slack: float = 0.05, most: int = DECODES
) -> Solution | None:
    """The largest tau found whose quality reaches `target`, by at most `slack` more; None if tau 0 does not reach it.

    Trials are dear (each is a decode), so the next tau is where a line through the last two in log tau meets the
    target, as long as that lies well inside the bracket.
    """
    bracket = Bracket(quality, lambda value: value >= target)

    def between(good: Trial, bad: Trial) -> float:
        share = (good.value - target) / max(good.value - bad.value, 1e-9)
        return good.tau * math.pow(bad.tau / good.tau, min(max(share, 0.1), 0.9))

    def done() -> bool:
        close = bracket.below is not None and bracket.below.value <= target + slack
        return close or bracket.narrow(0.01)

    bracket.search(start, between, done, reach=DEAR, most=most - 1)
    if bracket.below is None:
        bracket.attempt(0.0)
    return bracket.solution(bracket.below)


def nearest_tau(
    rate: Callable[[float], float], target: float, *, start: float = 1.0, tolerance: float = 1e-6, most: int = 50
) -> Solution:
    """The tau, among those tried, whose rate comes nearest to `target`; 0 counts as tried, and gives 1."""
    bracket = Bracket(rate, lambda value: value > target)

    def done() -> bool:
        return abs(bracket.trials[-1].value - target) < tolerance or bracket.narrow(1e-9)

    bracket.search(start, lambda below, above: (below.tau + above.tau) / 2, done, most=most)
    best = min([Trial(0.0, 1.0), *bracket.trials], key=lambda trial: abs(trial.value - target))
    return Solution(tau=best.tau, value=best.value, trials=len(bracket.trials))
