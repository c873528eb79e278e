# SPDX-License-Identifier: Apache-2.0
"""Cut clips from a whole data set in memory, on its device: for training that must not wait for files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from inlay.errors import ConfigError
from inlay.research.recipe.ivf import PlanarVideo, decode_ivf, i420_to_rgb
from inlay.train.data import ClipSource, cut_all, cut_rgb, finish
from inlay.train.sampler import ClipEntry, Draw

MARGIN = 4  # luma pixels cut around a crop, so that chroma at its border is interpolated from real neighbours


class ResidentClips:
    """Videos as uint8 on the training device: RGB [T, H, W, 3] or planar 4:2:0, which needs half the memory."""

    workers = 0

    def __init__(
        self,
        videos: Sequence[PlanarVideo | Tensor],
        *,
        names: Sequence[str] | None = None,
        device: torch.device | str = "cpu",
        chroma: Sequence[str] = ("bicubic",),
    ) -> None:
        """`chroma`: how colours of planar videos are made larger; of several ways, each draw takes one by its seed."""
        self.chroma = tuple(chroma)
        self.videos = [v.to(device) for v in videos]
        names = names or [f"clip-{i}" for i in range(len(videos))]
        self.entries = tuple(_entry(v, name) for v, name in zip(self.videos, names, strict=True))
        self.weights: tuple[float, ...] | None = None
        self.problems: list[str] = []
        self._wide: dict[int, PlanarVideo] = {}

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

    def cut(self, draw: Draw) -> Tensor:
        video = self.videos[draw.clip]
        if isinstance(video, Tensor):
            return cut_rgb(video[_frames(draw)], draw)
        return cut_planar(video, _frames(draw), draw, chroma=self._chroma(draw))

    def _chroma(self, draw: Draw) -> str:
        return self.chroma[draw.seed % len(self.chroma)]

    def cut_many(self, draws: Sequence[Draw]) -> list[Tensor]:
        """The same clips, those at their own scale converted together: sixteen one by one keep a GPU waiting."""
        alike: dict[tuple[str, str, int, int], list[int]] = {}
        for i, draw in enumerate(draws):
            video, entry = self.videos[draw.clip], self.entries[draw.clip]
            if isinstance(video, PlanarVideo) and draw.window(entry.height, entry.width)[2] == draw.size:
                alike.setdefault((self._chroma(draw), video.matrix, draw.frames, draw.size), []).append(i)
        found: dict[int, Tensor] = {}
        for (chroma, *_), members in alike.items():
            videos = [self._padded(draws[i].clip) for i in members]
            clips = cut_planar_many(videos, [draws[i] for i in members], chroma=chroma)
            found |= dict(zip(members, clips, strict=True))
        return [found[i] if i in found else self.cut(draw) for i, draw in enumerate(draws)]

    def _padded(self, clip: int) -> PlanarVideo:
        if clip not in self._wide:
            video = self.videos[clip]
            assert isinstance(video, PlanarVideo), "only planar videos are cut together"
            self._wide[clip] = pad_planar(video)
        return self._wide[clip]


def cut_planar(video: PlanarVideo, frames: slice, draw: Draw, *, chroma: str) -> Tensor:
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
        chroma=chroma,
    )
    return finish(rgb_TCHW[:, :, y : y + side, x : x + side], draw)


def cut_planar_many(videos: Sequence[PlanarVideo], draws: Sequence[Draw], *, chroma: str) -> list[Tensor]:
    """Crops of one size from videos that `pad_planar` made wider: bytes are gathered, colours made once for all."""
    T, side = draws[0].frames, draws[0].size
    wide = side + 2 * MARGIN + 2  # a crop at an odd place begins one pixel further in
    y = torch.empty(len(draws), T, wide, wide, dtype=torch.uint8, device=videos[0].y.device)
    u, v = (torch.empty(len(draws), T, wide // 2, wide // 2, dtype=torch.uint8, device=y.device) for _ in "uv")
    starts = []
    for i, (video, draw) in enumerate(zip(videos, draws, strict=True)):
        height, width = (n - 2 * MARGIN - 2 for n in video.y.shape[1:])
        top, left, _ = draw.window(height, width)
        first, after = top // 2, left // 2  # in chroma; luma has twice as many
        frames = _frames(draw)
        y[i] = video.y[frames, 2 * first : 2 * first + wide, 2 * after : 2 * after + wide]
        u[i] = video.u[frames, first : first + wide // 2, after : after + wide // 2]
        v[i] = video.v[frames, first : first + wide // 2, after : after + wide // 2]
        starts.append((MARGIN + top % 2, MARGIN + left % 2))
    rgb = i420_to_rgb(y.flatten(0, 1), u.flatten(0, 1), v.flatten(0, 1), matrix=videos[0].matrix, chroma=chroma)
    rgb_BTCHW = rgb.unflatten(0, (len(draws), T))
    return [
        finish(x[:, :, a : a + side, b : b + side], d) for x, (a, b), d in zip(rgb_BTCHW, starts, draws, strict=True)
    ]


def pad_planar(video: PlanarVideo) -> PlanarVideo:
    """Border pixels repeated: MARGIN before, and enough after for every crop to find its margin; sizes become even."""

    def pad(plane_THW: Tensor, before: int, after_y: int, after_x: int) -> Tensor:
        rows = torch.arange(-before, plane_THW.shape[1] + after_y).clamp(0, plane_THW.shape[1] - 1)
        columns = torch.arange(-before, plane_THW.shape[2] + after_x).clamp(0, plane_THW.shape[2] - 1)
        return plane_THW[:, rows.to(plane_THW.device)][:, :, columns.to(plane_THW.device)]

    half = MARGIN // 2
    u, v = (pad(plane, half, half + 1, half + 1) for plane in (video.u, video.v))
    return replace(video, y=pad(video.y, MARGIN, MARGIN + 2, MARGIN + 2), u=u, v=v)


def _frames(draw: Draw) -> slice:
    return slice(draw.start, draw.start + draw.span, draw.interval)


def _with_margin(start: int, side: int, limit: int) -> tuple[slice, int]:
    """An even start with a margin where it fits, and where the crop begins in it."""
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

    @property
    def problems(self) -> list[str]:
        return [line for s in self.sources for line in s.problems]

    def cut(self, draw: Draw) -> Tensor:
        source, clip = self._places[draw.clip]
        return source.cut(replace(draw, clip=clip))

    def cut_many(self, draws: Sequence[Draw]) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for source in self.sources:
            own = [i for i, d in enumerate(draws) if self._places[d.clip][0] is source]
            inner = [replace(draws[i], clip=self._places[draws[i].clip][1]) for i in own]
            found |= dict(zip(own, cut_all(source, inner), strict=True))
        return [found[i] for i in range(len(draws))]


def _even(source: ClipSource) -> list[float]:
    """The source's own weights, summing to 1."""
    weights = source.weights or (1.0,) * len(source.entries)
    return [w / sum(weights) for w in weights]
