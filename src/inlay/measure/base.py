# SPDX-License-Identifier: Apache-2.0
"""What a metric is: a gauge that reads one pair of videos, and a rule that turns the readings of a set into a score.

Legend: T frames, H W height and width; frames enter as uint8 [T, H, W, 3], as a file holds them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from inlay.errors import ConfigError
from inlay.measure.statistics import bootstrap_interval

T = TypeVar("T")
_known: Any = WeakTensorKeyDictionary()  # tensor -> {name: what was computed}; an entry goes when its tensor does


@dataclass(frozen=True, kw_only=True)
class MeasureConfig:
    """Choices that change a number; each score's convention names them."""

    device: str = field(default="cpu", metadata={"help": "where the networks and filters run"})
    flow: str = field(default="dis", metadata={"help": "optical flow of the flicker metric: dis or raft"})
    static_pixels: float = field(default=0.5, metadata={"help": "flow below this many pixels a frame counts as static"})
    fvd_frames: int = field(default=300, metadata={"help": "frames of a video that enter its FVD feature"})
    seed: int = field(default=0, metadata={"help": "seed of the resampling behind the intervals"})

    def __post_init__(self) -> None:
        if not self.static_pixels > 0:
            raise ConfigError(f"static_pixels is a length in pixels, above 0; got {self.static_pixels}")
        if self.fvd_frames < 9:
            raise ConfigError(f"fvd_frames must be at least 9, the fewest I3D can read; got {self.fvd_frames}")
        _check_device(self.device)


def _check_device(name: str) -> None:
    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        raise ConfigError(f"unknown device {name!r}; use cpu, cuda or cuda:N") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r} is asked for, but torch finds no CUDA device here; use cpu")


def full_precision(device: torch.device | str) -> AbstractContextManager[None]:
    """Convolutions in float32 proper, unless the environment asks for the shortened TF32 of recent GPUs.

    TF32 moves LPIPS by 4e-5 (emulated on DAVIS frames against blurred ones); what it does to FVD was not measured.
    """
    if torch.device(device).type != "cuda":
        return nullcontext()
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=short_products())


def short_products() -> bool:
    """Whether INLAY_METRICS_TF32=1: where minutes of a GPU count more than the last digits."""
    return os.environ.get("INLAY_METRICS_TF32", "") == "1"


class Gauge(Protocol):
    """Reads one pair of videos: made anew for it, `update` for each piece, then `finish`."""

    def __init__(self, config: MeasureConfig) -> None:
        """Raises MissingError where weights or a package are absent."""

    def update(self, reference_THWC: Tensor, other_THWC: Tensor) -> None: ...

    def finish(self) -> dict[str, Any]:
        """Readings by key: numbers, or features of both videos."""
        ...


@dataclass(frozen=True, kw_only=True)
class Score:
    """One number, with the interval around it and the convention it follows."""

    value: float
    low: float | None  # 95 % interval; None where one video or none gives no spread
    high: float | None
    videos: int
    unit: str
    better: str  # "higher" or "lower"
    convention: str

    def record(self) -> dict[str, Any]:
        """Plain JSON: a number that is not finite becomes null."""
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}


def mean_interval(readings: Sequence[Any], config: MeasureConfig) -> tuple[float, float | None, float | None]:
    """Mean over videos with its bootstrap interval; a video without a reading (NaN) is left out."""
    values = [v for v in readings if not math.isnan(v)]
    if not values:
        return math.nan, None, None
    if len(values) < 2:
        return values[0], None, None
    return fmean(values), *bootstrap_interval(values, seed=config.seed)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A row of the table METRICS."""

    gauge: type[Gauge]
    key: str  # which of the gauge's readings
    unit: str
    better: str
    convention: str  # may name settings in braces, as {flow}
    per_video: bool = True  # False: the readings are features, and only a set of videos has a score
    summarise: Callable[[Sequence[Any], MeasureConfig], tuple[float, float | None, float | None]] = mean_interval

    def score(self, readings: Sequence[Any], config: MeasureConfig) -> Score:
        value, low, high = self.summarise(readings, config)
        used = sum(not math.isnan(r) for r in readings) if self.per_video else len(readings)
        return Score(
            value=value, low=low, high=high, videos=used, unit=self.unit, better=self.better,
            convention=self.convention.format(**asdict(config)),
        )  # fmt: skip


def remember(x: Tensor) -> Tensor:
    """The same tensor, marked: what metrics compute of it alone is kept. It must not be written to afterwards."""
    if x not in _known:
        _known[x] = {}
    return x


def is_remembered(x: Tensor) -> bool:
    return x in _known


def recall(x: Tensor, name: Hashable, compute: Callable[[], T]) -> T:
    """What `compute` gives; of a marked tensor, what it gave the first time."""
    if not is_remembered(x):
        return compute()
    known = _known[x]
    if name not in known:
        known[name] = compute()
    return known[name]
