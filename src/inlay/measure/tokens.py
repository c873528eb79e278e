# SPDX-License-Identifier: Apache-2.0
"""What tokens cost: keep rate, tokens, bits per pixel."""

from __future__ import annotations

from dataclasses import dataclass

from inlay.container.tokens import Tokens
from inlay.errors import UsageError
from inlay.types import VideoInfo


@dataclass(frozen=True, kw_only=True)
class TokenCounts:
    """What a video costs. `keep_rate` counts cells, `bits_per_pixel` counts bits; neither stands for the other."""

    tokens: int
    cells: int
    keep_rate: float
    pixels: int  # width x height x frames of the video, padding not counted
    bits_per_pixel: float
    convention: str


def count_tokens(tokens: Tokens, *, size_bytes: int | None = None) -> TokenCounts:
    """Counts of one video; the bits are those of its file where the size is given, else of 16-bit numbers."""
    if size_bytes is None:
        bits = 16 * len(tokens) * tokens.channels + tokens.cells  # no entropy coder: each number, and a mask bit a cell
        convention = "bits of the kept values at 16 bits a number, plus one mask bit a cell, per pixel of the source"
    else:
        if size_bytes < 0:
            raise UsageError(f"a file has no negative size; got {size_bytes} bytes")
        bits = 8 * size_bytes
        convention = "bits of the whole token file, header and checksums included, per pixel of the source"
    return TokenCounts(
        tokens=len(tokens),
        cells=tokens.cells,
        keep_rate=tokens.keep_rate,
        pixels=pixel_count(tokens.info),
        bits_per_pixel=bits / pixel_count(tokens.info),
        convention=convention,
    )


def bits_per_pixel(size_bytes: int, info: VideoInfo) -> float:
    return 8 * size_bytes / pixel_count(info)


def pixel_count(info: VideoInfo) -> int:
    return info.width * info.height * info.frames
