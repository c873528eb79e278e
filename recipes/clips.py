# SPDX-License-Identifier: Apache-2.0
"""Clips on the GPU: files decoded once to RGB bytes, batches cut from them by seed and step alone."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from compose import compose, photo_bank
from torch import Tensor

from inlay.errors import MissingError
from inlay.research.recipe.ivf import PlanarVideo, decode_ivf, i420_to_rgb
from inlay.train.data import resizing
from inlay.video.listing import VIDEO_SUFFIXES

HELD_OUT = 24  # one clip in this many, by name, is never trained on: the choice is the same everywhere
MOST_FRAMES = 65  # of a video that PyAV reads; .ivf files are cut when they are made
SHORT_SIDE = 256  # to which it shrinks such a video
WAYS = ("bicubic", "nearest")  # of upsampling chroma: as inlay.video reads, and as most programs do
NEAREST = 0.25  # share of clips whose chroma is upsampled as most programs do it
INTERVALS = (0.6, 0.25, 0.15)  # how often every frame, every second and every third is taken
OVER = 0.35  # share of compositions whose background is a clip
TestSet = tuple[list[str], Tensor]  # names, and [n, T, 3, S, S] uint8


def find_clips(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise MissingError(f"{folder} is not a folder of clips")
    return sorted((p for p in folder.iterdir() if p.suffix.lower() in (".ivf", *VIDEO_SUFFIXES)), key=lambda p: p.stem)


def is_held_out(path: Path) -> bool:
    return int(hashlib.sha256(path.stem.encode()).hexdigest(), 16) % HELD_OUT == 0


def decode(paths: Sequence[Path], dav1d: str) -> list[PlanarVideo | Tensor]:
    """.ivf files by dav1d, as planar video; others by PyAV, as [T, 3, H, W] uint8."""
    bare = [p for p in paths if p.suffix == ".ivf"]
    found = dict(zip(bare, decode_ivf(bare, program=dav1d, processes=os.cpu_count() or 1), strict=True))
    return [found[p] if p in found else read_rgb(p) for p in paths]


def read_rgb(path: Path) -> Tensor:
    from inlay.video import read_video  # PyAV, which is not needed for .ivf files

    video = read_video(path, frames=MOST_FRAMES)
    frames = video.frames.permute(0, 3, 1, 2)
    scale = SHORT_SIDE / min(frames.shape[-2:])
    if scale < 1:
        frames = F.interpolate(frames.float(), scale_factor=scale, mode="bicubic", antialias=True).round().clamp(0, 255)
    return frames.to(torch.uint8)


def to_rgb(v: PlanarVideo | Tensor, device: str, chroma: str) -> Tensor:
    """[T, 3, H, W] uint8 on the device."""
    if isinstance(v, Tensor):
        return v.to(device)
    parts = []
    for i in range(0, len(v), 16):
        y, u, w = (p[i : i + 16].to(device) for p in (v.y, v.u, v.v))
        x = i420_to_rgb(y, u, w, matrix=v.matrix, chroma=chroma)
        parts.append(((x + 1) * 127.5).round().clamp(0, 255).to(torch.uint8))
    return torch.cat(parts)


def test_set(paths: Sequence[Path], *, device: str, dav1d: str, frames: int, size: int) -> TestSet:
    """First frames, centre crop, as the package's own validation cuts them; clips that are too short are left out."""
    names, clips = [], []
    for path, v in zip(paths, decode(paths, dav1d), strict=True):
        if len(v) < frames:
            continue
        rgb = to_rgb(v, device, "bicubic")[:frames]
        h, w = rgb.shape[-2:]
        side = min(h, w)
        top, left = round(0.5 * (h - side)), round(0.5 * (w - side))
        x = rgb[:, :, top : top + side, left : left + side]
        if side != size:
            r = resizing(side, size, x.device)
            x = ((r @ (x.float() / 127.5 - 1) @ r.T).clamp(-1, 1) + 1).mul(127.5).round().to(torch.uint8)
        names.append(path.stem)
        clips.append(x)
    if not clips:
        raise MissingError(f"no clip of {frames} frames or more to measure on; looked at {len(paths)} files")
    return names, torch.stack(clips)


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """What a batch is made of."""

    composed: int = 3  # clips of a batch that are compositions
    pan: float = 0.3  # share of compositions that are a camera over one picture
    drawn: float = 0.4  # share of their pictures that are drawings
    zoomed: float = 0.25  # share of crops that are resized
    power: float = 1.0  # above 0: clips with detail and motion more often
    motion_power: float = 1.0  # above 0: clips with motion more often


