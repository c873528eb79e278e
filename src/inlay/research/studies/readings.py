# SPDX-License-Identifier: Apache-2.0
"""What each metric reads of a clip and its reconstruction, and the readings of a set as one score."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inlay.errors import UsageError, pick
from inlay.measure import METRICS, MeasureConfig, Metric, Score
from inlay.measure.meter import GaugeRun
from inlay.video.frames import Video

QUICK = ("psnr", "psnr-video", "ssim", "error-level")  # seconds a clip on a CPU
PAPER = (*QUICK, "lpips", "fvd", "kvd")
TOO_FEW = "it compares sets of at least 2 clips, and 1 has a reading"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What was read of one pair: numbers by metric, features as text, and why something is missing."""

    values: dict[str, float] = field(default_factory=dict)
    features: str | None = None  # [2, 400] float32 of reference and other, base64
    missing: dict[str, str] = field(default_factory=dict)  # this clip has no such number
    unavailable: dict[str, str] = field(default_factory=dict)  # weights or a package were not there

    def lacks(self, metrics: Iterable[str]) -> tuple[str, ...]:
        """Metrics that were not tried on this clip, or that could not run at the time."""
        return tuple(
            name
            for name in metrics
            if name not in self.missing and (self.features is None if is_set(name) else name not in self.values)
        )

    def merged(self, later: Reading) -> Reading:
        """Both; what was read later stands."""
        values = {**self.values, **later.values}
        features = later.features or self.features
        gone = {**self.unavailable, **later.unavailable}
        gone = {k: v for k, v in gone.items() if (features is None if is_set(k) else k not in values)}
        return Reading(values=values, features=features, missing={**self.missing, **later.missing}, unavailable=gone)


def is_set(metric: str) -> bool:
    """FVD and KVD: only a set of clips has a value."""
    return not pick("metric", metric, METRICS).per_video


def choose_metrics(names: str, device: str) -> tuple[str, ...]:
    """`auto`: the paper's on a GPU, the quick ones on a CPU; `all`; or names with commas between."""
    if names == "auto":
        return PAPER if torch.device(device).type == "cuda" else QUICK
    chosen = {"all": tuple(METRICS), "paper": PAPER, "quick": QUICK}.get(names)
    chosen = chosen or tuple(dict.fromkeys(n.strip() for n in names.split(",") if n.strip()))
    if not chosen:
        raise UsageError("no metric is named; give auto, quick, paper, or names with commas between", about="metrics")
    for name in chosen:
        pick("metric", name, METRICS)
    return chosen


def read_pair(reference: Video, other: Video, metrics: Sequence[str], config: MeasureConfig) -> Reading:
    """Each metric on its own: one that cannot run does not cost the others."""
    rows = {name: pick("metric", name, METRICS) for name in metrics}
    run = GaugeRun(rows.values(), config)
    run.update(reference.frames.to(config.device), other.frames.to(config.device))
    found, values, features = run.finish(), {}, None
    missing = {name: run.failed[row.gauge] for name, row in rows.items() if row.gauge in run.failed}
    for name, row in rows.items():
        value = found[row.gauge][row.key] if row.gauge in found else None
        if value is not None and not row.per_video:
            features = pack(value)
        elif value is not None and math.isfinite(value):
            values[name] = float(value)
        elif value is not None:
            missing[name] = "no pixel of this kind"
    return Reading(values=values, features=features, missing=missing, unavailable=_unavailable(rows, run))


def why_unavailable(metrics: Iterable[str], config: MeasureConfig) -> dict[str, str]:
    """Metrics that cannot run here, each with the reason, before anything is measured."""
    rows = {name: pick("metric", name, METRICS) for name in metrics}
    return _unavailable(rows, GaugeRun(rows.values(), config))


def _unavailable(rows: dict[str, Metric], run: GaugeRun) -> dict[str, str]:
    return {name: run.unavailable[row.gauge] for name, row in rows.items() if row.gauge in run.unavailable}


def score_set(readings: Sequence[Reading], metric: str, config: MeasureConfig) -> Score | None:
    """The score of a set with its interval; None where no clip has a reading (or too few for a distance)."""
    row = pick("metric", metric, METRICS)
    found: list[Any] = (
        [unpack(r.features) for r in readings if r.features]
        if is_set(metric)
        else [r.values[metric] for r in readings if metric in r.values]
    )
    try:
        return row.score(found, config) if found else None
    except UsageError:
        return None


def pack(features: Tensor) -> str:
    return base64.b64encode(features.float().cpu().numpy().astype("<f4").tobytes()).decode()


def unpack(text: str) -> Tensor:
    """[2, 400] float64."""
    array = np.frombuffer(base64.b64decode(text), "<f4").astype(np.float64)
    return torch.from_numpy(array.reshape(2, -1))
