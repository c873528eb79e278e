# SPDX-License-Identifier: Apache-2.0
"""A display matrix or a rotate tag in, an `Orientation` out: how stored frames are turned to be seen upright."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from av.video.frame import VideoFrame


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
