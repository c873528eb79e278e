# SPDX-License-Identifier: Apache-2.0
"""The line above a film: file, tau, and what was kept, spent and lost up to the chunk that is shown."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from inlay.codec import KeepCurve
from inlay.container.tokens import Tokens
from inlay.container.writer import added_bytes
from inlay.draw.images import font, label
from inlay.measure import MeasureConfig
from inlay.measure.pixel import ErrorGauge
from inlay.measure.tokens import pixel_count
from inlay.video.frames import Video

SMALLEST = 10  # pixels of letters: below this nobody reads them


@dataclass(kw_only=True)
class Caption:
    """Grows with the film.

    Args:
        title: the name of the file.
        bits_per_pixel: as somebody else counts them; without it those of a token file are counted.
    """

    title: str = ""
    bits_per_pixel: float | None = None
    kept: KeepCurve = field(default_factory=KeepCurve)
    _bytes: int = 0
    _pixels: int = 0
    _errors: ErrorGauge = field(default_factory=lambda: ErrorGauge(MeasureConfig(device="cpu")))

    def add(self, tokens: Tokens, original: Video | None, result: Video) -> str:
        """The line for the next chunk."""
        first = not self.kept.frames
        self.kept.add(tokens)
        if self.bits_per_pixel is None:
            self._bytes += added_bytes(tokens, first=first)
            self._pixels += pixel_count(tokens.info)
        if original is not None:
            self._errors.update(original.frames.cpu(), result.frames.cpu())
        return self._line(tokens)

    def _line(self, tokens: Tokens) -> str:
        recipe = tokens.recipe
        bits = 8 * self._bytes / self._pixels if self.bits_per_pixel is None else self.bits_per_pixel
        words = [self.title] if self.title else []
        words += [f"tau {recipe.tau:.3g}", f"{100 * self.kept.keep_rate:.1f} % kept", f"{bits:.3f} bits a pixel"]
        words += [f"PSNR {self._errors.finish()['psnr']:.1f} dB"] if self._errors.frames else []
        return "  |  ".join(words)


def line_picture(text: str, width: int, size: int) -> Tensor:
    """[H, width, 3]: one line in type of `size` pixels, or smaller where it would not fit; a name too long is cut."""
    while size > SMALLEST and font(size, text).getlength(text) > width - size // 2:
        size -= 1
    return label(text, round(1.7 * size), width, size)


def above(picture_HWC: Tensor, frames_THWC: Tensor) -> Tensor:
    """The same picture on top of every frame."""
    return torch.cat([picture_HWC.expand(len(frames_THWC), *picture_HWC.shape), frames_THWC], 1)
