# SPDX-License-Identifier: Apache-2.0
"""Clips of a camera that pans, zooms and turns over photographs: motion with nothing else in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.errors import VideoError
from inlay.train.data import finish
from inlay.train.sampler import ClipEntry, Draw
from inlay.video.listing import PICTURE_SUFFIXES

ENDLESS = 1_000_000  # frames a photograph offers: a camera may look at it as long as it likes


class PhotoClips:
    """Photographs as uint8 on the training device; every draw is a camera path of its own."""

    workers = 0

    def __init__(
        self,
        photos: Sequence[Tensor],
        *,
        names: Sequence[str] | None = None,
        device: torch.device | str = "cpu",
        still: float = 0.15,
        supersample: int = 2,
    ) -> None:
        """`photos` are uint8 [H, W, 3]; a share `still` of clips does not move at all."""
        self.photos = [p.to(device) for p in photos]
        self.still, self.supersample = still, supersample
        names = names or [f"photo-{i}" for i in range(len(photos))]
        self.entries = tuple(
            ClipEntry(name=n, frames=ENDLESS, height=p.shape[0], width=p.shape[1], bytes=p.numel())
            for n, p in zip(names, photos, strict=True)
        )
        self.weights: tuple[float, ...] | None = None
        self.problems: list[str] = []

    @staticmethod
    def from_folder(folder: str | Path, *, device: torch.device | str = "cpu") -> PhotoClips:
        """Every photograph of a folder, read with Pillow."""
        paths = sorted(p for p in Path(folder).rglob("*") if p.suffix.lower() in PICTURE_SUFFIXES)
        if not paths:
            raise VideoError(f"{folder}: no photographs; looked for {', '.join(PICTURE_SUFFIXES)}")
        return PhotoClips([read_photo(p) for p in paths], names=[p.stem for p in paths], device=device)

    def cut(self, draw: Draw) -> Tensor:
        photo_HWC = self.photos[draw.clip]
        path_T4 = camera_path(draw, still=self.still).to(photo_HWC.device)
        return finish(look(photo_HWC, path_T4, size=draw.size, supersample=self.supersample), draw)


def read_photo(path: Path) -> Tensor:
    """[H, W, 3] uint8."""
    from PIL import Image

    with Image.open(path) as opened:
        rgb = opened.convert("RGB")
        return torch.frombuffer(bytearray(rgb.tobytes()), dtype=torch.uint8).view(rgb.height, rgb.width, 3)


def camera_path(draw: Draw, *, still: float) -> Tensor:
    """[T, 4]: centre x and y in [-1, 1] of the free space, the share of the short side seen, and the angle.

    A path is a straight or bent line from one view to another at uneven speed: what hands and tripods do.
    """
    g = torch.Generator().manual_seed(draw.seed)
    u = torch.rand(12, generator=g)
    time_T1 = torch.linspace(0, 1, draw.frames)[:, None] if draw.frames > 1 else torch.zeros(1, 1)
    span = min(1.0, draw.interval * draw.frames / 66)  # a longer interval sees more of the same movement
    begin = torch.stack([u[0] * 2 - 1, u[1] * 2 - 1, 0.55 + 0.45 * u[2], (u[3] - 0.5) * 0.2])
    reach = torch.stack([u[4] * 2 - 1, u[5] * 2 - 1, (u[6] - 0.5) * 0.5, (u[7] - 0.5) * 0.3]) * u[8].square() * span
    if u[11] < still:
        reach = torch.zeros(4)
    eased = time_T1 + 0.5 * (u[9] - 0.5) * torch.sin(math.pi * time_T1)
    bend = torch.sin(math.pi * time_T1) * (u[10] - 0.5) * 0.3 * reach.flip(0)
    path = begin + eased * reach + bend
    return torch.cat([path[:, :2].clamp(-1, 1), path[:, 2:3].clamp(0.4, 1.0), path[:, 3:]], dim=1)


def look(photo_HWC: Tensor, path_T4: Tensor, *, size: int, supersample: int = 1) -> Tensor:
    """[T, 3, size, size] in [-1, 1]: what a camera on that path sees; reflections fill what lies outside."""
    h, w, _ = photo_HWC.shape
    n = size * supersample
    x, y, share, angle = (c.view(-1, 1, 1) for c in path_T4.unbind(1))
    half = share * min(h, w) / 2
    free_x, free_y = (w / 2 - half).clamp_min(0), (h / 2 - half).clamp_min(0)
    step = (torch.arange(n, device=photo_HWC.device) + 0.5) * (2 / n) - 1
    v, u = torch.meshgrid(step, step, indexing="ij")
    px = x * free_x + half * (u * angle.cos() - v * angle.sin())
    py = y * free_y + half * (u * angle.sin() + v * angle.cos())
    grid_THW2 = torch.stack([px / (w / 2), py / (h / 2)], dim=-1)
    source = photo_HWC.permute(2, 0, 1).float().div(127.5).sub(1)[None].expand(len(path_T4), -1, -1, -1)
    seen = F.grid_sample(source, grid_THW2, mode="bilinear", padding_mode="reflection", align_corners=False)
    return F.avg_pool2d(seen, supersample) if supersample > 1 else seen
