# SPDX-License-Identifier: Apache-2.0
"""Measure pairs of videos: a report has each metric with its convention, or the reason why it is missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from inlay.errors import InlayError, ShapeError, UsageError, pick
from inlay.measure.base import Gauge, MeasureConfig, Metric, Score
from inlay.measure.table import METRICS, PAIR_METRICS, SET_METRICS
from inlay.video.frames import Pieces, Video, in_step

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was measured, by metric name."""

    scores: dict[str, Score]
    missing: dict[str, str] = field(default_factory=dict)  # metric -> why it has no score
    videos: tuple[str, ...] = ()
    per_video: dict[str, tuple[float, ...]] = field(default_factory=dict)  # metric -> a value for each of `videos`
    notes: tuple[str, ...] = ()  # videos that a metric had to leave out, and why
    config: MeasureConfig = field(default_factory=MeasureConfig)

    def __getitem__(self, name: str) -> float:
        if name in self.missing:
            raise UsageError(f"{name} was not measured: {self.missing[name]}")
        return pick("metric in this report", name, self.scores).value

    def __str__(self) -> str:
        rows = [f"{name:<15} {_number(score)}" for name, score in self.scores.items()]
        rows += [f"{name:<15} not measured: {why}" for name, why in self.missing.items()]
        return "\n".join([*rows, *self.notes])

    def record(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "scores": {name: score.record() for name, score in self.scores.items()},
            "missing": dict(self.missing),
            "videos": list(self.videos),
            "per_video": {k: [v if math.isfinite(v) else None for v in row] for k, row in self.per_video.items()},
            "notes": list(self.notes),
            "config": asdict(self.config),
        }


def _number(score: Score) -> str:
    span = "" if score.low is None else f"  [{score.low:.4f}, {score.high:.4f}]"
    return f"{score.value:.4f}{' ' + score.unit if score.unit else ''}{span}"


class GaugeRun:
    """The gauges behind some metrics over one pair of videos; one that cannot run does not cost the others."""

    def __init__(self, metrics: Iterable[Metric], config: MeasureConfig) -> None:
        self.gauges: dict[type[Gauge], Gauge] = {}
        self.unavailable: dict[type[Gauge], str] = {}  # weights or a package are not there
        self.failed: dict[type[Gauge], str] = {}  # these videos are none for it
        for kind in dict.fromkeys(metric.gauge for metric in metrics):
            try:
                self.gauges[kind] = kind(config)
            except InlayError as error:
                self.unavailable[kind] = str(error)

    def update(self, reference_THWC: Tensor, other_THWC: Tensor) -> None:
        self._each(lambda gauge: gauge.update(reference_THWC, other_THWC))

    def finish(self) -> dict[type[Gauge], dict[str, Any]]:
        """What each gauge read; `why` says why another has no reading."""
        return self._each(lambda gauge: gauge.finish())

    def why(self, kind: type[Gauge]) -> str:
        return self.unavailable.get(kind) or self.failed[kind]

    def _each(self, step: Callable[[Gauge], T]) -> dict[type[Gauge], T]:
        found: dict[type[Gauge], T] = {}
        for kind, gauge in list(self.gauges.items()):
            try:
                found[kind] = step(gauge)
            except InlayError as error:
                del self.gauges[kind]
                self.failed[kind] = str(error)
        return found


