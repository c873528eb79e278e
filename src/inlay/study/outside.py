# SPDX-License-Identifier: Apache-2.0
"""A data set and a folder of another system's reconstructions in, their scores out."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from inlay.errors import InlayError, UsageError, VideoError
from inlay.measure import MeasureConfig
from inlay.study.datasets import Clip, DataSet, read_any
from inlay.study.evaluate import Tell
from inlay.study.layouts import videos_below
from inlay.study.readings import read_pair
from inlay.study.records import Record, make_key
from inlay.types import Video


def score_reconstructions(
    data: DataSet, folder: Path, metrics: Sequence[str], config: MeasureConfig, tell: Tell = lambda line: None
) -> tuple[list[Record], list[str]]:
    """(a record for each clip that has a reconstruction, a line on each that has none or a wrong one).

    A reconstruction bears the name of its clip: the same file name (any suffix), or the same path below the folder.
    It holds the clip's frames from the first on, or, where several clips of a video are measured, the whole video.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; give the one that holds the reconstructions")
    have = _by_name(folder)
    records: list[Record] = []
    problems: list[str] = []
    for number, clip in enumerate(data.clips, 1):
        tell(f"eval: {data.name} {number}/{len(data)}: {clip.name}")
        try:
            records.append(_score(data, clip, _find(clip, have), metrics, config))
        except InlayError as error:
            problems.append(f"{clip.name}: {error}")
    if not records:
        raise UsageError(f"{folder}: no reconstruction of {len(data)} clips can be used; the first: {problems[0]}")
    return records, problems


def example_pairs(data: DataSet, folder: Path, count: int) -> list[tuple[str, Video, Video]]:
    """The first few clips that have a reconstruction, with it: for people to look at."""
    have = _by_name(folder)
    pairs: list[tuple[str, Video, Video]] = []
    for clip in data.clips:
        if len(pairs) == count:
            break
        with contextlib.suppress(InlayError):  # the scores say which are missing, and why
            pairs.append((clip.name, *_load(clip, _find(clip, have))))
    return pairs


def _by_name(folder: Path) -> dict[str, Path]:
    have = dict(videos_below(folder))
    return have | {path.stem if path.is_file() else path.name: path for path in have.values()}


def _find(clip: Clip, have: dict[str, Path]) -> Path:
    names = (clip.name, clip.name.replace("/", "_"), clip.path.stem, clip.name.split("@")[0], clip.name.split("/")[-1])
    found = next((have[n] for n in names if n in have), None)
    if found is None:
        raise VideoError("there is no reconstruction of this name")
    return found


def _score(data: DataSet, clip: Clip, path: Path, metrics: Sequence[str], config: MeasureConfig) -> Record:
    reference, other = _load(clip, path)
    setting = {"reconstructions": path.name}
    return Record(
        study="eval",
        data=data.name,
        clip=clip.name,
        setting=setting,
        model={},
        key=make_key(clip=clip.identity, file=path.name, bytes=path.stat().st_size),
        reading=read_pair(reference, other, metrics, config),
    )


def _load(clip: Clip, path: Path) -> tuple[Video, Video]:
    reference = clip.load()
    whole = "@" in clip.name and "@" not in path.stem
    other = read_any(path, clip.spec, start=clip.start if whole else 0)
    _check(reference, other)
    return reference, other


def _check(reference: Video, other: Video) -> None:
    if reference.frames.shape != other.frames.shape:
        a, b = ("x".join(map(str, v.frames.shape[:3])) for v in (reference, other))
        raise VideoError(f"the clip is {a} (frames, height, width), its reconstruction {b}; cut or resize it alike")
