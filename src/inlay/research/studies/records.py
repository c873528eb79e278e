# SPDX-License-Identifier: Apache-2.0
"""Keep one JSON file for each result, written whole or not at all: what lets a study go on where it stopped."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inlay.errors import UsageError, VideoError
from inlay.files import write_atomic
from inlay.research.studies.datasets import DataSet
from inlay.research.studies.readings import Reading

FORMAT = 1
READ_FILE = "read.json"  # in the store: the clips that were read to their end


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
    nfe: int = 0  # evaluations of encoder or decoder that the choice of cells took
    evaluations: dict[str, dict[str, int]] = field(default_factory=dict)  # by phase, as counted
    seconds: dict[str, float] = field(default_factory=dict)
    machine: str = ""  # where it was made; no part of the key, since another machine may go on from here
    format: int = FORMAT

    @property
    def keep_rate(self) -> float:
        return self.tokens / self.cells if self.cells else 0.0


def mean_rate(records: Sequence[Record]) -> float:
    """The keep rate, mean over clips."""
    return math.fsum(r.keep_rate for r in records) / len(records)


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
            reading = Reading(**raw.pop("reading"))
            raw.pop("keep_rate", None)
            record = Record(**{**raw, "slots": tuple(raw["slots"]), "reading": reading})
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
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data)
        except OSError as error:
            raise UsageError(f"{path.parent}: cannot be written ({error.strerror}); give another folder") from error
        return path

    def read_json(self, name: str) -> dict[str, Any] | None:
        try:
            value = json.loads((self.root / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def _path(self, study: str, clip: str, key: str) -> Path:
        return self.root / "records" / study / f"{file_name(clip)}.{key}.json"
