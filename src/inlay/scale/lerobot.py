# SPDX-License-Identifier: Apache-2.0
"""LeRobot data sets, v2.1 and v3.0: their episodes, and the span of each in the video files of its cameras.

In v2.1 an episode has a video file for each camera, in v3.0 many episodes share one. What is read is `meta/` and the
videos; nothing is written there.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any, BinaryIO

from inlay.errors import UsageError, VideoError, require
from inlay.scale.layout import lines_of
from inlay.video.decoder import video_stream
from inlay.video.source import pyav

INFO = "meta/info.json"
OLD, NEW = "v2.1", "v3.0"
VIDEO = "video"
OLD_CHUNK = 1000  # episodes in a folder, where info.json does not say


@dataclass(frozen=True, kw_only=True)
class CameraSpan:
    """Where the frames of an episode lie, for one camera."""

    path: Path
    first: int | None = None  # frame of the file; None: the episode is the file
    fps: Fraction = Fraction(30)


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One recording: its cameras, and the table with its actions."""

    index: int
    length: int  # frames, and rows of the table
    tasks: tuple[str, ...]
    data: Path
    cameras: dict[str, CameraSpan]

    def source(self, camera: str) -> str:
        """What a tokenised data set calls one camera of it."""
        return f"{camera}/episode_{self.index:06d}"


