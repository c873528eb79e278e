# SPDX-License-Identifier: Apache-2.0
"""What metrics read of a clip, and one JSON file for each result, written whole: what lets a study resume."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from inlay.errors import UsageError, VideoError, pick
from inlay.files import write_atomic, writing
from inlay.measure import METRICS, MeasureConfig, Metric, Score
from inlay.measure.meter import GaugeRun
from inlay.research.studies.datasets import DataSet
from inlay.video.frames import Video

QUICK = ("psnr", "psnr-video", "ssim", "error-level")  # seconds a clip on a CPU
PAPER = (*QUICK, "lpips", "fvd", "kvd")
TOO_FEW = "it compares sets of at least 2 clips, and 1 has a reading"
FORMAT = 1
READ_FILE = "read.json"  # in the store: the clips that were read to their end
_hints = lru_cache(get_type_hints)


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
            features = features_text(value)
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
        [features_from(r.features) for r in readings if r.features]
        if is_set(metric)
        else [r.values[metric] for r in readings if metric in r.values]
    )
    try:
        return row.score(found, config) if found else None
    except UsageError:
        return None


def features_text(features: Tensor) -> str:
    return base64.b64encode(features.float().cpu().numpy().astype("<f4").tobytes()).decode()


def features_from(text: str) -> Tensor:
    """[2, 400] float64."""
    array = np.frombuffer(base64.b64decode(text), "<f4").astype(np.float64)
    return torch.from_numpy(array.reshape(2, -1))


@dataclass(frozen=True, kw_only=True)
class Record:
    """What became of one clip under one setting in one study."""

    study: str
    data: str
    clip: str
    setting: dict[str, Any]
    model: dict[str, Any]  # backbone, hashes of weights, arithmetic
    key: str  # names clip, setting and model
    reading: Reading = field(default_factory=Reading)
    tokens: int = 0
    cells: int = 0
    slots: tuple[int, ...] = ()  # kept cells of each slot
    bits_per_pixel: float = 0.0
    chosen: dict[str, float] = field(default_factory=dict)  # what a budget was granted with: tau, step
    nfe: int = 0  # evaluations of encoder or decoder that the choice of cells took
    evaluations: dict[str, dict[str, int]] = field(default_factory=dict)  # by phase, as counted
    seconds: dict[str, float] = field(default_factory=dict)
    machine: str = ""  # where it was made; no part of the key, since another machine may go on from here
    format: int = FORMAT

    @property
    def keep_rate(self) -> float:
        return self.tokens / self.cells if self.cells else 0.0

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())


def mean_rate(records: Sequence[Record]) -> float:
    """The keep rate, mean over clips."""
    return fmean(r.keep_rate for r in records)


def without_unreadable(data: DataSet, store: Store, tell: Callable[[str], None] = lambda line: None) -> DataSet:
    """The set without clips that break off when read, so that every rule and table has the same clips.

    A header may promise frames that the file does not hold. What was read to its end is remembered in the store, so
    that a second run reads nothing.
    """
    known = dict(store.read_json(READ_FILE) or {})
    new: dict[str, str] = {}
    broken: dict[str, str] = {}
    for clip in data.clips:
        key = make_key(clip=clip.identity)
        if key in known:
            continue
        try:
            clip.load()
            new[key] = clip.name
        except VideoError as error:
            broken[clip.name] = str(error)
            tell(f"left out: {error}")
    if new:
        store.write_json(READ_FILE, {**known, **new})
    return data.without(broken)


def restored(kind: Any, value: Any) -> Any:
    """A dataclass as JSON has it, made again: the inverse of `asdict`."""
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{name: restored(hints[name], v) for name, v in value.items()})
    if get_origin(kind) is tuple:
        return tuple(restored(get_args(kind)[0], v) for v in value)
    return value


def make_key(**parts: Any) -> str:
    """A short name for what determines a result; equal on every machine."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_name(clip: str) -> str:
    """A clip's name in letters and at a length that every disk takes; the key beside it tells clips apart."""
    return re.sub(r"[^A-Za-z0-9.@-]+", "_", clip)[-160:]


class Store:
    """A folder of results: records/STUDY/CLIP.KEY.json, and other JSON files by name."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find_or_blank(
        self, study: str, data: str, clip: str, setting: dict[str, Any], model: dict[str, Any], key: str
    ) -> Record:
        """The record of that key, or one without readings."""
        blank = Record(study=study, data=data, clip=clip, setting=setting, model=model, key=key)
        return self.find(study, clip, key) or blank

    def find(self, study: str, clip: str, key: str) -> Record | None:
        """This study's record, or that of another study for the same clip, setting and model."""
        own = self._path(study, clip, key)
        for path in (own, *sorted(self.root.glob(f"records/*/{own.name}"))):
            record = self.read(path)
            if record is not None:
                return record
        return None

    def read(self, path: Path) -> Record | None:
        """None where there is none, or where the file is damaged: it is then made again."""
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            raw.pop("keep_rate", None)
            record = restored(Record, raw)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        return record if record.format == FORMAT else None

    def all(self, study: str) -> list[Record]:
        """Every record that one study has left, in the order of their names."""
        found = (self.read(path) for path in sorted((self.root / "records" / study).glob("*.json")))
        return [record for record in found if record is not None]

    def write(self, record: Record) -> None:
        path = self._path(record.study, record.clip, record.key)
        self.write_json(path.relative_to(self.root), {**asdict(record), "keep_rate": record.keep_rate})

    def write_json(self, name: str | Path, value: Mapping[str, Any]) -> Path:
        return self.write_text(name, json.dumps(value, indent=1, allow_nan=False) + "\n")

    def write_text(self, name: str | Path, text: str) -> Path:
        return self.write_bytes(name, text.encode())

    def write_bytes(self, name: str | Path, data: bytes) -> Path:
        """Atomic: a reader sees the old file or the new one."""
        path = self.root / name
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)
        return path

    def read_json(self, name: str) -> dict[str, Any] | None:
        try:
            value = json.loads((self.root / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def _path(self, study: str, clip: str, key: str) -> Path:
        return self.root / "records" / study / f"{file_name(clip)}.{key}.json"
