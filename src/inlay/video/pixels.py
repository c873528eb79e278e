# SPDX-License-Identifier: Apache-2.0
"""The RGB pixels of decoded frames: one swscale pass for colour and size, one copy for turning and cropping."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from inlay.errors import VideoError
from inlay.video.geometry import Geometry
from inlay.video.source import pyav

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.reformatter import Interpolation

MOST_PIXELS = 1 << 27  # of one frame: 16k x 8k; more is a damaged header or an attack

_KNOWN_MATRICES = {0, 1, 2, 4, 5, 6, 7, 9, 10}  # the colour matrices swscale converts from; others are read as untagged
_UNTAGGED = 2


def careful_bicubic() -> Interpolation:
    """Exact rounding and full chroma resolution: slower than swscale's default, and the same on every machine."""
    kind = pyav().video.reformatter.Interpolation
    return kind.BICUBIC | kind.ACCURATE_RND | kind.BITEXACT | kind.FULL_CHR_H_INT | kind.FULL_CHR_H_INP


def check_pixels(width: int, height: int, name: str) -> None:
    if width * height > MOST_PIXELS:
        raise VideoError(
            f"{name}: a frame of {width}x{height} is beyond {MOST_PIXELS:,} pixels; the header is damaged, or resize it"
        )


@dataclass(frozen=True, kw_only=True)
class Orientation:
    """One of the eight ways to lay a picture down: swap rows and columns first, then mirror."""

    swap: bool = False
    mirror_x: bool = False
    mirror_y: bool = False

    def apply(self, x_HWC: np.ndarray) -> np.ndarray:
        """A view, no copy."""
        x = x_HWC.swapaxes(0, 1) if self.swap else x_HWC
        return x[:: -1 if self.mirror_y else 1, :: -1 if self.mirror_x else 1]


_BY_DEGREES = {  # clockwise, as the old tag counts
    0: Orientation(),
    90: Orientation(swap=True, mirror_x=True),
    180: Orientation(mirror_x=True, mirror_y=True),
    270: Orientation(swap=True, mirror_y=True),
}


def orientation(frame: VideoFrame, tags: Mapping[str, str]) -> Orientation:
    """What the frame's display matrix says, or else the stream's `rotate` tag, to the nearest quarter turn."""
    side_data: Any = frame.side_data.get("DISPLAYMATRIX")
    if side_data is not None:
        return from_matrix(struct.unpack("=9i", bytes(side_data)[:36]))
    tag = next((value for key, value in tags.items() if key.lower() == "rotate"), "0")
    try:
        degrees = 90 * round(float(tag) / 90) % 360
    except (ValueError, OverflowError):
        degrees = 0
    return _BY_DEGREES[degrees]


def from_matrix(matrix: tuple[int, ...]) -> Orientation:
    """Rows (a b u) (c d v) (x y w): a stored pixel (p, q) is shown at (a p + c q, b p + d q)."""
    a, b, _, c, d = matrix[:5]
    if abs(b) + abs(c) > abs(a) + abs(d):
        return Orientation(swap=True, mirror_x=c < 0, mirror_y=b < 0)
    return Orientation(mirror_x=a < 0, mirror_y=d < 0)


class Converter:
    """Turns frames into pixels, all as the first one was laid out, even where the stream changes size half-way."""

    def __init__(self, first: VideoFrame, tags: Mapping[str, str], geometry: Geometry, name: str) -> None:
        self.name = name
        self.orientation = orientation(first, tags)
        shown = (first.height, first.width) if self.orientation.swap else (first.width, first.height)
        self.plan = geometry.plan(*shown)
        check_pixels(self.plan.width, self.plan.height, name)
        self.width, self.height = self.plan.crop_width, self.plan.crop_height
        self._reformatter = pyav().video.reformatter.VideoReformatter()
        self._flags = careful_bicubic()

    def __call__(self, frame: VideoFrame) -> torch.Tensor:
        """[H, W, 3] uint8."""
        plan = self.plan
        width, height = (plan.height, plan.width) if self.orientation.swap else (plan.width, plan.height)
        plane: Any = self._rgb(frame, width, height).planes[0]
        x_HWC = np.ndarray((height, width, 3), np.uint8, buffer=plane, strides=(plane.line_size, 3, 1))
        x_HWC = self.orientation.apply(x_HWC)[plan.top : plan.top + self.height, plan.left : plan.left + self.width]
        return torch.from_numpy(x_HWC.copy(order="C"))

    def _rgb(self, frame: VideoFrame, width: int, height: int) -> VideoFrame:
        av = pyav()
        if frame.colorspace not in _KNOWN_MATRICES:
            frame.colorspace = _UNTAGGED
        try:
            return self._reformatter.reformat(frame, width, height, format="rgb24", interpolation=self._flags)
        except (av.FFmpegError, ValueError) as error:
            raise VideoError(f"{self.name}: pixels of format {frame.format.name} cannot be turned into RGB") from error
