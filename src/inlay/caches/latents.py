# SPDX-License-Identifier: Apache-2.0
"""Latents that are there already to tokens, through the codec, with no network; and how a cache is calibrated.

Legend: C channels, T slots, H W latent rows and columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from statistics import median_low
from typing import Any

import torch
from torch import Tensor

from inlay.backbones import BackboneSpec
from inlay.caches.base import MODELS, ClipFacts
from inlay.caches.holes import CacheError
from inlay.codec import Chooser, EncodeConfig, LatentChunk, Parts, WholeVideo
from inlay.codec.choose import choose_together
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError
from inlay.fill import Filler, hold
from inlay.masking import Budget
from inlay.measure import calibrate
from inlay.types import Span, VideoInfo

WEIGHTS_UNKNOWN = "of-a-cache"  # what stands for the hash: a cache does not say which weights made it
MOST_CALIBRATED = 16  # clips
FAR = 100  # times the usual size of a clip's latents: it is damaged, and says nothing of the others
_SCORED = 1 << 23  # numbers of a clip, times the ladder of thresholds, that calibration holds at once


@dataclass(frozen=True, kw_only=True, repr=False)
class LatentStatistics:
    """What a cache says of its own latents: stored once for the data set."""

    model: str
    mean: tuple[float, ...]  # of each channel
    std: tuple[float, ...]
    taus: tuple[float, ...]  # in deviations, increasing
    keep_rates: tuple[float, ...]  # that each gave
    losses: tuple[float, ...]  # how far the latents came back from what they were, as a share of their length
    clips: int
    cells: int

    def __repr__(self) -> str:
        return f"LatentStatistics({self.model}, {len(self.mean)} channels, {self.cells:,} cells)"

    @staticmethod
    def parse(record: dict[str, Any]) -> LatentStatistics:
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
        return LatentStatistics(**given)

    def tau_for(self, loss: float) -> float:
        """The largest threshold at which the latents came back this near."""
        fitting = [tau for tau, found in zip(self.taus, self.losses, strict=True) if found <= loss]
        return float(f"{max(fitting, default=0.0):.3g}")


def spec_of_model(name: str, std: tuple[float, ...] | None = None) -> BackboneSpec:
    """A backbone whose latents we have and whose network we have not."""
    model = MODELS[name]
    ones = (1.0,) * model.channels
    return BackboneSpec(
        name=name, channels=model.channels, time_stride=model.time_stride, space_stride=model.space_stride,
        causal=True, stateful=False, latent_mean=(0.0,) * model.channels, latent_std=std or ones,
        weight_hash=WEIGHTS_UNKNOWN, parameters=0, licence="that of the model",
    )  # fmt: skip


def statistics_of(model: str, clips: Iterable[Tensor]) -> LatentStatistics:
    """Mean and deviation of each channel, and what each threshold keeps and loses, from [C, T, H, W] of some clips."""
    looked_at = [(calibrate.Moments().add(z_CTHW[None]), window(z_CTHW.float())) for z_CTHW in clips]
    if not looked_at:
        raise CacheError("no file has latents that can be read and are finite numbers; make the cache again")
    usual = median_low(found.power for found, _ in looked_at)
    taken = [(found, part) for found, part in looked_at if not usual or found.power <= FAR**2 * usual]
    moments, parts = sum((found for found, _ in taken), calibrate.Moments()), [part for _, part in taken]
    std = tuple(max(s, 1e-6) for s in moments.std)
    taus_K = calibrate.start(spec_of_model(model)).taus_K
    kept_K, wrong_K, cells, power = torch.zeros_like(taus_K), torch.zeros_like(taus_K), 0, 0.0
    for z_CTHW in parts:
        kept, wrong = tried(z_CTHW, torch.tensor(std).view(-1, 1, 1, 1), taus_K)
        kept_K, wrong_K = kept_K + kept, wrong_K + wrong
        cells, power = cells + z_CTHW[0].numel(), power + float(z_CTHW.double().square().sum())
    if not bool(wrong_K.isfinite().all()):
        raise CacheError("the latents are too large to be measured; make the cache again")
    return LatentStatistics(
        model=model, mean=moments.mean, std=std, taus=tuple(taus_K.tolist()),
        keep_rates=tuple((kept_K / cells).tolist()), losses=tuple((wrong_K / max(power, 1e-30)).sqrt().tolist()),
        clips=len(parts), cells=moments.count,
    )  # fmt: skip


@torch.inference_mode()
def tried(z_CTHW: Tensor, std_C111: Tensor, taus_K: Tensor) -> tuple[Tensor, Tensor]:
    """[K] cells that each threshold keeps, and [K] the squared error when the last kept ones are held."""
    keep_KTHW, _ = calibrate.score_scan(z_CTHW / std_C111, taus_K)
    back_KCTHW = hold(z_CTHW.expand(len(taus_K), *z_CTHW.shape), keep_KTHW)
    return keep_KTHW.flatten(1).sum(1).double(), (back_KCTHW - z_CTHW).square().flatten(1).sum(1).double()


def window(z_CTHW: Tensor) -> Tensor:
    """The middle of a clip, small enough to be scanned with every threshold at once."""
    C, T, H, W = z_CTHW.shape
    side = max(8, math.isqrt(_SCORED // (C * T * calibrate.LADDER)))
    top, left = max(0, (H - side) // 2), max(0, (W - side) // 2)
    return z_CTHW[:, :, top : top + side, left : left + side].clone()


class NoNetwork:
    """Stands where a backbone would: the latents are there already."""

    def __init__(self, spec: BackboneSpec) -> None:
        self.spec = spec

    def encode(self, x_BCTHW: Tensor) -> Tensor:
        raise ConfigError(f"there is no network of {self.spec.name} here, only its latents")

    def decode(self, z_BCTHW: Tensor) -> Tensor:
        raise ConfigError(f"there is no network of {self.spec.name} here, only its latents")

    def to(self, *args: Any, **kwargs: Any) -> NoNetwork:
        return self


class LatentPacker:
    """Chooses and gathers the cells of clips. Change is measured in deviations of each channel."""

    def __init__(
        self, statistics: LatentStatistics, *, budget: Budget, criterion: str, reference: str, precision: str, fill: str
    ) -> None:
        spec = spec_of_model(statistics.model, statistics.std)
        self.spec, self.budget, self.model = spec, budget, MODELS[statistics.model]
        self.parts = Parts(NoNetwork(spec), filler=Filler(default=fill))
        self.config = EncodeConfig(
            mode="clips", chunk_frames=spec.frames(2), cuts=False, criterion=criterion, reference=reference,
            precision=precision, fill=fill,
        )  # fmt: skip
        self.scale_C111 = 1 / torch.tensor(statistics.std).view(-1, 1, 1, 1)
        self._chooser = Chooser(self.parts, self.config, budget) if budget.causal else None

    @torch.inference_mode()
    def tokens(self, z_CTHW: Tensor, facts: ClipFacts) -> Tokens:
        """The tokens of one clip, as one chunk."""
        z_BCTHW = z_CTHW.float()[None]
        if not all_finite(z_BCTHW):
            raise CacheError("has latents that are NaN or infinite; make it again")
        _, T, H, W = z_CTHW.shape
        frames, side = self.spec.frames(T), self.spec.space_stride
        fps = Fraction(facts.fps or self.model.fps).limit_denominator(100_000)
        chunk = LatentChunk(
            z_BCTHW=z_BCTHW, compared_BCTHW=z_BCTHW * self.scale_C111, span=Span(slots=T, frames=frames),
            info=VideoInfo(width=W * side, height=H * side, fps=fps, frames=frames), seconds=None,
            first=self.spec.first_slot_frames,
        )  # fmt: skip
        if self._chooser is not None:
            return choose_together([self._chooser], [chunk]).tokens()[0]
        with WholeVideo(self.parts, self.config) as video:
            video.add(chunk)
            return next(iter(video.solve(self.budget)))


def all_finite(z: Tensor) -> bool:
    """Told by the sum: NaN and infinite numbers do not get lost in it."""
    return math.isfinite(float(z.float().sum()))


def relative_error(z: Tensor, back: Tensor) -> float:
    """The length of the difference over the length of the latents."""
    lengths = [float(x.norm()) for x in (z.float(), back.float() - z.float())]
    if not all(map(math.isfinite, lengths)):  # the squares of huge numbers are beyond float32
        lengths = [float(x.norm()) for x in (z.double(), back.double() - z.double())]
    whole, wrong = lengths
    if not math.isfinite(whole + wrong):
        raise CacheError("has latents too large to come back as numbers: is it damaged? make it again")
    return wrong / whole if whole else 0.0
