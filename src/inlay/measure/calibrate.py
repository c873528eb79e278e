# SPDX-License-Identifier: Apache-2.0
"""Profile a backbone from the latents of clips: statistics, score distribution, and which tau keeps how much.

Legend: B batch, K thresholds, C channels, T slots, H W grid. One pass over the clips, one clip in memory: every
threshold of a fixed ladder runs its own last-kept scan, for the scores depend on what was kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from inlay.backbones import BackboneSpec
from inlay.errors import ShapeError, UsageError
from inlay.masking import MaskConfig, Profile, scored_scan
from inlay.types import describe

LADDER = 56  # thresholds, each an eighth above the one before
BINS = 128  # of the score histogram
LOWEST, HIGHEST = 0.005, 4.0  # of the ladder, in mean standard deviations of the latents


@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """Sum and sum of squares of each channel, in float64."""

    count: int = 0
    total_C: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))  # broadcast by the first sum
    square_C: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))

    def add(self, z_BCTHW: Tensor) -> Moments:
        z_CN = z_BCTHW.double().transpose(0, 1).flatten(1).cpu()
        return self + Moments(count=z_CN.shape[1], total_C=z_CN.sum(1), square_C=z_CN.square().sum(1))

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            count=self.count + other.count,
            total_C=self.total_C + other.total_C,
            square_C=self.square_C + other.square_C,
        )

    @property
    def power(self) -> float:
        """The mean square of all numbers."""
        return float(self.square_C.mean()) / max(self.count, 1)

    @property
    def mean(self) -> tuple[float, ...]:
        return tuple((self.total_C / max(self.count, 1)).tolist())

    @property
    def std(self) -> tuple[float, ...]:
        mean_C = self.total_C / max(self.count, 1)
        return tuple((self.square_C / max(self.count, 1) - mean_C.square()).clamp_min(0).sqrt().tolist())


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """What was seen so far: `start`, `update` for each batch of clips, `finish`."""

    spec: BackboneSpec
    taus_K: Tensor
    edges: Tensor  # [BINS + 1]; the last bin takes what lies above
    counts_KN: Tensor  # [K, BINS]
    kept_K: Tensor
    total_K: Tensor
    square_K: Tensor
    first: Moments = field(default_factory=Moments)  # slot 0, which sees one frame
    later: Moments = field(default_factory=Moments)  # the other slots
    clips: int = 0
    cells: int = 0  # of all slots
    scores: int = 0  # per threshold: cells after slot 0


def start(spec: BackboneSpec) -> Calibration:
    """The ladder of thresholds stands on the scale that the backbone states for its latents."""
    scale = sum(spec.latent_std) / len(spec.latent_std)
    taus_K = scale * torch.logspace(math.log10(LOWEST), math.log10(HIGHEST), LADDER, dtype=torch.float64)
    zeros_K = torch.zeros(LADDER, dtype=torch.float64)
    return Calibration(
        spec=spec,
        taus_K=taus_K,
        edges=torch.linspace(0, HIGHEST * scale, BINS + 1, dtype=torch.float64),
        counts_KN=torch.zeros(LADDER, BINS, dtype=torch.float64),
        kept_K=zeros_K,
        total_K=zeros_K,
        square_K=zeros_K,
    )


@torch.no_grad()
def update(state: Calibration, z_BCTHW: Tensor) -> Calibration:
    """Add the latents of whole clips, each beginning with its slot 0."""
    if z_BCTHW.ndim != 5 or z_BCTHW.shape[1] != state.spec.channels:
        raise ShapeError(f"{state.spec.name} has latents [B, {state.spec.channels}, T, H, W]; got {describe(z_BCTHW)}")
    first, later = state.first.add(z_BCTHW[:, :, :1]), state.later.add(z_BCTHW[:, :, 1:])
    cells = state.cells + z_BCTHW[:, 0].numel()
    state = replace(state, first=first, later=later, clips=state.clips + len(z_BCTHW), cells=cells)
    for z_CTHW in z_BCTHW.float():
        keep_KTHW, score_KTHW = score_scan(z_CTHW, state.taus_K)
        values_KM = score_KTHW.flatten(1).double().cpu()
        state = replace(
            state,
            kept_K=state.kept_K + keep_KTHW.flatten(1).sum(1).double().cpu(),
            scores=state.scores + values_KM.shape[1],
            total_K=state.total_K + values_KM.sum(1),
            square_K=state.square_K + values_KM.square().sum(1),
            counts_KN=state.counts_KN + _histogram(values_KM, state.edges),
        )
    return state


def score_scan(z_CTHW: Tensor, taus_K: Tensor) -> tuple[Tensor, Tensor]:
    """[K, T, H, W] what each threshold keeps, and [K, T-1, H, W] the scores it compared: Algorithm 1, K times."""
    limit_K = taus_K.to(device=z_CTHW.device, dtype=torch.float32)
    found = scored_scan(z_CTHW[None].expand(len(taus_K), -1, -1, -1, -1), MaskConfig(), tau=limit_K)
    return found.keep_BTHW, found.score_BTHW[:, 1:]


def _histogram(values_KM: Tensor, edges: Tensor) -> Tensor:
    bins = len(edges) - 1
    index_KM = (values_KM / edges[-1] * bins).long().clamp(0, bins - 1)
    counts = torch.zeros(len(values_KM), bins, dtype=torch.float64)
    return counts.scatter_add_(1, index_KM, torch.ones_like(values_KM))


def finish(state: Calibration, *, data: str = "") -> Profile:
    """The profile; its tau is the threshold that equals the mean of the scores it gives rise to (tau = mu)."""
    if not state.scores:
        raise UsageError("calibration needs clips of at least two slots; give longer videos")
    mean_K = state.total_K / state.scores
    std_K = (state.square_K / state.scores - mean_K.square()).clamp_min(0).sqrt()
    tau, place = fixed_point(state.taus_K, mean_K)
    nearest = min(round(place), LADDER - 1)
    return Profile(
        backbone=state.spec.name, weight_hash=state.spec.weight_hash, data=data, clips=state.clips,
        tau=float(f"{tau:.3g}"),  # three digits: a threshold is set by people and printed in tables
        score_mean=_at(mean_K, place), score_std=_at(std_K, place),
        taus=tuple(state.taus_K.tolist()), keep_rates=tuple((state.kept_K / state.cells).tolist()),
        latent_mean=state.later.mean, latent_std=state.later.std,
        first_mean=state.first.mean, first_std=state.first.std,
        score_edges=tuple(state.edges.tolist()),
        score_counts=tuple(int(n) for n in state.counts_KN[nearest].tolist()),
    )  # fmt: skip


def fixed_point(taus_K: Tensor, mean_K: Tensor) -> tuple[float, float]:
    """(tau, its place on the ladder) where the mean score equals the threshold; an end of the ladder where it does not.

    A higher threshold lets references grow older and scores larger, but more slowly than itself: one crossing.
    """
    gap_K = mean_K - taus_K
    below = (gap_K <= 0).nonzero().flatten()
    if len(below) == 0:
        return float(taus_K[-1]), float(len(taus_K) - 1)
    k = int(below[0])
    if k == 0:
        return float(taus_K[0]), 0.0
    share = float(gap_K[k - 1] / (gap_K[k - 1] - gap_K[k]))
    return _at(taus_K, k - 1 + share), k - 1 + share


def _at(values_K: Tensor, place: float) -> float:
    low = min(int(place), len(values_K) - 2)
    share = place - low
    return float((1 - share) * values_K[low] + share * values_K[low + 1])
