# SPDX-License-Identifier: Apache-2.0
"""Which tau and which step go together: store, fill and decode a few clips at many pairs of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from inlay.codec import EncodeConfig, Parts, VideoEncoder, encode_clip, gather
from inlay.codec.decoder import Decoder
from inlay.codec.quality import mean_psnr
from inlay.container import as_stored, to_bytes
from inlay.masking import OWN, Budget, MaskConfig, Profile, keep_mask
from inlay.video.frames import Video

CLIPS = 4  # calibration clips that are decoded
SIDE = 128  # of the square in their middle that is
KEEP_RATES = (0.7, 0.45, 0.3, 0.2)  # beside every cell, and what the default tau keeps
STEPS = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, 11.0, 16.0)
COARSE = STEPS[1::2]  # as many as are needed to see which pairs are best
MOST_LOSS_DB = 0.5  # of the default step at the default tau, against steps from the deviations; the fill loses more
CACHE_LOSS_DB = 0.2  # the same of the step of caches, which keep every cell
THIN_KEEP = 0.2  # share of the cells with which it is found out whether key slots are better thinned out


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two settings, and what a clip stored with them costs and looks like."""

    tau: float
    step: float | None  # None: from the deviations
    bits: float  # a pixel
    psnr: float


def pairs(profile: Profile) -> list[tuple[float, float | None]]:
    """All that are measured: the default tau and every cell with every step, other taus with every second one."""
    whole = [(tau, step) for tau in (profile.tau, 0.0) for step in (None, *STEPS)]
    return whole + [(tau_of_keep(profile, rate), step) for rate in KEEP_RATES for step in COARSE]


def tau_of_keep(profile: Profile, rate: float) -> float:
    """The smallest tau of the profile's table that keeps no more than this share."""
    return next((tau for tau, kept in zip(profile.taus, profile.keep_rates, strict=True) if kept <= rate), profile.tau)


def measure_clip(parts: Parts, profile: Profile, clip: Video) -> list[Pair]:
    """Every pair on one clip: encoded once, stored and decoded for each of them."""
    clip = middle(clip)
    chunk, found = encode_clip(parts, clip), []
    for tau, step in pairs(profile):
        config = EncodeConfig(mode="clips", cuts=False, step=OWN if step is None else step)
        recipe = config.recipe(parts.spec, tau=tau, fill=parts.filler.default, profile=profile)
        tokens = gather(chunk, keep_mask(chunk.z_BCTHW, MaskConfig(tau=tau)), recipe)
        psnr = mean_psnr([clip], Decoder(parts).decode([as_stored(tokens)]))
        bits = 8 * len(to_bytes(tokens)) / (len(clip) * clip.height * clip.width)
        found.append(Pair(tau=tau, step=step, bits=bits, psnr=psnr))
    return found


def gain_of_thin(parts: Parts, clip: Video) -> float:
    """Decibels that a clip gains at one number of tokens when key slots are thinned out."""
    clip, found = middle(clip), []
    slots, rows, columns = encode_clip(parts, clip).z_BCTHW.shape[2:]
    tokens = rows * columns * max(1.0, THIN_KEEP * slots)  # a whole key slot must be possible
    for key_slots in ("whole", "thin"):
        config = EncodeConfig(mode="clips", cuts=False, key_slots=key_slots)
        encoder = VideoEncoder(parts, config, budget=Budget(tokens=int(tokens)))
        found.append(mean_psnr([clip], Decoder(parts).decode(map(as_stored, encoder.encode([clip])))))
    return found[1] - found[0]


def middle(clip: Video) -> Video:
    top, left = max(0, (clip.height - SIDE) // 2), max(0, (clip.width - SIDE) // 2)
    return replace(clip, frames=clip.frames[:, top : top + SIDE, left : left + SIDE].contiguous())


def mean_pairs(clips: Sequence[Sequence[Pair]]) -> list[Pair]:
    """The means over clips, pair by pair."""
    return [
        replace(
            same[0],
            bits=math.fsum(pair.bits for pair in same) / len(same),
            psnr=math.fsum(pair.psnr for pair in same) / len(same),
        )
        for same in zip(*clips, strict=True)
    ]


def default_step(tau: float, found: Sequence[Pair], loss_db: float = MOST_LOSS_DB) -> float | None:
    """The coarsest step that loses no more than is allowed at this tau; None if it saves no bits."""
    own, *stepped = [pair for pair in found if pair.tau == tau][: 1 + len(STEPS)]
    least = own.psnr - loss_db
    good = [pair for pair in stepped if pair.psnr >= least]
    if not good:
        return None
    best = max(good, key=lambda pair: pair.step or 0.0)
    coarser = [pair for pair in stepped if (pair.step or 0.0) > (best.step or 0.0)]
    step, bits = best.step or 0.0, best.bits
    if coarser:  # the loss grows with the step's logarithm, near enough
        share = (best.psnr - least) / max(best.psnr - coarser[0].psnr, 1e-9)
        share = min(max(share, 0.0), 1.0)
        step *= ((coarser[0].step or step) / step) ** share
        bits *= (coarser[0].bits / bits) ** share
    return float(f"{step:.2g}") if bits < own.bits else None
