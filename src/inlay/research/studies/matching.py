# SPDX-License-Identifier: Apache-2.0
"""Latents of a data set and a keep rate in, the threshold that gives it out: bisection over latents, no decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inlay.errors import ConfigError
from inlay.masking import MaskConfig, keep_mask, keep_rate_of, nearest_tau, pixel_grid
from inlay.research.studies.datasets import DataSet
from inlay.research.studies.evaluate import Bench, Tell
from inlay.research.studies.records import Store, make_key
from inlay.research.studies.rules import Setting


@dataclass(frozen=True, kw_only=True)
class Signal:
    """What a threshold is laid on, for each clip: latents, or pixels pooled onto their grid."""

    latents: tuple[Tensor, ...]
    pooled: tuple[Tensor, ...]

    def keep_rate(self, tau: float, criterion: str, reference: str) -> float:
        """Mean over clips, as tables give it."""
        plain = criterion == "pixel-l1"
        config = MaskConfig(tau=tau, criterion="latent-l1" if plain else criterion, reference=reference)
        rates = [keep_rate_of(keep_mask(z, config)) for z in (self.pooled if plain else self.latents)]
        return sum(rates) / len(rates)


@torch.inference_mode()
def read_signal(bench: Bench, data: DataSet, tell: Tell = lambda line: None) -> Signal:
    """Encode every clip once; a clip of 33x256x256 holds about 0.7 MB."""
    latents, pooled = [], []
    for number, clip in enumerate(data.clips, 1):
        tell(f"matching: {data.name} {number}/{len(data)}: {clip.name}")
        scene = bench.scene(clip)
        _, _, t, h, w = scene.z_BCTHW.shape
        latents.append(scene.z_BCTHW.cpu())
        pooled.append(pixel_grid(scene.x_BCTHW, (t, h, w)).cpu())
    return Signal(latents=tuple(latents), pooled=tuple(pooled))


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
    """Thresholds of a data set at wanted keep rates; found once, kept in the store, latents read when first needed."""

    def __init__(self, bench: Bench, store: Store, data: DataSet, tell: Tell = lambda line: None) -> None:
        self.bench, self.store, self.data, self.tell = bench, store, data, tell
        self._signal: Signal | None = None

    @property
    def signal(self) -> Signal:
        if self._signal is None:
            self._signal = read_signal(self.bench, self.data, self.tell)
        return self._signal

    def natural_rate(self) -> float:
        """The keep rate of ours at its own threshold."""
        return self._kept("rate", {"tau": self.bench.tau})

    def tau(self, target: float, *, criterion: str = "latent-l1", reference: str = "last-kept") -> float:
        if (criterion, reference) == ("latent-l1", "last-kept") and abs(target - self.natural_rate()) < 1e-9:
            return self.bench.tau
        return self._kept("tau", {"target": target, "criterion": criterion, "reference": reference})

    def settings(self, targets: Sequence[float], **options: str) -> list[Setting]:
        """One setting of ours for each keep rate."""
        return [Setting(tau=self.tau(target), **options) for target in targets]  # type: ignore[arg-type]

    def _kept(self, kind: str, parts: dict[str, float | str]) -> float:
        spec = self.bench.tokenizer.spec
        key = make_key(kind=kind, data=self.data.digest, weights=spec.weight_hash, **parts)
        known = self.store.read_json(f"matching/{kind}-{key}.json")
        if known is not None and isinstance(known.get("value"), float):
            return known["value"]
        if kind == "rate":
            value = self.signal.keep_rate(self.bench.tau, "latent-l1", "last-kept")
        else:
            value = match_tau(
                self.signal,
                float(parts["target"]),
                criterion=str(parts["criterion"]),
                reference=str(parts["reference"]),
            )
        self.store.write_json(f"matching/{kind}-{key}.json", {"data": self.data.name, **parts, "value": value})
        return value
