# SPDX-License-Identifier: Apache-2.0
"""Text in, its ink out: Pillow's own font where Pillow is at hand, else a five-by-seven alphabet of ours."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

GLYPHS = {  # seven rows of five bits, top to bottom, two hexadecimal digits a row
    " ": "00000000000000", "%": "18190204081303", "-": "0000001F000000", ".": "00000000000C0C",
    ",": "000000000C0408", "/": "00010204081000", ":": "000C0C000C0C00", "=": "00001F001F0000",
    "0": "0E11131519110E", "1": "040C040404040E", "2": "0E11010204081F", "3": "1F02040201110E",
    "4": "02060A121F0202", "5": "1F101E0101110E", "6": "0608101E11110E", "7": "1F010204080808",
    "8": "0E11110E11110E", "9": "0E11110F01020C",
    "A": "0E11111F111111", "B": "1E11111E11111E", "C": "0E11101010110E", "D": "1E11111111111E",
    "E": "1F10101E10101F", "F": "1F10101E101010", "G": "0E11101711110F", "H": "1111111F111111",
    "I": "0E04040404040E", "J": "0702020202120C", "K": "11121418141211", "L": "1010101010101F",
    "M": "111B1515111111", "N": "11111915131111", "O": "0E11111111110E", "P": "1E11111E101010",
    "Q": "0E11111115120D", "R": "1E11111E141211", "S": "0F10100E01011E", "T": "1F040404040404",
    "U": "1111111111110E", "V": "11111111110A04", "W": "1111111515150A", "X": "11110A040A1111",
    "Y": "1111110A040404", "Z": "1F01020408101F",
}  # fmt: skip


@lru_cache(maxsize=512)
def ink(text: str, size: int) -> Tensor:
    """[H, W] in 0..1, H about `size`: how much of each pixel the letters cover."""
    if find_spec("PIL") is None:
        return bitmap(text, scale=max(1, round(size / 9))).float()
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size)
    picture = Image.new("L", (max(1, round(font.getlength(text)) + 2), size + size // 3))
    ImageDraw.Draw(picture).text((0, size), text, fill=255, font=font, anchor="ls")
    return torch.from_numpy(np.array(picture, np.float32) / 255)


def write(picture_HWC: Tensor, text: str, *, x: int, middle: int, size: int, colour: tuple[int, int, int]) -> int:
    """Put `text` into a uint8 picture, from `x` on and about the row `middle`; cut at the edges; returns its width."""
    ink_HW = ink(text, size)
    top = max(0, middle - ink_HW.shape[0] // 2)
    spot = picture_HWC[top : top + ink_HW.shape[0], x : x + ink_HW.shape[1]]
    share = ink_HW[: spot.shape[0], : spot.shape[1], None]
    spot.copy_(spot * (1 - share) + torch.tensor(colour) * share)  # a view: the picture itself changes
    return ink_HW.shape[1]


def bitmap(text: str, *, scale: int = 2) -> Tensor:
    """[7 * scale, 6 * scale * len(text)] bool; lower case is drawn as upper, an unknown sign as a space.

    >>> bitmap("I", scale=1).int().sum().item()
    11
    """
    columns = []
    for sign in text.upper():
        rows = bytes.fromhex(GLYPHS.get(sign, GLYPHS[" "]))
        columns.append(torch.tensor([[row >> (4 - x) & 1 for x in range(5)] + [0] for row in rows]))
    return torch.cat(columns, 1).bool().repeat_interleave(scale, 0).repeat_interleave(scale, 1)
