# SPDX-License-Identifier: Apache-2.0
"""Clips that are read without PyAV: raw frames (.npy), and AV1 (.ivf) by the program `dav1d`.

What stands in for `inlay.video.open_video` where a machine has no PyAV: takes and gives the same, for whole clips at
their own size. In a module of its own, so that other processes can import it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from inlay.errors import VideoError
from inlay.research.bench.config import BenchConfig
from inlay.research.bench.run import RANDOM, load
from inlay.scale import TokenizeConfig
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video

FPS = Fraction(24)


@dataclass(frozen=True, kw_only=True)
class RandomConfig(TokenizeConfig):
    """Settings of a job with a network of random weights, which takes as long as one with any others."""

    def load(self, device: str | None = None) -> Tokenizer:
        if self.backbone not in RANDOM:
            return super().load(device)
        return load(BenchConfig(backbone=self.backbone, device=device or self.device, dtype=self.dtype))


def open_clip(media: Any, *, size: str, keep_going: bool, start: int, frames: int | None) -> Any:
    """A clip by the suffix of its name; the rest, which the library's reader takes too, must be the usual."""
    if (size, keep_going, start, frames) != ("keep", False, 0, None):
        raise VideoError("a clip of the benchmark is read whole and as it is")
    path = Path(media)
    return RawClip(path) if path.suffix == ".npy" else Av1Clip(path)


class RawClip:
    """[T, H, W, 3] uint8, as it lies on disk."""

    damage = None

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._frames = np.load(path, mmap_mode="r")
        _, self.height, self.width, _ = self._frames.shape

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def chunks(self, frames: int) -> Iterator[Video]:
        for begin in range(0, len(self._frames), frames):
            yield Video(frames=torch.from_numpy(np.array(self._frames[begin : begin + frames])), fps=FPS)


class Av1Clip:
    """What `dav1d` prints as it decodes, one thread of it, made RGB here."""

    damage = None

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        command = [os.environ.get("DAV1D", "dav1d"), "-q", "--threads", "1", "--muxer", "yuv4mpeg2"]
        self._child = subprocess.Popen([*command, "-i", self.name, "-o", "-"], stdout=subprocess.PIPE)
        assert self._child.stdout is not None
        self._pipe = self._child.stdout
        head = self._pipe.readline().decode().split()
        if not head or head[0] != "YUV4MPEG2":
            raise VideoError(f"{path}: dav1d gives no pictures of it")
        found = {word[0]: word[1:] for word in head[1:]}
        self.width, self.height = int(found["W"]), int(found["H"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pipe.close()
        self._child.wait()

    def chunks(self, frames: int) -> Iterator[Video]:
        size = self.width * self.height * 3 // 2
        while True:
            pictures = []
            while len(pictures) < frames and self._pipe.readline():  # "FRAME"
                pictures.append(np.frombuffer(self._pipe.read(size), dtype=np.uint8))
            if not pictures:
                return
            yield Video(frames=torch.from_numpy(rgb(np.stack(pictures), self.height, self.width)), fps=FPS)


def rgb(planes_TN: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """[T, H, W, 3] of 4:2:0 pictures in BT.601's narrow range; colours are repeated, not interpolated."""
    pixels, quarter = height * width, height * width // 4
    y = planes_TN[:, :pixels].reshape(-1, height, width).astype(np.int32)
    u, v = (
        planes_TN[:, at : at + quarter].reshape(-1, height // 2, width // 2).astype(np.int32) - 128
        for at in (pixels, pixels + quarter)
    )
    light = 298 * (y - 16) + 128
    out = np.empty((*y.shape, 3), dtype=np.uint8)
    for channel, colour in enumerate((409 * v, -100 * u - 208 * v, 516 * u)):
        doubled = colour.repeat(2, axis=1).repeat(2, axis=2)
        np.clip((light + doubled) >> 8, 0, 255, out=out[..., channel], casting="unsafe")
    return out
