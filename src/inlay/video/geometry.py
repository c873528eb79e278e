# SPDX-License-Identifier: Apache-2.0
"""How a frame is resized, and where it is cropped, for the size that is wanted."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from inlay.errors import ConfigError

_SIZE = re.compile(r"(\d{1,6})x(\d{1,6})")


@dataclass(frozen=True, kw_only=True)
class ResizePlan:
    """A frame is resized to `width` x `height`, then `crop_width` x `crop_height` is cut out at (left, top)."""

    width: int
    height: int
    left: int
    top: int
    crop_width: int
    crop_height: int


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Resize, centre-crop, or (with nothing set) keep the size. Sizes are (width, height), as videos are named.

    >>> Geometry.parse("256").plan(1920, 1080)
    ResizePlan(width=456, height=256, left=0, top=0, crop_width=456, crop_height=256)
    """

    short_side: int | None = field(default=None, metadata={"help": "resize so that the short side has this length"})
    cover: tuple[int, int] | None = field(default=None, metadata={"help": "resize to just cover WxH, then crop to it"})
    crop: tuple[int, int] | None = field(default=None, metadata={"help": "centre-crop to WxH, after any resize"})

    def __post_init__(self) -> None:
        if self.cover is not None and (self.short_side is not None or self.crop is not None):
            raise ConfigError("cover already says resize and crop; give either cover, or short_side and crop")
        for name in ("short_side", "cover", "crop"):
            value = getattr(self, name)
            sides = () if value is None else (value,) if isinstance(value, int) else value
            if any(side < 1 for side in sides):
                raise ConfigError(f"{name} must be at least 1 pixel; got {value}")

    @staticmethod
    def parse(text: str) -> Geometry:
        """`keep`; `256` the short side; `320x256` cover and crop; `crop:320x256` crop without resizing."""
        word = text.strip().lower() if isinstance(text, str) else ""
        if word == "keep":
            return Geometry()
        if word.isdecimal() and len(word) <= 6:
            return Geometry(short_side=int(word))
        if match := _SIZE.fullmatch(word.removeprefix("crop:")):
            sides = (int(match[1]), int(match[2]))
            return Geometry(crop=sides) if word.startswith("crop:") else Geometry(cover=sides)
        raise ConfigError(
            f"a size is 'keep', a short side ('256'), 'WxH' ('320x256') or 'crop:WxH' ('crop:320x256'); got {text!r}"
        )

    def __str__(self) -> str:
        """What `parse` reads; a short side with a crop has no such form and is spelt out."""
        if self.cover is not None:
            return f"{self.cover[0]}x{self.cover[1]}"
        crop = "" if self.crop is None else f"crop:{self.crop[0]}x{self.crop[1]}"
        side = "" if self.short_side is None else str(self.short_side)
        return " then ".join(filter(None, (side, crop))) or "keep"

    def plan(self, width: int, height: int) -> ResizePlan:
        """What to do with frames of this size."""
        resized = self._resized(width, height)
        box = self.cover or self.crop or resized
        if box[0] > resized[0] or box[1] > resized[1]:
            raise ConfigError(
                f"cannot crop {box[0]}x{box[1]} out of {resized[0]}x{resized[1]}; "
                f"crop less, or resize to cover it with '{box[0]}x{box[1]}'"
            )
        left, top = (resized[0] - box[0]) // 2, (resized[1] - box[1]) // 2
        return ResizePlan(
            width=resized[0], height=resized[1], left=left, top=top, crop_width=box[0], crop_height=box[1]
        )

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        if self.short_side is not None:
            short, long = sorted((width, height))
            # even, because 4:2:0 video cannot have odd sides; the stretch is below one pixel
            other = self.short_side if short == long else max(2, 2 * round(long * self.short_side / short / 2))
            other = max(other, self.short_side)
            return (self.short_side, other) if width <= height else (other, self.short_side)
        if self.cover is not None:
            w, h = self.cover
            if w * height >= h * width:
                return w, max(h, round(height * w / width))
            return max(w, round(width * h / height)), h
        return width, height
