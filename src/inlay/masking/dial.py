# SPDX-License-Identifier: Apache-2.0
"""One dial for two settings: the pairs of tau and step that cost the fewest bits for their quality, finest first.

A place on the dial is a positive number, so that one search turns it as it turns tau: the first pair stands at 1, the
next at 2, then 4, and so on. Between pairs both settings move in proportion; beyond the last both double with the
place, before the first both shrink with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inlay.masking.budget import LARGEST_TAU, Budget

BEYOND = 4.0  # how far steps go on, finer than the first pair's and coarser than the last one's


@dataclass(frozen=True, kw_only=True)
class Dial:
    """Pairs, and the bits a pixel and decibels that they gave when they were measured."""

    taus: tuple[float, ...]
    steps: tuple[float, ...]
    bits: tuple[float, ...]
    psnr: tuple[float, ...]

    def at(self, place: float) -> tuple[float, float]:
        """(tau, step); at place 0 every cell is kept, and the step is the finest."""
        if place == 0:
            return 0.0, self.steps[0] / BEYOND
        last, index = len(self.taus) - 1, math.log2(place)
        near = min(max(index, 0.0), float(last))
        scale = math.pow(2.0, min(index - near, 128.0))
        tau = _between(self.taus, near) * scale
        step = math.exp(_between([math.log(step) for step in self.steps], near)) * min(max(scale, 1 / BEYOND), BEYOND)
        return min(tau, LARGEST_TAU), float(f"{step:.6g}")

    def place_of(self, budget: Budget) -> float:
        """Where these bits, or this PSNR, were measured."""
        if budget.kind == "psnr":
            return self._place(self.psnr, budget.asked)
        return self._place([math.log(bits) for bits in self.bits], math.log(budget.asked))

    def _place(self, falling: Sequence[float], wanted: float) -> float:
        for index in range(len(falling) - 1):
            above, below = falling[index], falling[index + 1]
            if wanted > below:
                return math.pow(2.0, index + min(max((above - wanted) / (above - below), 0.0), 1.0))
        return math.pow(2.0, len(falling) - 1)


def _between(values: Sequence[float], index: float) -> float:
    low = min(int(index), max(len(values) - 2, 0))
    share = index - low
    return values[low] if not share else (1 - share) * values[low] + share * values[low + 1]


def best_pairs(points: Sequence[tuple[float, float, float, float]]) -> Dial | None:
    """The dial of measured (tau, step, bits, psnr): those on the upper hull of decibels over bits, finest first.

    Only pairs that coarsen both settings, or one of them, from the pair before are taken: so on another video, too,
    bits fall as the dial is turned. None where no pair drops a cell, and there is nothing to turn in the end.
    """
    hull: list[tuple[float, float, float, float]] = []
    for point in sorted(points, key=lambda p: (p[2], -p[3])):
        if hull and point[3] <= hull[-1][3]:
            continue  # more bits and no better
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-2], point):
            hull.pop()
        hull.append(point)
    chain: list[tuple[float, float, float, float]] = []
    for point in reversed(hull):
        if not chain or (point[0] >= chain[-1][0] and point[1] >= chain[-1][1]):
            chain.append(point)
    if not chain or chain[-1][0] == 0:
        return None
    taus, steps, bits, psnr = zip(*chain, strict=True)
    return Dial(taus=taus, steps=steps, bits=bits, psnr=psnr)


def _slope(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> float:
    return (b[3] - a[3]) / (b[2] - a[2])
