# SPDX-License-Identifier: Apache-2.0
"""Clips of one size and length from a place with videos, with every choice that was made on the way."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from inlay.errors import ConfigError, InlayError, VideoError, number_of
from inlay.video.frames import Video
from inlay.video.listing import PICTURE_SUFFIXES, find_videos, is_frame_folder

ORIGINS = "clips.json"
RESIZE = "bicubic to just cover the square (short side first), then centre crop"


@dataclass(frozen=True, kw_only=True)
class ClipSpec:
    """How clips are cut out of videos. The defaults are the paper's: 33 frames, 256x256, interval 1."""

    frames: int = field(default=33, metadata={"help": "frames of a clip"})
    size: int = field(default=256, metadata={"help": "side of the square; 0 keeps the size of the video"})
    interval: int = field(default=1, metadata={"help": "take every n-th frame"})
    clips: int = field(default=1, metadata={"help": "clips of each video, one after the other from its beginning"})

    def __post_init__(self) -> None:
        if min(self.frames, self.interval, self.clips) < 1 or self.size < 0:
            raise ConfigError(f"frames, interval and clips count from 1, size from 0; got {self}")

    @property
    def geometry(self) -> str:
        return f"{self.size}x{self.size}" if self.size else "keep"

    @property
    def span(self) -> int:
        """Frames of the video that one clip covers."""
        return (self.frames - 1) * self.interval + 1


@dataclass(frozen=True, kw_only=True)
class Clip:
    """One clip: where it lies, and a name that is the same on every machine."""

    name: str
    path: Path
    spec: ClipSpec
    start: int = 0
    bytes: int = 0  # of the file or folder, so that another file of the same name counts as another clip

    def load(self) -> Video:
        """The frames, all of them, or an error."""
        video = read_any(self.path, self.spec, start=self.start)
        if len(video) < self.spec.frames:
            raise VideoError(
                f"{self.name}: {len(video)} frames could be read from frame {self.start}, {self.spec.frames} are needed"
            )
        return video

    @property
    def video(self) -> str:
        """The name of the video that the clip is from."""
        return self.name.rpartition("@")[0] if self.spec.clips > 1 else self.name

    @property
    def identity(self) -> dict[str, Any]:
        return {"name": self.name, "start": self.start, "bytes": self.bytes, **asdict(self.spec)}


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Clips to measure on, and how they were chosen."""

    name: str
    layout: str
    split: str
    spec: ClipSpec
    clips: tuple[Clip, ...]
    left_out: tuple[str, ...] = ()  # videos that could not be used, and why
    absent: tuple[str, ...] = ()  # named by the split or the list, but not there

    def __len__(self) -> int:
        return len(self.clips)

    @property
    def counted(self) -> str:
        """Its name and size, as captions tell them."""
        return f"{self.name} ({number_of(len(self), 'clip')})"

    def first(self, limit: int) -> DataSet:
        """The first clips only; 0 means all."""
        return replace(self, clips=self.clips[:limit]) if limit else self

    def only(self, names: tuple[str, ...], split: str) -> DataSet:
        """The clips of these videos; all of them where none matches (a set that knows no such split)."""
        kept = tuple(c for c in self.clips if c.video in names)
        return replace(self, clips=kept, split=split) if kept else self

    def without(self, broken: dict[str, str]) -> DataSet:
        """Less the clips of these names, which are listed with the reason; an error where none is left."""
        lines = [why if why.startswith(f"{name}:") else f"{name}: {why}" for name, why in broken.items()]
        kept = tuple(c for c in self.clips if c.name not in broken)
        if not kept:
            raise VideoError(f"{self.name}: none of {len(self)} clips can be read; the first: {lines[0]}")
        return replace(self, clips=kept, left_out=(*self.left_out, *lines))

    @property
    def digest(self) -> str:
        """Names the clips and how they are cut, the same on every machine."""
        text = repr([sorted(c.identity.items()) for c in self.clips])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def record(self) -> dict[str, Any]:
        """Every choice, as plain JSON."""
        return {
            "name": self.name,
            "layout": self.layout,
            "split": self.split,
            "spec": asdict(self.spec),
            "resize": RESIZE if self.spec.size else "none",
            "start": "first frame of the video",
            "clips": [c.name for c in self.clips],
            "digest": self.digest,
            "left_out": list(self.left_out),
            "absent": list(self.absent),
        }


def open_data(
    place: str | Path,
    *,
    name: str | None = None,
    layout: str = "auto",
    split: str | None = None,
    spec: ClipSpec | None = None,
    limit: int = 0,
    tell: Callable[[str], None] = lambda line: None,
) -> DataSet:
    """The clips of a data set; videos that are too short or cannot be read are left out, and listed with the reason.

    `limit` stops after so many videos that can be used.
    """
    spec = spec or ClipSpec()
    listing = find_videos(place, layout=layout, split=split)
    videos = tuple(dict.fromkeys(listing.videos))  # one that is named twice would count twice
    clips: list[Clip] = []
    left_out: list[str] = []
    used = short = 0
    for found, path in videos:
        if limit and used >= limit:
            break
        label = _legible(found)
        try:
            clips += _clips_of(path, label, spec)
            used += 1
        except InlayError as error:
            short += error.about == ("frames",)
            left_out.append(_legible(f"{label}: {error}"))
    for line in left_out:
        tell(f"left out: {line}")
    if not clips:
        about = "frames" if short == len(left_out) else ()
        raise VideoError(f"{place}: none of {len(videos)} videos can be used; the first: {left_out[0]}", about=about)
    label = name or (Path(place).stem if Path(place).is_file() else Path(place).resolve().name)
    return DataSet(
        name=_legible(label), layout=listing.layout, split=listing.split, spec=spec, clips=tuple(clips),
        left_out=tuple(left_out), absent=tuple(dict.fromkeys(listing.absent)),
    )  # fmt: skip


def _clips_of(path: Path, name: str, spec: ClipSpec) -> list[Clip]:
    """The clips that are cut from one video."""
    frames = count_frames(path)
    if path.suffix == ".npy":
        _check_size(path, spec)
    if frames < spec.span:
        raise VideoError(f"{frames} frames, a clip needs {spec.span}", about="frames")
    names = [f"{name}@{i}" if spec.clips > 1 else name for i in range(min(spec.clips, frames // spec.span))]
    size = _bytes(path)
    return [Clip(name=n, path=path, spec=spec, start=i * spec.span, bytes=size) for i, n in enumerate(names)]


def _legible(name: str) -> str:
    """A file may bear bytes that are no text, and no report could be written with them."""
    return name.encode("utf-8", "backslashreplace").decode()


def count_frames(path: Path) -> int:
    """Frames of a video file, a frame folder or an array file."""
    if path.is_dir():
        return len(pictures(path))
    if path.suffix == ".npy":
        return len(_array(path))
    from inlay.video import open_video

    with open_video(path) as reader:
        return reader.frames or sum(len(chunk) for chunk in reader.chunks(64))


def read_any(path: Path, spec: ClipSpec, *, start: int = 0, frames: int | None = None) -> Video:
    """The frames of one clip, as many as there are; `frames` asks for another number than the spec's."""
    frames = frames or spec.frames
    taken = slice(start, start + (frames - 1) * spec.interval + 1, spec.interval)
    if path.suffix == ".npy":
        _check_size(path, spec)
        return Video(frames=torch.from_numpy(_array(path)[taken].copy()))
    from inlay.video import read_video

    if not path.is_dir():
        return read_video(path, size=spec.geometry, start=start, frames=frames, interval=spec.interval)
    files = pictures(path)[taken]
    if not files:
        raise VideoError(f"{path}: no picture at frame {start}")
    parts = [read_video(file, size=spec.geometry, frames=1).frames for file in files]
    if len({p.shape for p in parts}) > 1:
        raise VideoError(f"{path}: the pictures differ in size; give frames of one video")
    return Video(frames=torch.cat(parts))