class Meter:
    """Holds the states: `update` for each piece of a pair, `end_video` after its last, `report` after all videos."""

    def __init__(self, metrics: Sequence[str] = SET_METRICS, config: MeasureConfig | None = None) -> None:
        self.config = config or MeasureConfig()
        names = (metrics,) if isinstance(metrics, str) else metrics
        self.metrics = {name: pick("metric", name, METRICS) for name in names}
        if not self.metrics:
            raise UsageError(f"no metric is named (choices: {', '.join(METRICS)})")
        self.videos: list[str] = []
        self._run: GaugeRun | None = None  # of the video at hand
        self._size: tuple[int, int] | None = None
        self._readings: dict[type[Gauge], list[dict[str, Any] | None]] = {m.gauge: [] for m in self.metrics.values()}
        self._reasons: dict[type[Gauge], list[str]] = {m.gauge: [] for m in self.metrics.values()}

    def update(self, reference: Video, other: Video) -> None:
        """Two pieces of the same length and size; pieces of one video follow one another."""
        check_alike(reference, other)
        size = (reference.width, reference.height)
        if self._size not in (None, size):
            raise ShapeError(f"the frames of one video have one size; got {self._size} and then {size} (width, height)")
        self._run, self._size = self._run or GaugeRun(self.metrics.values(), self.config), size
        self._run.update(reference.frames.to(self.config.device), other.frames.to(self.config.device))

    def end_video(self, name: str | None = None) -> dict[str, float]:
        """Close the video at hand; its values by metric (not those that only a set has, nor those that failed)."""
        if self._run is None:
            raise UsageError("no frames were given since the last video ended")
        name = name or f"video-{len(self.videos)}"
        self.videos.append(name)
        found = self._run.finish()
        for gauge, readings in self._readings.items():
            readings.append(found.get(gauge))
            if gauge not in found:
                self._reasons[gauge].append(f"{name}: {self._run.why(gauge)}")
        self._run = self._size = None
        return {m: row[-1] for m, row in self._per_video().items() if not math.isnan(row[-1])}

    def _per_video(self) -> dict[str, tuple[float, ...]]:
        return {
            name: tuple(math.nan if r is None else r[metric.key] for r in self._readings[metric.gauge])
            for name, metric in self.metrics.items()
            if metric.per_video
        }

    def report(self) -> Report:
        """Scores over all videos so far."""
        if not self.videos:
            raise UsageError("there is nothing to report: no video was measured")
        scores: dict[str, Score] = {}
        missing: dict[str, str] = {}
        notes: list[str] = []
        for name, metric in self.metrics.items():
            readings = [r[metric.key] for r in self._readings[metric.gauge] if r is not None]
            reasons = self._reasons[metric.gauge]
            if not readings:
                missing[name] = reasons[0].split(": ", 1)[1]
                continue
            try:
                scores[name] = metric.score(readings, self.config)
            except InlayError as error:
                missing[name] = str(error)
            notes += [f"{name} leaves out {reason}" for reason in reasons]
        for name in [n for n, s in scores.items() if s.videos == 0]:
            scores.pop(name)
            missing[name] = "no video has a pixel of this kind"
        per_video = {name: row for name, row in self._per_video().items() if name in scores}
        return Report(
            scores=scores,
            missing=missing,
            videos=tuple(self.videos),
            per_video=per_video,
            notes=tuple(notes),
            config=self.config,
        )


def measure(
    pairs: Iterable[tuple[Pieces, Pieces]],
    metrics: Sequence[str] = SET_METRICS,
    *,
    config: MeasureConfig | None = None,
    names: Sequence[str] | None = None,
) -> Report:
    """Measure (reference, other) pairs; a metric whose weights or package are absent is reported with the reason."""
    meter = Meter(metrics, config)
    for i, (reference, other) in enumerate(pairs):
        for video in (reference, other):
            check_pieces(video)
        for a, b in in_step(reference, other):
            meter.update(a, b)
        meter.end_video(names[i] if names is not None and i < len(names) else None)
    return meter.report()


def compare(
    a: Pieces, b: Pieces, metrics: Sequence[str] = PAIR_METRICS, *, config: MeasureConfig | None = None
) -> Report:
    """Measure one pair, `a` being the reference."""
    if isinstance(a, Video) and isinstance(b, Video):
        check_alike(a, b)
    return measure([(a, b)], metrics, config=config)


def check_pieces(video: object) -> None:
    if isinstance(video, str | PathLike | Tensor | np.ndarray) or not isinstance(video, Iterable | Video):
        raise UsageError(
            f"a Video is measured, or its pieces one by one (inlay.read_video reads a file); got {type(video).__name__}"
        )


def check_alike(a: Video, b: Video) -> None:
    if (a.width, a.height) != (b.width, b.height):
        raise ShapeError(
            f"the videos differ in size: {a.width}x{a.height} and {b.width}x{b.height}; bring both to one",
            about="size",
        )
    if len(a) != len(b):
        raise ShapeError(f"the videos differ in length: {len(a)} and {len(b)} frames; cut the longer one first")
