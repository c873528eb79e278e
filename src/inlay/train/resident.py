# SPDX-License-Identifier: Apache-2.0
"""A whole data set in memory in, clips cut on its device out: for training that must not wait for files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from inlay.errors import ConfigError
from inlay.train.data import ClipSource, cut_rgb, finish
from inlay.train.ivf import PlanarVideo, decode_ivf, i420_to_rgb
from inlay.train.sampler import ClipEntry, Draw

MARGIN = 2  # luma pixels cut around a crop, so that chroma at its border is interpolated from real neighbours


class ResidentClips:
    """Videos as uint8 on the training device: RGB [T, H, W, 3] or planar 4:2:0, which needs half the room."""

    workers = 0

    def __init__(
        self,
        videos: Sequence[PlanarVideo | Tensor],
        *,
        names: Sequence[str] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.videos = [v.to(device) for v in videos]
        names = names or [f"clip-{i}" for i in range(len(videos))]
        self.entries = tuple(_entry(v, name) for v, name in zip(self.videos, names, strict=True))
        self.weights: tuple[float, ...] | None = None

    @staticmethod
    def from_ivf(
        paths: Sequence[str | Path],
        *,
        device: torch.device | str = "cpu",
        program: str = "dav1d",
        processes: int = 16,
    ) -> ResidentClips:
        """Decode .ivf files with the dav1d program and keep them on the device."""
        videos = decode_ivf(paths, program=program, processes=processes)
        return ResidentClips(videos, names=[Path(p).stem for p in paths], device=device)

    @property
    def size_bytes(self) -> int:
        return sum(e.bytes for e in self.entries)

    def cut(self, draw: Draw) -> Tensor:
        video = self.videos[draw.clip]
        frames = slice(draw.start, draw.start + draw.span, draw.interval)
        if isinstance(video, Tensor):
            return cut_rgb(video[frames], draw)
        return cut_planar(video, frames, draw)


def cut_planar(video: PlanarVideo, frames: slice, draw: Draw) -> Tensor:
    """[3, T, size, size] of planar frames; only the crop (and a margin) is ever converted."""
    height, width = video.y.shape[1:]
    top, left, side = draw.window(height, width)
    rows, y = _with_margin(top, side, height)
    columns, x = _with_margin(left, side, width)
    half_rows, half_columns = _halved(rows), _halved(columns)
    rgb_TCHW = i420_to_rgb(
        video.y[frames, rows, columns],
        video.u[frames, half_rows, half_columns],
        video.v[frames, half_rows, half_columns],
        matrix=video.matrix,
    )
    return finish(rgb_TCHW[:, :, y : y + side, x : x + side], draw)


def _with_margin(start: int, side: int, limit: int) -> tuple[slice, int]:
    """An even start with a margin where there is room, and where the crop begins in it."""
    first = max(0, (start - MARGIN) // 2 * 2)
    return slice(first, min(limit, start + side + MARGIN)), start - first


def _halved(luma: slice) -> slice:
    return slice(luma.start // 2, (luma.stop + 1) // 2)


def _entry(video: PlanarVideo | Tensor, name: str) -> ClipEntry:
    if isinstance(video, Tensor):
        frames, height, width, _ = video.shape
        return ClipEntry(name=name, frames=frames, height=height, width=width, bytes=video.numel())
    frames, height, width = video.y.shape
    return ClipEntry(name=name, frames=frames, height=height, width=width, bytes=video.y.numel() * 3 // 2)


class MixedClips:
    """Several sources as one, each drawn from by its share."""

    def __init__(self, sources: Sequence[ClipSource], shares: Sequence[float]) -> None:
        if len(sources) != len(shares) or not sources or min(shares) < 0 or not sum(shares) > 0:
            raise ConfigError(f"every source needs a share of 0 or more, not all 0; got {list(shares)}")
        self.sources = tuple(sources)
        self.workers = max(s.workers for s in sources)
        self.entries = tuple(e for s in sources for e in s.entries)
        self.weights: tuple[float, ...] | None = tuple(
            share * w for s, share in zip(sources, shares, strict=True) for w in _even(s)
        )
        self._places = [(s, i) for s in sources for i in range(len(s.entries))]

    def cut(self, draw: Draw) -> Tensor:
        source, clip = self._places[draw.clip]
        return source.cut(replace(draw, clip=clip))


def _even(source: ClipSource) -> list[float]:
    """The source's own weights, summing to 1."""
    weights = source.weights or (1.0,) * len(source.entries)
    return [w / sum(weights) for w in weights]