def pictures(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in PICTURE_SUFFIXES)


def _array(path: Path) -> Any:
    import numpy as np

    try:
        x_THWC = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise VideoError(f"{path}: not an array file ({error}); write it with numpy.save") from error
    if x_THWC.ndim != 4 or x_THWC.dtype != np.uint8 or x_THWC.shape[-1] != 3:
        raise VideoError(f"{path}: frames are uint8 [T, H, W, 3]; got {x_THWC.dtype}{list(x_THWC.shape)}")
    return x_THWC


def _check_size(path: Path, spec: ClipSpec) -> None:
    height, width = _array(path).shape[1:3]
    if spec.size and (height, width) != (spec.size, spec.size):
        found = f"{width}x{height}"
        raise VideoError(f"{path}: array files are not resized; its frames are {found}, {spec.geometry} is asked for")


def _bytes(path: Path) -> int:
    if path.suffix == ".npy" and (stated := _stated_bytes(path.parent).get(path.stem)):
        return stated
    return sum(p.stat().st_size for p in pictures(path)) if is_frame_folder(path) else path.stat().st_size


@lru_cache(maxsize=64)
def _stated_bytes(folder: Path) -> dict[str, int]:
    """Array files may stand in for videos, where there is no decoder: `clips.json` beside them holds the videos' bytes,
    so that their clips have the videos' names in records."""
    try:
        stated = json.loads((folder / ORIGINS).read_text(encoding="utf-8"))
        return {str(name): int(size) for name, size in stated.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise VideoError(f"{folder / ORIGINS}: not a JSON object of names and bytes ({error}); delete it") from error
