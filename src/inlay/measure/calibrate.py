# SPDX-License-Identifier: Apache-2.0
"""Profile a backbone from the latents of clips: statistics, score distribution, and which tau keeps how much.

Legend: B batch, K thresholds, C channels, T slots, H W grid. One pass over the clips, one clip in memory: every
threshold of a fixed ladder runs its own last-kept scan, for the scores depend on what was kept.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from inlay.backbones import BackboneSpec
from inlay.errors import ShapeError, UsageError
from inlay.masking import MaskConfig, Profile, scored_scan
from inlay.types import describe

LADDER = 56  # thresholds, each an eighth above the one before
BINS = 128  # of the score histogram
LOWEST, HIGHEST = 0.005, 4.0  # of the ladder, in mean standard deviations of the latents


class Moments:
    """Mean and standard deviation of each channel, from sums in float64."""

    def __init__(self, channels: int) -> None:
        self.count = 0
        self.total_C, self.square_C = torch.zeros(2, channels, dtype=torch.float64)

    def add(self, z_BCTHW: Tensor) -> None:
        z_CN = z_BCTHW.double().transpose(0, 1).flatten(1).cpu()
        self.count += z_CN.shape[1]
        self.total_C += z_CN.sum(1)
        self.square_C += z_CN.square().sum(1)

    @property
    def mean_C(self) -> Tensor:
        return self.total_C / max(self.count, 1)

    @property
    def std_C(self) -> Tensor:
        return (self.square_C / max(self.count, 1) - self.mean_C.square()).clamp_min(0).sqrt()


class Calibration:
    """What was seen so far of a backbone's latents: `update` with the clips, then `finish`."""

    def __init__(self, spec: BackboneSpec) -> None:
        """The ladder of thresholds stands on the scale that the backbone states for its latents."""
        self.spec, scale = spec, sum(spec.latent_std) / len(spec.latent_std)
        self.taus_K = scale * torch.logspace(math.log10(LOWEST), math.log10(HIGHEST), LADDER, dtype=torch.float64)
        self.edges = torch.linspace(0, HIGHEST * scale, BINS + 1, dtype=torch.float64)  # the last bin takes all above
        self.counts_KN = torch.zeros(LADDER, BINS, dtype=torch.float64)
        self.kept_K, self.total_K, self.square_K = torch.zeros(3, LADDER, dtype=torch.float64)
        self.first, self.later = Moments(spec.channels), Moments(spec.channels)  # slot 0 sees one frame
        self.clips = self.cells = 0
        self.scores = 0  # of each threshold: cells after slot 0

    @torch.no_grad()
    def update(self, z_BCTHW: Tensor) -> None:
        """Add the latents of whole clips, each beginning with its slot 0."""
        spec = self.spec
        if z_BCTHW.ndim != 5 or z_BCTHW.shape[1] != spec.channels:
            raise ShapeError(f"{spec.name} has latents [B, {spec.channels}, T, H, W]; got {describe(z_BCTHW)}")
        self.first.add(z_BCTHW[:, :, :1])
        self.later.add(z_BCTHW[:, :, 1:])
        self.clips += len(z_BCTHW)
        self.cells += z_BCTHW[:, 0].numel()
        for z_CTHW in z_BCTHW.float():
            keep_KTHW, score_KTHW = score_scan(z_CTHW, self.taus_K)
            values_KM = score_KTHW.flatten(1).double().cpu()
            self.kept_K += keep_KTHW.flatten(1).sum(1).double().cpu()
            self.scores += values_KM.shape[1]
            self.total_K += values_KM.sum(1)
            self.square_K += values_KM.square().sum(1)
            self.counts_KN += _histogram(values_KM, self.edges)

    def finish(self, *, data: str = "") -> Profile:
        """The profile; its tau is the threshold that equals the mean of the scores it gives rise to (tau = mu)."""
        if not self.scores:
            raise UsageError("calibration needs clips of at least two slots; give longer videos")
        mean_K = self.total_K / self.scores
        std_K = (self.square_K / self.scores - mean_K.square()).clamp_min(0).sqrt()
        tau, place = fixed_point(self.taus_K, mean_K)
        counts_N = self.counts_KN[min(round(place), LADDER - 1)]
        moments = {
            "latent_mean": self.later.mean_C, "latent_std": self.later.std_C, "first_mean": self.first.mean_C,
            "first_std": self.first.std_C, "taus": self.taus_K, "keep_rates": self.kept_K / self.cells,
            "score_edges": self.edges,
        }  # fmt: skip
        return Profile(
            backbone=self.spec.name, weight_hash=self.spec.weight_hash, data=data, clips=self.clips,
            tau=float(f"{tau:.3g}"),  # three digits: a threshold is set by people and printed in tables
            score_mean=_at(mean_K, place), score_std=_at(std_K, place),
            score_counts=tuple(int(n) for n in counts_N.tolist()),
            **{name: tuple(numbers.tolist()) for name, numbers in moments.items()},
        )  # fmt: skip


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
