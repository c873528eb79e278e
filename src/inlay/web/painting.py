# SPDX-License-Identifier: Apache-2.0
"""Frames and masks in, pictures out: kept cells lit, differences, a strip of slots. No plotting library, for speed.

Legend: H W pixels, h w cells.
"""

from __future__ import annotations

import base64
import io

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont

from inlay.video import lighting

Picture = npt.NDArray[np.uint8]  # [H, W, 3]
Mask = npt.NDArray[np.bool_]  # [h, w]

GAIN = 4  # how much a difference is enlarged
RAMP = np.array([[0, 32, 77], [65, 77, 107], [124, 123, 120], [188, 175, 111], [255, 234, 70]], np.float32)
GAP, HEAD, TYPE = 8, 28, 17  # pixels of the film: between panels, above them, of letters
PAPER, INK = 24, (235, 235, 235)
SMALL = 160  # a film's panel with a shorter side is enlarged


def light(frame_HWC: Picture, keep_hw: Mask, stride: int) -> Picture:
    """One frame under its mask."""
    frame_1HWC, keep_1hw = torch.from_numpy(frame_HWC)[None], torch.from_numpy(keep_hw)[None]
    return lighting.light(frame_1HWC, keep_1hw, stride)[0].numpy()


def difference(a_HWC: Picture, b_HWC: Picture) -> Picture:
    """Mean absolute error over colours, GAIN times enlarged: dark blue is none, yellow is 64 levels or more."""
    error_HW = np.abs(a_HWC.astype(np.int16) - b_HWC).mean(-1)
    share = np.clip(error_HW * GAIN / 255, 0, 1) * (len(RAMP) - 1)
    low = np.minimum(share.astype(int), len(RAMP) - 2)
    rest = (share - low)[..., None]
    return (RAMP[low] * (1 - rest) + RAMP[low + 1] * rest).astype(np.uint8)


def thumbnail(picture_HWC: Picture, side: int = 128) -> Picture:
    image = Image.fromarray(picture_HWC)
    image.thumbnail((side, side), Image.Resampling.BOX)
    return np.asarray(image)


def strip(pictures: list[Picture], gap: int = 4) -> Picture:
    """Pictures of one size in a row, on transparent-looking middle grey that suits light and dark pages."""
    height, width, _ = pictures[0].shape
    row = np.full((height, len(pictures) * (width + gap) - gap, 3), 128, np.uint8)
    for i, picture in enumerate(pictures):
        row[:, i * (width + gap) : i * (width + gap) + width] = picture
    return row


def data_uri(picture_HWC: Picture) -> str:
    """Inline, so that what is only looked at never becomes a file."""
    target = io.BytesIO()
    Image.fromarray(picture_HWC).save(target, "WEBP", quality=90, method=0)
    return "data:image/webp;base64," + base64.b64encode(target.getvalue()).decode("ascii")


def film_frame(panels: list[tuple[str, Picture]]) -> Picture:
    """Labelled panels side by side; even sides, which play everywhere."""
    drawn = [_panel(label, picture) for label, picture in panels]
    height = drawn[0].shape[0]
    width = sum(p.shape[1] for p in drawn) + GAP * (len(drawn) - 1)
    film = np.full((height + height % 2, width + width % 2, 3), PAPER, np.uint8)
    x = 0
    for panel in drawn:
        film[:height, x : x + panel.shape[1]] = panel
        x += panel.shape[1] + GAP
    return film


def _panel(label: str, picture_HWC: Picture) -> Picture:
    factor = -(-SMALL // min(picture_HWC.shape[:2]))
    picture = picture_HWC.repeat(factor, 0).repeat(factor, 1)
    head = Image.new("RGB", (picture.shape[1], HEAD), (PAPER,) * 3)
    ImageDraw.Draw(head).text((4, HEAD // 2), label, fill=INK, font=ImageFont.load_default(TYPE), anchor="lm")
    return np.concatenate([np.asarray(head), picture])
