# SPDX-License-Identifier: Apache-2.0
"""What the page takes from visitors, or the reason why it is not taken."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from inlay.errors import ConfigError, UsageError

MB = 1 << 20
CHUNK_FRAMES = 36  # of a chunk of a token file, which is decoded at once: nine slots, as the encoder makes them
MOST_RATE = 60  # frames a second; a clip of many more is as dear as a long one


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one visitor may ask for."""

    max_mb: float = field(default=64.0, metadata={"help": "Largest upload in megabytes."})
    max_seconds: float = field(default=10.0, metadata={"help": "Longest video."})
    max_side: int = field(default=1920, metadata={"help": "Longest side of a video."})
    side: int = field(default=256, metadata={"help": "Short side worked at; larger videos are reduced to it."})
    max_work: float = field(default=300.0, metadata={"help": "Most seconds spent on one request."})

    def __post_init__(self) -> None:
        for name in ("max_mb", "max_seconds", "max_side", "side", "max_work"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be above 0 and finite; got {getattr(self, name):g}", about=name)

    @property
    def max_bytes(self) -> int:
        return int(self.max_mb * MB)

    @property
    def max_frames(self) -> int:
        return math.ceil(self.max_seconds * MOST_RATE)

    def check_pixels(self, name: str, pixels: int, *, at_once: int | None = None) -> None:
        """Of a whole clip, as it is worked on, or of `at_once` frames: what one visitor's memory comes to.

        A network takes up to 100 bytes a pixel of what it decodes at once, so that a chunk stays below 1 GB.
        """
        most, what = (at_once or self.max_frames) * 4 * self.side**2, " at once" if at_once else ""
        if pixels > most:
            raise UsageError(
                f"{name} comes to {pixels / 1e6:,.0f} million pixels{what}, and this page takes at most "
                f"{most / 1e6:,.0f}; cut it, or use the command line, which has no such limit"
            )

    def check_bytes(self, path: Path) -> None:
        size = path.stat().st_size
        if size > self.max_bytes:
            raise UsageError(
                f"{path.name} has {size / MB:.1f} MB, and this page takes at most {self.max_mb:g} MB; cut it, "
                "or use the command line, which has no such limit"
            )

    def check(self, name: str, holds: str, *, width: int, height: int, frames: int | None, fps: float) -> None:
        """Of a video that lasts, or a token file that holds, so much: a few bytes may promise hours of black."""
        if max(width, height) > self.max_side:
            raise UsageError(
                f"{name} is {width}x{height}, and this page takes at most {self.max_side} pixels on the longer side; "
                "reduce it, or use the command line, which has no such limit"
            )
        if frames is not None and (frames / fps > self.max_seconds * 1.001 or frames > self.max_frames):
            raise self.too_long(name, f"{holds} {frames / fps:.1f} s ({frames:,} frames)")

    def check_length(self, name: str, frames: int, fps: float) -> None:
        """Of the frames that have come so far: a header may lie about the length."""
        if frames > self.max_frames or frames / fps > self.max_seconds * 1.001 + 1:
            raise self.too_long(name, f"has more than {frames:,} frames")

    def too_long(self, name: str, found: str) -> UsageError:
        return UsageError(
            f"{name} {found}, and this page takes at most {self.max_seconds:g} s and {self.max_frames:,} frames; "
            "cut it, or use the command line, which has no such limit"
        )
