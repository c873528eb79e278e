# SPDX-License-Identifier: Apache-2.0
"""What a cache of a trainer is to us: files with latents of clips, and everything else, which is carried along.

Legend: C channels, T slots (latent frames), H W latent rows and columns.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor

from inlay.caches.holes import CacheError, Hole
from inlay.caches.rest import pack_rest

Latents = Callable[[int], Tensor]  # row -> [C, T, H, W]


@dataclass(frozen=True, kw_only=True)
class LatentModel:
    """An autoencoder whose latents caches hold."""

    channels: int
    time_stride: int
    space_stride: int
    fps: int  # what its trainers sample videos at, where a cache does not say
    backbone: str | None = None  # its name in our table


MODELS = {
    "wan-2.1": LatentModel(channels=16, time_stride=4, space_stride=8, fps=16, backbone="wan-2.1"),
    "wan-2.2": LatentModel(channels=48, time_stride=4, space_stride=16, fps=24, backbone="wan-2.2"),
    "hunyuan-video": LatentModel(channels=16, time_stride=4, space_stride=8, fps=24, backbone="hunyuan-video"),
    "hunyuan-video-1.5": LatentModel(channels=32, time_stride=4, space_stride=16, fps=24),
    "ltx": LatentModel(channels=128, time_stride=8, space_stride=32, fps=24),
}


@dataclass(frozen=True, kw_only=True)
class ClipFacts:
    """The latents of one clip, without their numbers."""

    shape: tuple[int, int, int, int]  # C T H W
    dtype: str  # of holes.DTYPES
    fps: float | None = None
    caption: str | None = None


class CacheFile(ABC):
    """One open file of a cache; most hold one clip."""

    facts: tuple[ClipFacts, ...]

    @abstractmethod
    def latents(self, row: int) -> Tensor:
        """[C, T, H, W] as stored."""

    @abstractmethod
    def rest(self) -> bytes:
        """All the rest, as a member of a shard; `rebuild` undoes it."""

    def sha256(self, path: Path) -> str:
        """Of the file's bytes."""
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def same_rest(self, member: bytes) -> bool:
        """Whether a member of a shard holds the rest of this file."""
        return self.rest() == member


class HoleFile(CacheFile):
    """A file with the latents of one clip at one place."""

    def __init__(self, data: bytes, hole: Hole, *, fps: float | None = None, caption: str | None = None) -> None:
        self.data, self.hole = data, hole
        shape = hole.shape[1:] if len(hole.shape) == 5 and hole.shape[0] == 1 else hole.shape
        if len(shape) != 4:
            raise CacheError(f"has latents of shape {list(hole.shape)}, and those of a video are [C, T, H, W]")
        C, T, H, W = shape
        self.facts = (ClipFacts(shape=(C, T, H, W), dtype=hole.dtype, fps=fps, caption=caption),)

    def latents(self, row: int) -> Tensor:
        return self.hole.read(self.data).reshape(self.facts[row].shape)

    def sha256(self, path: Path) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def rest(self) -> bytes:
        return pack_rest({"kind": "hole", "hole": self.hole.record()}, self.hole.cut(self.data))


def write_hole(head: dict[str, Any], rest: bytes, clips: int, latents: Latents, out: BinaryIO) -> None:
    """The inverse of `HoleFile.rest`."""
    if clips != 1:
        raise CacheError(f"is damaged: it holds one clip, and there are tokens of {clips}")
    out.write(Hole.parse(head.get("hole")).fill(rest, latents(0)))


def usual_fps(found: object) -> float | None:
    """What a file says of its frames a second, if that is a number that a video may have."""
    return float(found) if isinstance(found, int | float) and 1e-3 < found < 1e5 else None


class Mapped(mmap.mmap):
    """A file seen as bytes that are read when they are looked at."""

    def seekable(self) -> bool:
        return True


def file_bytes(path: Path, *, whole: bool) -> Any:
    """The bytes of a file: all of them in memory, or mapped, to look at a few."""
    try:
        if whole:
            return path.read_bytes()
        with path.open("rb") as file:
            return Mapped(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError as error:
        raise CacheError("is empty: it was cut short, or is still being written") from error
    except OSError as error:
        raise CacheError(f"cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True, kw_only=True)
class NewClip:
    """A clip that is to be written into a cache: made from a video, by any backbone."""

    name: str  # of the video below its folder, without a suffix
    z_CTHW: Tensor  # normalised as the backbone gives it
    raw_CTHW: Tensor  # without that
    width: int  # of the source
    height: int
    frames: int
    fps: float
    caption: str = ""
    text: Tensor | None = None  # [L, D] embedding of the caption


class CacheFormat(ABC):
    """How one trainer keeps latents."""

    name: str
    about: str
    models: tuple[str, ...]  # whose latents its caches hold, the usual one first
    dtype: str  # what its own tool stores, of holes.DTYPES
    normalised: bool = True  # (z - mean) / std, as diffusers states them for the model; False: the trainer does that
    needs_text: bool = False  # the embedding of the caption stands in the same file as the latents
    takes_text: bool = True  # whether `write` has a place for it; else the trainer makes it itself
    clips_per_file: int = 1
    flat: bool = False  # files are named by the video's name alone, whatever folder it lies in
    frame_step: int = 0  # clips have 1 + k * this frames; 0: as the autoencoder needs

    @abstractmethod
    def find(self, root: Path) -> list[Path]:
        """The files with latents, sorted; empty where this is no such cache."""

    @abstractmethod
    def open(self, path: Path, *, whole: bool = True) -> CacheFile:
        """One of them. `whole=False` to look at its facts alone."""

    @abstractmethod
    def write(self, root: Path, number: int, clips: Sequence[NewClip]) -> Path:
        """Write a file as the trainer's own tool does, at most `clips_per_file` clips; what is there is replaced."""

    def model(self, channels: int) -> str:
        """Whose latents these are, by the number of their channels."""
        found = next((name for name in self.models if MODELS[name].channels == channels), None)
        if found is None:
            known = ", ".join(f"{name} {MODELS[name].channels}" for name in self.models)
            raise CacheError(f"has latents of {channels} channels, and {self.name} caches have others ({known})")
        return found

    def stranger(self, backbone: str, channels: int) -> str | None:
        """What is to be said where none of this trainer's models takes latents of so many channels."""
        known = {name: MODELS[name].channels for name in self.models}
        if channels in known.values():
            return None
        listed = ", ".join(f"{name} {count}" for name, count in known.items())
        return (
            f"latents of {backbone} have {channels} channels, and this trainer's models take others ({listed}): "
            "only a model of your own can learn from this cache, and inlay cache pack refuses it"
        )

    def mixed(self, files: Sequence[Path]) -> str | None:
        """What is to be said of files that the trainer would put into one batch, and cannot."""
        return None

    def left_out(self, relative: Path) -> bool:
        """Files that must not be carried along: lists of absolute paths, which the trainer makes again."""
        return False

    def notes(self, root: Path, files: Sequence[Path]) -> list[str]:
        """What the trainer would stumble over, in words."""
        return []


def files_below(root: Path, suffix: str) -> list[Path]:
    """All files with this ending, in an order that depends on nothing but their names."""
    found = [p for p in root.rglob(f"*{suffix}") if p.is_file()]  # parts end otherwise
    return sorted(found, key=lambda p: os.fsencode(p.relative_to(root)))
