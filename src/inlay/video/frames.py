# SPDX-License-Identifier: Apache-2.0
"""`Video`: the frames of a video in memory, with their times.

Legend: C channels, T frames, H W height and width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from inlay.types import check_shape, describe


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Video:
    """Frames as a file holds them."""

    frames: Tensor  # [T, H, W, 3] uint8, RGB
    fps: Fraction = Fraction(24)
    seconds: Tensor | None = None  # [T] float64 presentation times; None: constant frame rate from zero

    def __post_init__(self) -> None:
        f = self.frames
        check_shape(
            f.ndim == 4 and f.shape[-1] == 3 and f.dtype == torch.uint8 and 0 not in f.shape,
            f"a video is uint8 [T, H, W, 3] with at least one frame; got {describe(f)}",
        )
        check_shape(self.fps > 0, f"the frame rate must be positive; got {self.fps}")
        if self.seconds is not None:
            check_shape(
                tuple(self.seconds.shape) == (len(f),),
                f"{len(f)} frames need {len(f)} times; got {describe(self.seconds)}",
            )

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, span: slice) -> Video:
        times = None if self.seconds is None else self.seconds[span]
        return Video(frames=self.frames[span], fps=self.fps, seconds=times)

    def __repr__(self) -> str:
        return f"Video({describe(self.frames)}, fps={float(self.fps):g})"

    @property
    def height(self) -> int:
        return self.frames.shape[1]

    @property
    def width(self) -> int:
        return self.frames.shape[2]

    def pixels(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Tensor:
        """[1, 3, T, H, W] in [-1, 1]."""
        x_CTHW = self.frames.to(device).permute(3, 0, 1, 2)
        return x_CTHW.to(torch.float32).div_(127.5).sub_(1).to(dtype)[None]

    @staticmethod
    def from_pixels(x_CTHW: Tensor, *, fps: Fraction = Fraction(24), seconds: Tensor | None = None) -> Video:
        """The inverse of `pixels` for one clip: clamp, round to nearest, uint8."""
        check_shape(
            x_CTHW.ndim == 4 and x_CTHW.shape[0] == 3, f"pixels of one clip are [3, T, H, W]; got {describe(x_CTHW)}"
        )
        x = x_CTHW.detach().float().clamp(-1, 1).add(1).mul(127.5).round().to(torch.uint8)
        return Video(frames=x.permute(1, 2, 3, 0).contiguous().cpu(), fps=fps, seconds=seconds)

    def save(self, path: str | PathLike[str], **options: object) -> Path:
        """Write to a video file; options as for `inlay.video.write_video`."""
        from inlay.video.writer import write_video

        return write_video(self, path, **options)  # type: ignore[arg-type]


def join_videos(parts: Sequence[Video]) -> Video:
    """Join pieces of one video; those without times stand on the grid of the frame rate."""
    if len(parts) == 1:
        return parts[0]
    seconds = None
    if any(part.seconds is not None for part in parts):
        firsts = accumulate(map(len, parts[:-1]), initial=0)
        seconds = torch.cat([_seconds(part, first) for part, first in zip(parts, firsts, strict=True)])
    return Video(frames=torch.cat([part.frames for part in parts]), fps=parts[0].fps, seconds=seconds)


def _seconds(part: Video, first: int) -> Tensor:
    """[T] the times of a piece whose first frame is the `first`-th of its video."""
    if part.seconds is not None:
        return part.seconds
    return (first + torch.arange(len(part), dtype=torch.float64)) / float(part.fps)