def is_lerobot(place: str | Path) -> bool:
    """Whether a folder is a data set of LeRobot, of whatever version."""
    try:
        return "codebase_version" in json.loads((Path(place) / INFO).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def read_episodes(root: str | Path) -> list[Episode]:
    """The episodes in order; refuses versions that are not known, and sets without videos."""
    root = Path(root)
    info = _info(root)
    version = info.get("codebase_version")
    if version not in (OLD, NEW):
        raise UsageError(f"{root} is of LeRobot {version}, and {OLD} and {NEW} can be read; convert it with LeRobot")
    cameras = [name for name, feature in info["features"].items() if feature.get("dtype") == VIDEO]
    if not cameras or not info.get("video_path"):
        kinds = ", ".join(sorted({str(feature.get("dtype")) for feature in info["features"].values()}))
        raise VideoError(f"{root}: none of its features is a video ({INFO} has {kinds}); there is nothing to tokenise")
    try:
        read = _old_episodes if version == OLD else _new_episodes
        found = sorted(read(root, info, cameras), key=lambda episode: episode.index)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UsageError(f"{root}/meta is damaged: {type(error).__name__} {error}; fetch it again") from error
    if not found:
        raise VideoError(f"{root}: has no episodes")
    return found


def _info(root: Path) -> dict[str, Any]:
    try:
        info = json.loads((root / INFO).read_text(encoding="utf-8"))
        if not isinstance(info["features"], dict) or Fraction(str(info["fps"])) <= 0:
            raise ValueError("features or fps")
        return dict(info)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{root}/{INFO} is damaged or missing ({error}); is this a LeRobot data set?") from error


def _below(root: Path, template: str, **values: Any) -> Path:
    """A path that info.json states; it must not lead out of the data set. A link may: the hub's cache is links."""
    named = PurePath(template.format(**values))
    if named.anchor or ".." in named.parts:
        raise UsageError(f"{root}/{INFO}: {template!r} leads out of the data set")
    return root / named


def _old_episodes(root: Path, info: dict[str, Any], cameras: list[str]) -> Iterator[Episode]:
    size, fps = int(info.get("chunks_size") or OLD_CHUNK), Fraction(str(info["fps"]))
    for line in lines_of(_text(root / "meta/episodes.jsonl")):
        row = json.loads(line)
        index = int(row["episode_index"])
        place = {"episode_chunk": index // size, "episode_index": index}
        spans = {
            key: CameraSpan(path=_below(root, info["video_path"], video_key=key, **place), fps=fps) for key in cameras
        }
        yield Episode(
            index=index, length=int(row["length"]), tasks=tuple(map(str, row.get("tasks") or ())),
            data=_below(root, info["data_path"], **place), cameras=spans,
        )  # fmt: skip


def _new_episodes(root: Path, info: dict[str, Any], cameras: list[str]) -> Iterator[Episode]:
    fps = Fraction(str(info["fps"]))
    parts = [f"videos/{key}/{name}" for key in cameras for name in ("chunk_index", "file_index", "from_timestamp")]
    wanted = ["episode_index", "tasks", "length", "data/chunk_index", "data/file_index", *parts]
    for row in _rows(root, wanted):
        spans = {}
        for key in cameras:
            place = {name: int(row[f"videos/{key}/{name}"]) for name in ("chunk_index", "file_index")}
            first = round(float(row[f"videos/{key}/from_timestamp"]) * float(fps))
            spans[key] = CameraSpan(path=_below(root, info["video_path"], video_key=key, **place), first=first, fps=fps)
        place = {name: int(row[f"data/{name}"]) for name in ("chunk_index", "file_index")}
        yield Episode(
            index=int(row["episode_index"]), length=int(row["length"]), tasks=tuple(map(str, row["tasks"] or ())),
            data=_below(root, info["data_path"], **place), cameras=spans,
        )  # fmt: skip


def _rows(root: Path, wanted: list[str]) -> Iterator[dict[str, Any]]:
    arrow, parquet = require("pyarrow", extra="scale"), require("pyarrow.parquet", extra="scale")
    files = sorted((root / "meta/episodes").glob("*/*.parquet"))
    if not files:
        raise UsageError(f"{root}/meta/episodes holds no tables; fetch the data set again")
    for path in files:
        try:
            with parquet.ParquetFile(path) as file:
                absent = [name for name in wanted if name not in file.schema_arrow.names]
                if absent:
                    raise UsageError(f"{path} has no column {absent[0]!r}; fetch the data set again")
                yield from file.read(columns=wanted, use_threads=False).to_pylist()
        except (arrow.ArrowException, OSError) as error:
            raise UsageError(f"{path} is not a whole Parquet file; fetch the data set again") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; fetch the data set again") from error


# --- a span of a video file -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SpanCopy:
    """The packets that a span of a video file needs, as a small video file of their own."""

    media: BinaryIO
    start: int  # frames of it that come before the span
    sha256: str  # of the packets


def copy_span(path: str | Path, *, first: int, frames: int, fps: Fraction) -> SpanCopy:
    """Copy a span from the key frame before it on, as it is coded: what lies before in the file is not decoded."""
    av, buffer, digest = pyav(), io.BytesIO(), hashlib.sha256()
    begin, half = float(first / fps), 0.5 / float(fps)
    end = float((first + frames) / fps)
    seconds: list[float] = []
    try:
        with av.open(str(path)) as source, av.open(buffer, "w", format="mp4") as copy:
            stream = video_stream(source, str(path))
            target = copy.add_stream_from_template(stream)
            tick = stream.time_base or Fraction(1, 1000)
            origin = float((stream.start_time or 0) * tick)
            source.seek(int((begin + origin) / tick), stream=stream)
            base: int | None = None
            for packet in source.demux(stream):
                if packet.dts is None or packet.pts is None:
                    continue
                if float(packet.dts * tick) - origin > end:
                    break
                base = packet.dts if base is None else base
                seconds.append(float(packet.pts * tick) - origin)
                digest.update(bytes(packet))
                packet.pts, packet.dts, packet.stream = packet.pts - base, packet.dts - base, target
                copy.mux(packet)
    except (av.FFmpegError, OSError) as error:
        raise VideoError(f"cannot be read: {error.strerror or error}") from error
    start = sum(time < begin - half for time in seconds)
    there = sum(begin - half <= time < end - half for time in seconds)
    if there != frames:
        raise VideoError(f"has {there} frames from {begin:.3f} s to {end:.3f} s, and the episode has {frames}")
    buffer.seek(0)
    return SpanCopy(media=buffer, start=start, sha256=digest.hexdigest())
