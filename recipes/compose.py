# SPDX-License-Identifier: Apache-2.0
"""Photographs and drawings in, clips of them moving over one another out: motion whose truth is sharp.

A clip has a background under a camera and up to two things over it, each with its own path, turn and growth, and the
blur of an open shutter. Where that is asked for, the background is a real clip.

Legend: M clips, L layers, T frames, K moments (T times BLUR), S side of a clip.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor

from inlay.video.listing import PICTURE_SUFFIXES

BANK = 320  # side of a stored photograph
LAYERS = 3  # the background and two things
BLUR = 3  # moments of a frame's shutter that are averaged


@dataclass(frozen=True, kw_only=True, eq=False)
class Bank:
    """[P, 3, 320, 320] uint8: photographs, and after them drawings with flat colours, hard edges and letters."""

    pictures: Tensor
    photographs: int

    def draw(self, rng: np.random.Generator, count: int, drawn: float) -> np.ndarray:
        """Numbers of pictures; a share `drawn` of them are drawings."""
        photographs, drawings = self.photographs, len(self.pictures) - self.photographs
        u = rng.random((2, count))
        number = np.where(u[0] < drawn, photographs + u[1] * drawings, u[1] * photographs).astype(np.int64)
        return number if photographs else photographs + (u[1] * drawings).astype(np.int64)


def photo_bank(folders: Sequence[Path], device: str, limit: int | None = None) -> Bank:
    """Every photograph of the folders, and half as many drawings."""
    paths = sorted(p for f in folders for p in f.iterdir() if p.suffix.lower() in PICTURE_SUFFIXES)[:limit]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        photos = list(pool.map(photograph, paths))
        drawn = list(pool.map(drawing, range(max(2, len(photos) // 2))))
    return Bank(pictures=torch.stack([*photos, *drawn]).to(device), photographs=len(photos))


def photograph(path: Path) -> Tensor:
    """[3, 320, 320] uint8: the middle of a photograph, its short side 360 at most."""
    with Image.open(path) as opened:
        im = opened.convert("RGB")
    scale = max(min(360 / min(im.size), 1.0), BANK / min(im.size))
    if scale != 1:
        size = (max(BANK, round(im.width * scale)), max(BANK, round(im.height * scale)))
        im = im.resize(size, Image.Resampling.LANCZOS)
    x, y = (im.width - BANK) // 2, (im.height - BANK) // 2
    return to_tensor(im.crop((x, y, x + BANK, y + BANK)))


def to_tensor(im: Image.Image) -> Tensor:
    return torch.frombuffer(bytearray(im.tobytes()), dtype=torch.uint8).view(im.height, im.width, 3).permute(2, 0, 1)


def drawing(seed: int) -> Tensor:
    """A picture of flat shapes, stripes and letters, smoothed at its edges by drawing it twice as large."""
    rng = np.random.default_rng(seed)
    n = 2 * BANK
    im = Image.new("RGB", (n, n), colour(rng))
    d = ImageDraw.Draw(im)
    if rng.random() < 0.4:  # a gradient
        a, b = np.array(colour(rng)), np.array(colour(rng))
        for y in range(n):
            d.line([(0, y), (n, y)], fill=tuple(int(c) for c in a + (b - a) * y / n))
    if rng.random() < 0.5:  # stripes or squares
        step, c = int(rng.integers(10, 90)), colour(rng)
        for i in range(0, n, 2 * step):
            d.rectangle([i, 0, i + step, n], fill=c)
        if rng.random() < 0.5:
            c = colour(rng)
            for i in range(0, n, 2 * step):
                d.rectangle([0, i, n, i + step // 2], fill=c)
    for _ in range(int(np.exp(rng.uniform(np.log(4), np.log(120))))):  # from a few large things to many small ones
        draw_thing(d, rng, n)
    return to_tensor(im.resize((BANK, BANK), Image.Resampling.BOX))


def draw_thing(d: ImageDraw.ImageDraw, rng: np.random.Generator, n: int) -> None:
    """An ellipse, rectangle, polygon, line, word, row of windows or wheel somewhere in a picture of n x n."""
    x, y = (int(v) for v in rng.integers(0, n, 2))
    w, h = (int(v) for v in np.exp(rng.uniform(np.log(5), np.log(240), 2)))
    box, kind = [int(x - w / 2), int(y - h / 2), int(x + w / 2), int(y + h / 2)], rng.integers(7)
    if kind == 0:
        d.ellipse(box, fill=colour(rng))
    elif kind == 1:
        d.rectangle(box, fill=colour(rng), outline=colour(rng), width=int(rng.integers(0, 8)))
    elif kind == 2:
        corners = [(int(x + w * rng.normal() / 2), int(y + h * rng.normal() / 2)) for _ in range(4)]
        d.polygon(corners, fill=colour(rng))
    elif kind == 3:
        end = (x + 2 * w, int(y + rng.normal() * h))
        d.line([(x, y), end], fill=colour(rng), width=int(rng.integers(2, 14)))
    elif kind == 4:
        draw_row(d, rng, x, y)
    elif kind == 5:
        draw_wheel(d, rng, x, y, radius=w // 2 + 4)
    else:
        text = "".join(chr(int(c)) for c in rng.integers(65, 91, int(rng.integers(2, 9))))
        try:
            d.text((x, y), text, fill=colour(rng), font_size=int(rng.integers(12, 90)))
        except (ImportError, OSError, TypeError):  # Pillow before 10.1 or without FreeType has one small font
            d.text((x, y), text, fill=colour(rng))


def draw_row(d: ImageDraw.ImageDraw, rng: np.random.Generator, x: int, y: int) -> None:
    """A band with small things in it at even distances, as windows, sleepers and fences stand."""
    w, h, count = (int(v) for v in rng.integers((4, 6, 4), (24, 40, 14)))
    gap, border = (int(v) for v in rng.integers(2, 14, 2))
    d.rectangle([x, y, x + border + count * (w + gap), y + h + 2 * border], fill=colour(rng))
    fill, other = colour(rng), colour(rng) if rng.random() < 0.3 else None
    for i in range(count):
        left = x + border + i * (w + gap)
        d.rectangle([left, y + border, left + w, y + border + h], fill=other if other and i % 2 else fill)


def draw_wheel(d: ImageDraw.ImageDraw, rng: np.random.Generator, x: int, y: int, *, radius: int) -> None:
    """Slices of a circle in turn, as of a ball or a wheel with spokes."""
    slices, fills = int(rng.integers(3, 13)), [colour(rng) for _ in range(int(rng.integers(2, 5)))]
    start = rng.uniform(0, 360)
    for i in range(slices):
        begin = start + 360 * i / slices
        box = [x - radius, y - radius, x + radius, y + radius]
        d.pieslice(box, begin, begin + 360 / slices, fill=fills[i % len(fills)])


def colour(rng: np.random.Generator) -> tuple[int, ...]:
    """Any colour, every second one muted."""
    found = rng.integers(0, 256, 3)
    return tuple(int(c) for c in (found if rng.random() < 0.5 else 0.4 * found + 0.6 * found.mean()))


def compose(
    bank: Bank, out_MTCHW: Tensor, over: np.ndarray, rng: np.random.Generator, *, pan: float, drawn: float
) -> None:
    """Fills `out` with clips of pictures moving; where `over` is set the background is what lies there already.

    A share `pan` of the clips has a camera over one picture and nothing else; a share `drawn` of pictures are drawings.
    """
    M, T, _, S, _ = out_MTCHW.shape
    dev = out_MTCHW.device
    affine = paths(rng, M, T, S)
    numbers = things(rng, M, over, pan)
    index = bank.draw(rng, M * LAYERS, drawn)
    packed = torch.from_numpy(np.concatenate([affine.reshape(-1), numbers.reshape(-1)]).astype(np.float32))
    packed = packed.to(dev, non_blocking=True)  # one copy for all
    affine_t, numbers_t = packed.split([affine.size, numbers.size])
    source = bank.pictures[torch.from_numpy(index).to(dev)].float()
    over_t = torch.from_numpy(over.astype(np.float32)).to(dev)
    render = draw if dev.type == "cpu" else compiled_draw()
    made = render(
        source, affine_t.view(M * LAYERS, T * BLUR, 6), numbers_t.view(M * LAYERS, 1, -1), out_MTCHW, over_t, S, T
    )
    out_MTCHW.copy_(made)


def paths(rng: np.random.Generator, M: int, T: int, S: int) -> np.ndarray:
    """[M, L, K, 6]: from screen to photograph, photograph pixel = R (screen - c), pixels counted from the middle."""
    L = LAYERS
    shutter = np.where(rng.random((M, 1, 1)) < 0.3, 0.0, rng.uniform(0, 0.9, (M, 1, 1)))
    t = (np.arange(T)[:, None] + (np.arange(BLUR)[None] / BLUR) * shutter).reshape(M, 1, T * BLUR)  # in frames
    mid = (T - 1) / 2
    speed = np.exp(rng.uniform(np.log(0.2), np.log(20.0), (M, L, 1)))  # pixels a frame
    speed[:, 0] = np.exp(rng.uniform(np.log(0.1), np.log(10.0), (M, 1)))
    speed *= rng.random((M, L, 1)) > 0.15
    heading = rng.uniform(0, 2 * np.pi, (M, L, 1))
    bend, ease = rng.normal(0, 0.25, (M, L, 1)), rng.uniform(-0.4, 0.4, (M, L, 1))
    along = speed * ((t - mid) + ease * np.sin(np.pi * t / T) * T / 2)
    across = speed * bend * ((t - mid) ** 2) / T
    start = rng.uniform(-0.4, 0.4, (M, L, 2)) * S
    cx = np.cos(heading) * along - np.sin(heading) * across + start[..., :1]
    cy = np.sin(heading) * along + np.cos(heading) * across + start[..., 1:]
    turn = rng.normal(0, 0.02, (M, L, 1)) * (rng.random((M, L, 1)) < 0.5)
    angle = rng.uniform(-0.4, 0.4, (M, L, 1)) + turn * (t - mid)
    grow = rng.normal(0, 0.006, (M, L, 1)) * (rng.random((M, L, 1)) < 0.5)
    scale = np.exp(rng.uniform(np.log(0.7), np.log(1.6), (M, L, 1))) * np.exp(grow * (t - mid))
    cos, sin = np.cos(angle) * scale, np.sin(angle) * scale
    return np.stack([cos, -sin, -(cos * cx - sin * cy), sin, cos, -(sin * cx + cos * cy)], -1)


def things(rng: np.random.Generator, M: int, over: np.ndarray, pan: float) -> np.ndarray:
    """[M, L, 14]: outline (4 waves and their phases), radius, exponent, aspect, shown or not, middle in the photograph.

    Of a background only the middle counts. Over a real clip there is always one thing.
    """
    L = LAYERS
    waves = np.concatenate([rng.normal(0, 0.16, (M, L, 4)), rng.uniform(0, 2 * np.pi, (M, L, 4))], -1)
    radius = np.exp(rng.uniform(np.log(14), np.log(80), (M, L, 1)))
    exponent = np.where(rng.random((M, L, 1)) < 0.4, 8.0, 2.0)  # squares and rounds
    aspect = np.exp(rng.normal(0, 0.4, (M, L, 1)))
    shown = (rng.random((M, L, 1)) < 0.75) & (rng.random((M, 1, 1)) > pan)
    shown[over, 1] = True
    middle = rng.uniform(-60, 60, (M, L, 2))
    return np.concatenate([waves, radius, exponent, aspect, shown, middle], -1).astype(np.float32)


def draw(source: Tensor, affine: Tensor, numbers: Tensor, under: Tensor, over: Tensor, S: int, T: int) -> Tensor:
    """[M, T, 3, S, S] uint8 from the numbers of `paths` and `things`."""
    place = torch.arange(S, device=source.device) + 0.5 - S / 2
    y, x = place[None, None, :, None], place[None, None, None, :]
    a, n = affine[..., None, None], numbers[..., None, None]
    u = a[:, :, 0] * x + a[:, :, 1] * y + a[:, :, 2]  # [ML, K, S, S], photograph pixels from the thing's middle
    v = a[:, :, 3] * x + a[:, :, 4] * y + a[:, :, 5]
    grid = torch.stack([(u + n[:, :, 12]) * (2 / BANK), (v + n[:, :, 13]) * (2 / BANK)], -1).flatten(1, 2)
    tex = F.grid_sample(source, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    tex = tex.unflatten(2, (T * BLUR, S)).unflatten(0, (-1, LAYERS))  # [M, L, 3, K, S, S]
    alpha = inside(u, v, n).unflatten(0, (-1, LAYERS))[:, :, None]
    clip = under.float().transpose(1, 2).repeat_interleave(BLUR, dim=2)  # [M, 3, K, S, S]
    o = over.view(-1, 1, 1, 1, 1)
    image = clip * o + tex[:, 0] * (1 - o)
    for layer in range(1, LAYERS):
        image = image + (tex[:, layer] - image) * alpha[:, layer]
    image = image.unflatten(2, (T, BLUR)).mean(3)
    return image.round().clamp(0, 255).to(torch.uint8).transpose(1, 2)


def inside(u: Tensor, v: Tensor, n: Tensor) -> Tensor:
    """[ML, K, S, S]: 1 within a thing's outline, 0 outside, smooth between."""
    p = n[:, :, 9]
    r = ((u * n[:, :, 10]).abs().clamp_min(1e-3) ** p + v.abs().clamp_min(1e-3) ** p) ** (1 / p)
    theta = torch.atan2(v, u)
    bound = 1 + sum(n[:, :, k] * torch.cos((k + 1) * theta + n[:, :, 4 + k]) for k in range(4))
    return torch.sigmoid((n[:, :, 8] * bound - r) * 1.5) * n[:, :, 11]


@cache
def compiled_draw() -> Callable[..., Tensor]:
    return torch.compile(draw, dynamic=False)