class Clips:
    """Training clips, with chroma upsampled in two ways, and the photographs of compositions."""

    def __init__(
        self, paths: Sequence[Path], photos: Sequence[Path], *, device: str, dav1d: str, limit: int | None
    ) -> None:
        began = time.monotonic()
        self.device = device
        videos = decode(paths, dav1d)
        self.rgb = [[to_rgb(v, device, way) for way in WAYS] for v in videos]
        self.motion, self.detail = [], []
        for rgb, _ in self.rgb:
            y, after = rgb[::6].float().mean(1), rgb[1::6].float().mean(1)
            self.motion.append((after - y[: len(after)]).abs().mean().item())
            self.detail.append(sum(y.diff(dim=d).abs().mean().item() for d in (1, 2)))
        self.bank = photo_bank(photos, device, limit)
        self.said = (
            f"{len(videos)} clips, {len(self.bank.pictures)} pictures, {time.monotonic() - began:.1f} s; "
            f"median motion {np.median(self.motion):.1f}, detail {np.median(self.detail):.1f}"
        )

    def shares(self, frames: int, mix: Mixture) -> np.ndarray:
        """How often each clip is drawn, summed up from the first to the last."""
        n = np.array([len(r[0]) for r in self.rgb], dtype=np.float64)
        m, d = np.array(self.motion), np.array(self.detail)
        w = np.sqrt(n) * np.clip((d + m) / 13.0, 0.35, 2.5) ** mix.power
        w *= np.clip((m + 1) / 8.0, 0.3, 2.0) ** mix.motion_power
        w[n < frames] = 0
        if not w.sum():
            raise MissingError(f"no clip of {frames} frames or more to train on; looked at {len(n)}")
        return np.cumsum(w / w.sum())


class Sampler:
    """Batches of bytes: a pure function of seed and step."""

    def __init__(self, clips: Clips, mix: Mixture, *, batch: int, frames: int, size: int, seed: int) -> None:
        self.clips, self.mix = clips, mix
        self.batch, self.frames, self.size, self.seed = batch, frames, size, seed
        self.share = clips.shares(frames, mix)
        self.intervals = np.cumsum(np.asarray(INTERVALS) / sum(INTERVALS))

    def __call__(self, step: int) -> Tensor:
        """[B, T, 3, S, S] uint8; compositions come first."""
        rng = np.random.Generator(np.random.Philox(key=[self.seed, step]))
        shape = (self.batch, self.frames, 3, self.size, self.size)
        out = torch.empty(shape, dtype=torch.uint8, device=self.clips.device)
        m = self.mix.composed
        for i in range(m, self.batch):
            self.cut(out[i], rng)
        if m:
            over = rng.random(m) < OVER
            for i in np.flatnonzero(over):
                self.cut(out[i], rng)
            compose(self.clips.bank, out[:m], over, rng, pan=self.mix.pan, drawn=self.mix.drawn)
        return out

    def cut(self, out_TCHW: Tensor, rng: np.random.Generator) -> None:
        """A clip, its start, interval and crop; forwards or backwards, mirrored or not."""
        u = rng.random(10)
        clip = min(int(np.searchsorted(self.share, u[0], side="right")), len(self.share) - 1)
        rgb = self.clips.rgb[clip][int(u[1] < NEAREST)]
        n, _, h, w = rgb.shape
        k = min(int(np.searchsorted(self.intervals, u[2])) + 1, (n - 1) // (self.frames - 1))
        start = int(u[3] * (n - (self.frames - 1) * k))
        side = self.size
        if u[4] < self.mix.zoomed:
            least = self.size * 0.67
            side = round(math.exp(math.log(least) + u[5] * math.log(min(h, w) / least)))
        side = min(side, h, w)
        top, left = int(u[6] * (h - side + 1)), int(u[7] * (w - side + 1))
        x = rgb[start : start + (self.frames - 1) * k + 1 : k, :, top : top + side, left : left + side]
        if u[8] < 0.5:
            x = x.flip(-1)
        if u[9] < 0.5:
            x = x.flip(0)
        if side != self.size:
            r = resizing(side, self.size, x.device)
            x = (r @ x.float() @ r.T).round_().clamp_(0, 255)
        out_TCHW.copy_(x)
