# SPDX-License-Identifier: Apache-2.0
"""Score a folder of another system's reconstructions of a data set."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from inlay.errors import InlayError, UsageError, VideoError
from inlay.measure import MeasureConfig
from inlay.research.studies.datasets import Clip, ClipSpec, DataSet, count_frames, read_any
from inlay.research.studies.evaluate import Tell, conventions_of
from inlay.research.studies.records import Record, Store, make_key, read_pair
from inlay.video.frames import Video
from inlay.video.listing import videos_below


def score_reconstructions(
    data: DataSet,
    folder: Path,
    metrics: Sequence[str],
    config: MeasureConfig,
    store: Store,
    tell: Tell = lambda line: None,
) -> tuple[list[Record], dict[str, str]]:
    """(a record for each clip that has a reconstruction, by clip why another has none or a wrong one).

    A reconstruction bears the name of its clip: the same path below the folder (any suffix), or the same file name
    where no two have it. It holds the clip's frames from the first on, at the clip's size; or it has the size of the
    whole video, or its frames (a must where several clips of a video are measured), and is cut as the video was.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; give the one that holds the reconstructions")
    theirs = _pairing(data, folder)
    records: list[Record] = []
    problems: dict[str, str] = {}
    for number, clip in enumerate(data.clips, 1):
        tell(f"eval: {data.name} {number}/{len(data)}: {clip.name}")
        try:
            records.append(_score(data, clip, _find(clip, theirs), metrics, config, store))
        except InlayError as error:
            problems[clip.name] = str(error)
    if not records:
        first, why = next(iter(problems.items()))
        raise UsageError(f"{folder}: no reconstruction of {len(data)} clips can be used; the first: {first}: {why}")
    return records, problems


def example_pairs(data: DataSet, folder: Path, count: int) -> list[tuple[str, Video, Video]]:
    """The first few clips that have a reconstruction, with it: for people to look at."""
    theirs = _pairing(data, folder)
    pairs: list[tuple[str, Video, Video]] = []
    for clip in data.clips:
        if len(pairs) == count:
            break
        with contextlib.suppress(InlayError):  # the scores say which are missing, and why
            pairs.append((clip.name, *_load(clip, _find(clip, theirs))))
    return pairs


def _pairing(data: DataSet, folder: Path) -> dict[str, Path]:
    """Clip -> its reconstruction; a file name alone says which only where one video and one file have it."""
    have = dict(videos_below(folder))
    ends = Counter(_end(path) for path in have.values())
    alone = {_end(path): path for path in have.values() if ends[_end(path)] == 1}
    videos = Counter(name for name, _ in {(name, c.path) for c in data.clips for name in _short(c)})
    found: dict[str, Path] = {}
    for clip in data.clips:
        long = [form for name in (clip.name, clip.video) for form in (name, name.replace("/", "_"))]
        places = [have[name] for name in long if name in have]
        places += [alone[name] for name in _short(clip) if name in alone and videos[name] == 1]
        if places:
            found[clip.name] = places[0]
    return found


def _find(clip: Clip, theirs: dict[str, Path]) -> Path:
    if clip.name not in theirs:
        raise VideoError("there is no reconstruction of this name")
    return theirs[clip.name]


def _short(clip: Clip) -> tuple[str, ...]:
    return clip.name.split("/")[-1], _end(clip.path), clip.video.split("/")[-1]


def _end(path: Path) -> str:
    return path.name if path.is_dir() else path.stem


def _score(
    data: DataSet, clip: Clip, path: Path, metrics: Sequence[str], config: MeasureConfig, store: Store
) -> Record:
    reference, other = _load(clip, path)
    frames = hashlib.sha256(other.frames.contiguous().numpy().data).hexdigest()
    key = make_key(clip=clip.identity, frames=frames, measure=conventions_of(config))
    record = store.find_or_blank("eval", data.name, clip.name, {"reconstructions": path.name}, {}, key)
    lacking = record.reading.lacks(metrics)
    if lacking:
        record = replace(record, reading=record.reading.merged(read_pair(reference, other, lacking, config)))
        store.write(record)
    return record


def _load(clip: Clip, path: Path) -> tuple[Video, Video]:
    reference, (spec, start) = clip.load(), _cut(clip, path)
    other = read_any(path, spec, start=start)
    if reference.frames.shape != other.frames.shape:
        a, b = ("x".join(map(str, v.frames.shape[:3])) for v in (reference, other))
        raise VideoError(f"the clip is {a} (frames, height, width), its reconstruction {b}; cut or resize it alike")
    return reference, other


def _cut(clip: Clip, path: Path) -> tuple[ClipSpec, int]:
    """How the clip's frames are taken from a reconstruction, and from which on.

    What has another size than the video is compared as it is: resizing it would hide that it is not the clip's.
    """
    spec = clip.spec if _size(path) == _size(clip.path) else replace(clip.spec, size=0)
    several = clip.spec.clips > 1 and not _end(path).endswith(clip.name.removeprefix(clip.video))
    if several or (spec.interval > 1 and count_frames(path) == count_frames(clip.path)):
        return spec, clip.start
    return replace(spec, interval=1), 0


def _size(path: Path) -> tuple[int, int]:
    one = read_any(path, ClipSpec(frames=1, size=0))
    return one.width, one.height
