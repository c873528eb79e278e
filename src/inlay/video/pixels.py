# SPDX-License-Identifier: Apache-2.0
"""A decoded frame in, its RGB pixels out: one swscale pass for colour and size, one copy for turning and cropping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from inlay.errors import VideoError
from inlay.video.geometry import Geometry
from inlay.video.orient import orientation
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
