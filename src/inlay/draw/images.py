# SPDX-License-Identifier: Apache-2.0
"""Still pictures: scaled, put in a row, lettered, and written as PNG, JPEG or WebP.

A picture is uint8 [H, W, 3]. Legend: T frames, H W pixels.
"""

from __future__ import annotations

import base64
import io
import math
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import interpolate

from inlay.errors import ShapeError
from inlay.types import describe

INK, PAPER = (235, 235, 235), (24, 24, 24)  # both grey
QUALITY = {"png": None, "jpeg": 85, "webp": 90}
WIDEST = 1280  # pixels of a side that enlarging may lead to

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def font(size: int, text: str = "") -> Font:
    """For type of so many pixels. Pillow's own has ASCII alone: a name with other letters is set in matplotlib's."""
    return _font(size, text.isascii())


@lru_cache
def _font(size: int, plain: bool) -> Font:
    home = None if plain else find_spec("matplotlib")
    place = Path(home.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf" if home and home.origin else None
    if place is None or not place.is_file():
        return ImageFont.load_default(size)
    return ImageFont.truetype(str(place), size)


def blank(height: int, width: int) -> Image.Image:
    """A sheet of paper to draw on."""
    return Image.new("RGB", (width, height), PAPER)


def pixels(image: Image.Image) -> Tensor:
    """The picture of a Pillow image."""
    return torch.from_numpy(np.array(image.convert("RGB")))


@lru_cache(maxsize=512)  # most labels of a film stay for many frames
def label(text: str, height: int, width: int, size: int) -> Tensor:
    """One line of text on paper, cut off at the right where it is too long."""
    paper = blank(height, width)
    ImageDraw.Draw(paper).text((size // 4, height // 2), text, fill=INK, font=font(size, text), anchor="lm")
    return pixels(paper)


def fitted(frames_THWC: Tensor, smallest: int, largest: int) -> Tensor:
    """Bring the short side near a range: enlarge by a whole number, so that cells stay crisp, but no long side beyond
    WIDEST; reduce by area."""
    short, long = sorted(frames_THWC.shape[1:3])
    if short < smallest:
        factor = max(1, min(math.ceil(smallest / short), WIDEST // long))
        return frames_THWC.repeat_interleave(factor, 1).repeat_interleave(factor, 2)
    if short <= largest:
        return frames_THWC
    size = [round(side * largest / short) for side in frames_THWC.shape[1:3]]
    small = interpolate(frames_THWC.permute(0, 3, 1, 2).float(), size=size, mode="area")
    return small.round().to(torch.uint8).permute(0, 2, 3, 1)


def strip(frames_THWC: Tensor, *, short: int, gap: int = 4) -> Tensor:
    """Frames in a row on middle grey, which suits light and dark pages."""
    small = fitted(frames_THWC, short, short)
    between = torch.full((small.shape[1], gap, 3), 128, dtype=torch.uint8)
    return torch.cat([part for picture in small for part in (between, picture)][1:], 1)


def image_bytes(picture_HWC: Tensor, kind: Literal["png", "jpeg", "webp"] = "png") -> bytes:
    """The picture as a file: PNG for lines, JPEG and WebP for photographs, which would be ten times as large."""
    if picture_HWC.ndim != 3 or picture_HWC.shape[2] != 3 or picture_HWC.dtype != torch.uint8:
        raise ShapeError(f"a picture is uint8 [H, W, 3]; got {describe(picture_HWC)}")
    target = io.BytesIO()
    options = {} if kind == "png" else {"quality": QUALITY[kind], "method": 0}  # method 0: the page waits for it
    Image.fromarray(picture_HWC.cpu().contiguous().numpy()).save(target, kind, **options)
    return target.getvalue()


def data_uri(data: bytes, kind: str) -> str:
    """An image file as an address, so that a page carries it along."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
