# SPDX-License-Identifier: Apache-2.0
"""Find the threshold that keeps a wanted share of a data set: bisection over its latents, no decoder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from inlay.errors import ConfigError
from inlay.masking import MaskConfig, keep_mask, keep_rate_of, nearest_tau, pixel_grid
from inlay.research.studies.datasets import DataSet
from inlay.research.studies.evaluate import Bench, Tell
from inlay.research.studies.records import Store, make_key


@dataclass(frozen=True, kw_only=True)
class Signal:
    """What a threshold is compared with, for each clip: latents, or pixels pooled onto their grid."""

    latents: tuple[Tensor, ...]
    pooled: tuple[Tensor, ...]

    def keep_rate(self, tau: float, criterion: str, reference: str) -> float:
        """Mean over clips, as tables give it."""
        plain = criterion == "pixel-l1"
        config = MaskConfig(tau=tau, criterion="latent-l1" if plain else criterion, reference=reference)
        rates = [keep_rate_of(keep_mask(z, config)) for z in (self.pooled if plain else self.latents)]
        return sum(rates) / len(rates)


def match_tau(signal: Signal, target: float, *, criterion: str = "latent-l1", reference: str = "last-kept") -> float:
    """The threshold whose keep rate over the set comes nearest to `target`.

    >>> still = Signal(latents=(torch.zeros(1, 2, 3, 4, 4),), pooled=())
    >>> match_tau(still, 1.0)
    0.0
    """
    if not 0 < target <= 1:
        raise ConfigError(f"a keep rate lies in (0, 1]; got {target}")
    return nearest_tau(lambda tau: signal.keep_rate(tau, criterion, reference), target).tau


class Matcher:
    """Thresholds of a data set at wanted keep rates: found once and stored; the clips are encoded when first needed."""

    def __init__(self, bench: Bench, store: Store, data: DataSet, tell: Tell = lambda line: None) -> None:
        self.bench, self.store, self.data, self.tell = bench, store, data, tell

    @cached_property
    def signal(self) -> Signal:
        """Every clip, encoded once; a clip of 33x256x256 holds about 0.7 MB."""
        latents, pooled = [], []
        for number, clip in enumerate(self.data.clips, 1):
            self.tell(f"matching: {self.data.name} {number}/{len(self.data)}: {clip.name}")
            with torch.inference_mode():
                scene = self.bench.scene(clip)
                _, _, t, h, w = scene.z_BCTHW.shape
                latents.append(scene.z_BCTHW.cpu())
                pooled.append(pixel_grid(scene.x_BCTHW, (t, h, w)).cpu())
        return Signal(latents=tuple(latents), pooled=tuple(pooled))

    def tau(self, target: float, *, criterion: str = "latent-l1", reference: str = "last-kept") -> float:
        """The stored threshold, or the bench's own where that keeps just as much."""
        own = self.bench.tau
        if (criterion, reference) == ("latent-l1", "last-kept"):
            rate = self._stored("rate", {"tau": own}) or self._store(
                "rate", {"tau": own}, self.signal.keep_rate(own, criterion, reference)
            )
            if abs(target - rate) < 1e-9:
                return own
        parts: dict[str, float | str] = {"target": target, "criterion": criterion, "reference": reference}
        known = self._stored("tau", parts)
        if known is not None:
            return known
        return self._store("tau", parts, match_tau(self.signal, target, criterion=criterion, reference=reference))

    def _file(self, kind: str, parts: dict[str, float | str]) -> str:
        weights = self.bench.tokenizer.spec.weight_hash
        return f"matching/{kind}-{make_key(kind=kind, data=self.data.digest, weights=weights, **parts)}.json"

    def _stored(self, kind: str, parts: dict[str, float | str]) -> float | None:
        value = (self.store.read_json(self._file(kind, parts)) or {}).get("value")
        return value if isinstance(value, float) else None

    def _store(self, kind: str, parts: dict[str, float | str], value: float) -> float:
        self.store.write_json(self._file(kind, parts), {"data": self.data.name, **parts, "value": value})
        return value
