# SPDX-License-Identifier: Apache-2.0
"""Short clips with a label, of photographs or videos: thirteen kinds of motion, or the subject of a real video.

Legend: T frames, S side of a square clip in pixels.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.errors import UsageError
from inlay.video.frames import Video

LEFT, RIGHT, UP, DOWN = (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0)
MOTIONS = {  # name -> (what moves, how)
    "still": ("camera", (0.0, 0.0)),
    "pan left": ("camera", LEFT),
    "pan right": ("camera", RIGHT),
    "pan up": ("camera", UP),
    "pan down": ("camera", DOWN),
    "zoom in": ("zoom", (1.0, 0.0)),
    "zoom out": ("zoom", (-1.0, 0.0)),
    "turn left": ("turn", (-1.0, 0.0)),
    "turn right": ("turn", (1.0, 0.0)),
    "object left": ("object", LEFT),
    "object right": ("object", RIGHT),
    "object up": ("object", UP),
    "object down": ("object", DOWN),
}
SUBJECTS = ("animal", "moving-camera", "nature", "robot", "sports", "static-camera", "talking")
PIXELS_A_FRAME = (0.4, 1.6)  # of a clip 64 pixels wide: from barely a cell to three cells in 17 frames
FOLDS = 4  # one of them serves testing, the others training
NOISE = 1.0  # standard deviation in 8-bit levels: a still camera is never quite still


@dataclass(frozen=True, kw_only=True, eq=False)
class Clip:
    """A short video, its class, what it was made from, and the fold that all clips made from that are in."""

    video: Video
    label: int
    source: int
    fold: int


def motion_clips(photos: list[Tensor], *, count: int, frames: int, side: int, seed: int = 0) -> Iterator[Clip]:
    """`count` clips, classes in turn. The photographs are dealt to the folds, so no two folds show the same one."""
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(photos), generator=rng).tolist()
    for i in range(count):
        fold, label = i // len(MOTIONS) % FOLDS, i % len(MOTIONS)
        own = order[fold::FOLDS]
        ground, figure = (photos[own[int(torch.randint(len(own), (1,), generator=rng))]] for _ in "12")
        video = move(ground, figure, list(MOTIONS)[label], frames=frames, side=side, rng=rng)
        yield Clip(video=video, label=label, source=i, fold=fold)


def move(ground_HWC: Tensor, figure_HWC: Tensor, motion: str, *, frames: int, side: int, rng: torch.Generator) -> Video:
    """One clip of that motion, at a random place and speed."""
    what, (x, y) = MOTIONS[motion]
    low, high = PIXELS_A_FRAME
    speed = (low + (high - low) * float(torch.rand(1, generator=rng))) / 32  # in half widths a frame
    time_T = torch.arange(frames) - (frames - 1) / 2  # so that the middle of the clip looks alike in all classes
    zero_T = torch.zeros(frames)
    view = 0.4 + 0.2 * float(torch.rand(1, generator=rng))  # the share of the photograph that is seen
    camera = {
        "camera": (x * speed * time_T, y * speed * time_T, zero_T, zero_T),
        "zoom": (zero_T, zero_T, -x * speed * time_T, zero_T),
        "turn": (zero_T, zero_T, zero_T, x * speed * time_T),
        "object": (zero_T, zero_T, zero_T, zero_T),
    }[what]
    x_TCHW = look(ground_HWC, *camera, view=view, side=side)
    if what == "object":
        start = (torch.rand(2, generator=rng) - 0.5) * 0.5
        radius = 0.25 + 0.15 * float(torch.rand(1, generator=rng))
        centre_T2 = torch.stack([start[0] + x * speed * time_T, start[1] + y * speed * time_T], dim=1)
        x_TCHW = paste(x_TCHW, look(figure_HWC, *(zero_T,) * 4, view=view, side=side), centre_T2, radius)
    x_TCHW = x_TCHW + torch.randn(x_TCHW.shape, generator=rng) * (NOISE / 127.5)
    return Video.from_pixels(x_TCHW.transpose(0, 1))


def look(
    photo_HWC: Tensor, x_T: Tensor, y_T: Tensor, grow_T: Tensor, turn_T: Tensor, *, view: float, side: int
) -> Tensor:
    """[T, 3, S, S]: a window of the photograph, shifted, scaled and turned; twice as fine and then halved."""
    scale_T = view * torch.exp(grow_T)
    cos, sin = scale_T * turn_T.cos(), scale_T * turn_T.sin()
    affine_T23 = torch.stack([cos, -sin, x_T * view, sin, cos, y_T * view], dim=1).view(-1, 2, 3)
    short = min(photo_HWC.shape[:2])
    square = photo_HWC[:short, :short].permute(2, 0, 1).float().div(127.5).sub(1)
    grid = F.affine_grid(affine_T23, [len(x_T), 3, 2 * side, 2 * side], align_corners=False)
    seen = F.grid_sample(
        square[None].expand(len(x_T), -1, -1, -1), grid, padding_mode="reflection", align_corners=False
    )
    return F.avg_pool2d(seen, 2)


def paste(ground_TCHW: Tensor, figure_TCHW: Tensor, centre_T2: Tensor, radius: float) -> Tensor:
    """A soft-edged disc of the figure, carried over the ground along the path of its centre."""
    side = ground_TCHW.shape[-1]
    step = (torch.arange(side) + 0.5) * (2 / side) - 1
    dx = step.view(1, 1, side) - centre_T2[:, 0].view(-1, 1, 1)
    dy = step.view(1, side, 1) - centre_T2[:, 1].view(-1, 1, 1)
    inside_THW = ((radius - torch.sqrt(dx**2 + dy**2)) * side / 2 + 0.5).clamp(0, 1)[:, None]
    affine = torch.eye(2, 3).repeat(len(centre_T2), 1, 1)
    affine[:, :, 2] = -centre_T2  # the figure travels with the disc
    grid = F.affine_grid(affine, list(figure_TCHW.shape), align_corners=False)
    carried = F.grid_sample(figure_TCHW, grid, padding_mode="reflection", align_corners=False)
    return ground_TCHW + (carried - ground_TCHW) * inside_THW


def subject_clips(data: Path, *, frames: int, side: int, windows: int = 3) -> Iterator[Clip]:
    """Windows of the training videos with their category; the videos of a category are dealt to the folds in turn."""
    from inlay.video import open_video

    with (data / "manifest.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["file"].startswith("train/")]
    seen = dict.fromkeys(SUBJECTS, 0)
    for source, row in enumerate(rows):
        if row["category"] not in SUBJECTS or int(row["frames"]) < frames:
            continue
        fold, label = seen[row["category"]] % FOLDS, SUBJECTS.index(row["category"])
        seen[row["category"]] += 1
        with open_video(data / row["file"]) as reader:
            pieces = [piece for piece, _ in zip(reader.chunks(frames), range(windows), strict=False)]
        for piece in (p for p in pieces if len(p) == frames):
            yield Clip(video=shrink(piece, side), label=label, source=source, fold=fold)


def shrink(video: Video, side: int) -> Video:
    """The centre square, made smaller by averaging."""
    short = min(video.height, video.width)
    top, left = (video.height - short) // 2, (video.width - short) // 2
    x_TCHW = video.frames[:, top : top + short, left : left + short].permute(0, 3, 1, 2).float()
    small = F.interpolate(x_TCHW, (side, side), mode="area")
    return Video(frames=small.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous(), fps=video.fps)


def read_photos(folder: Path) -> list[Tensor]:
    """Every photograph of a folder as uint8 [H, W, 3]."""
    from PIL import Image

    paths = sorted(p for p in folder.glob("*") if p.suffix in (".webp", ".jpg", ".png"))
    if len(paths) < 8:
        raise UsageError(f"{folder} has {len(paths)} photographs; at least 8 are needed, or leave --photos out")
    found = []
    for path in paths:
        with Image.open(path) as opened:
            rgb = opened.convert("RGB")
            found.append(torch.frombuffer(bytearray(rgb.tobytes()), dtype=torch.uint8).view(rgb.height, rgb.width, 3))
    return found


def invented_photos(count: int = 64, side: int = 192, seed: int = 0) -> list[Tensor]:
    """Smooth random textures for machines without photographs: sums of waves of all sizes."""
    rng = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.linspace(0, 1, side), torch.linspace(0, 1, side), indexing="ij")
    found = []
    for _ in range(count):
        sum_CHW = torch.zeros(3, side, side)
        for octave in range(1, 6):
            angle, phase, colour = (
                torch.rand(3, generator=rng) * 2 * math.pi,
                torch.rand(3, 1, 1, generator=rng) * 6,
                0.7**octave,
            )
            wave = torch.sin(2**octave * 3 * (x * angle[0].cos() + y * angle[0].sin()) + phase)
            sum_CHW += wave * colour
        found.append(((sum_CHW / 2).tanh() * 120 + 128).to(torch.uint8).permute(1, 2, 0).contiguous())
    return found
