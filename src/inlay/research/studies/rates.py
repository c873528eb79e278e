# SPDX-License-Identifier: Apache-2.0
"""Rate against distortion on one clip: what another curve needs for the same quality, and the mean over all of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from inlay.errors import UsageError, require

EXACT, AT_LEAST, AT_MOST = "", "at least", "at most"


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Bits a pixel and decibels of one system on one clip, both rising."""

    bits: tuple[float, ...]
    psnr: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.bits) != len(self.psnr):
            raise UsageError(f"a curve has as many rates as qualities; got {len(self.bits)} and {len(self.psnr)}")

    @classmethod
    def of(cls, points: Iterable[tuple[float, float]]) -> Curve:
        """From (bits, dB) in any order, without points that cost more than another and are no better.

        >>> Curve.of([(0.2, 30.0), (0.1, 28.0), (0.15, 27.5)])
        Curve(bits=(0.1, 0.2), psnr=(28.0, 30.0))
        """
        kept: list[tuple[float, float]] = []
        for bits, psnr in sorted(points, key=lambda p: (p[0], -p[1])):
            if not kept or psnr > kept[-1][1]:
                kept.append((bits, psnr))
        return cls(bits=tuple(b for b, _ in kept), psnr=tuple(q for _, q in kept))


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times the bits of another curve; a bound where the point lies beside that curve."""

    times: float
    kind: str = EXACT
    nearest: float = math.nan  # dB of the curve's end, where the point lies beyond it


def times_the_bits(bits: float, psnr: float, theirs: Curve) -> Ratio:
    """A point against what the other curve needs for the same decibels; the log of its rate is interpolated linearly.

    Below its worst point the other needs no more than there, above its best no less: these are bounds.

    >>> curve = Curve(bits=(0.1, 0.4), psnr=(25.0, 35.0))
    >>> round(times_the_bits(0.4, 30.0, curve).times, 6)
    2.0
    >>> times_the_bits(0.2, 20.0, curve)
    Ratio(times=2.0, kind='at least', nearest=25.0)
    """
    if psnr < theirs.psnr[0]:
        return Ratio(times=bits / theirs.bits[0], kind=AT_LEAST, nearest=theirs.psnr[0])
    if psnr > theirs.psnr[-1]:
        return Ratio(times=bits / theirs.bits[-1], kind=AT_MOST, nearest=theirs.psnr[-1])
    return Ratio(times=bits / math.exp(float(np.interp(psnr, theirs.psnr, np.log(theirs.bits)))))


def bd_rate(ours: Curve, theirs: Curve) -> float | None:
    """Bjontegaard's mean difference of bits at equal quality, as a share of theirs; None where curves share no quality.

    Between points by piecewise cubic Hermite polynomials, as the standards' bodies do it.
    """
    library = require("bjontegaard", extra="measure")
    if min(len(ours.bits), len(theirs.bits)) < 2:
        return None
    if min(ours.psnr[-1], theirs.psnr[-1]) <= max(ours.psnr[0], theirs.psnr[0]):
        return None
    percent = library.bd_rate(
        theirs.bits, theirs.psnr, ours.bits, ours.psnr, method="pchip", require_matching_points=False, min_overlap=0
    )
    return float(percent) / 100
