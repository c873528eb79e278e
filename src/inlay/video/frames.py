# SPDX-License-Identifier: Apache-2.0
"""`Video`: the frames of a video in memory, with their times.

Legend: C channels, T frames, H W height and width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import accumulate
from os import PathLike
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from inlay.errors import ShapeError
from inlay.kernels import may_run
from inlay.types import as_fraction, check_shape, describe

ORDERS = ("THWC", "TCHW", "CTHW")  # of axes, that are common


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Video:
    """Frames as a file holds them."""

    frames: Tensor  # [T, H, W, 3] uint8, RGB
    fps: Fraction = Fraction(24)
    seconds: Tensor | None = None  # [T] float64 presentation times; None: constant frame rate from zero

    def __post_init__(self) -> None:
        f = self.frames
        check_shape(
            isinstance(f, Tensor),
            f"the frames of a video are a tensor, which torch.as_tensor makes of an array; got {type(f).__name__}",
        )
        check_shape(
            f.ndim == 4 and f.shape[-1] == 3 and f.dtype == torch.uint8 and 0 not in f.shape,
            f"a video is uint8 [T, H, W, 3] with at least one frame; got {describe(f)}",
        )
        rate = as_fraction(self.fps)
        check_shape(rate > 0, f"the frame rate must be positive; got {self.fps!r}")
        object.__setattr__(self, "fps", rate)
        if self.seconds is not None:
            check_shape(
                tuple(self.seconds.shape) == (len(f),),
                f"{len(f)} frames need {len(f)} times; got {describe(self.seconds)}",
            )

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, span: slice[int | None, int | None, int | None]) -> Video:
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
        return to_pixels(self.frames.to(device)[None], dtype)

    @staticmethod
    def from_pixels(x_CTHW: Tensor, *, fps: Fraction = Fraction(24), seconds: Tensor | None = None) -> Video:
        """The inverse of `pixels` for one clip: clamp, round to nearest, uint8."""
        check_shape(
            x_CTHW.ndim == 4 and x_CTHW.shape[0] == 3, f"pixels of one clip are [3, T, H, W]; got {describe(x_CTHW)}"
        )
        return Video(frames=to_frames(x_CTHW[None])[0].cpu(), fps=fps, seconds=seconds)

    def save(
        self,
        path: str | PathLike[str],
        *,
        lossless: bool = False,
        crf: float = 16,
        fps: float | Fraction | None = None,
        force: bool = False,
    ) -> Path:
        """Write to a video file; the suffix says of which kind.

        Args:
            lossless: keep every pixel.
            crf: quality otherwise, from 0 (best) to 51 (smallest).
            fps: in place of the video's own rate and times.
            force: replace a file that is there.
        """
        from inlay.video.writer import write_video  # PyAV is loaded when a file is written

        return write_video(self, path, lossless=lossless, crf=crf, fps=fps, force=force)


def to_pixels(frames_BTHWC: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """[B, 3, T, H, W] in [-1, 1] of uint8 frames."""
    levels = frames_BTHWC.dtype == torch.uint8 and frames_BTHWC.is_contiguous()
    if levels and may_run("pixels", tensors=(frames_BTHWC,)):
        from inlay.kernels.pixels_triton import look_up  # Triton is imported when it first runs

        return look_up(frames_BTHWC, pixel_levels(frames_BTHWC.device, dtype))
    return plain_pixels(frames_BTHWC, dtype)


def plain_pixels(frames_BTHWC: Tensor, dtype: torch.dtype) -> Tensor:
    """`to_pixels` without its kernel."""
    return torch.div(frames_BTHWC.permute(0, 4, 1, 2, 3), 127.5).sub_(1).to(dtype)


@cache
def pixel_levels(device: torch.device, dtype: torch.dtype) -> Tensor:
    """[256] the pixel of each grey level. Made before any capture: those run a function plainly first."""
    levels = torch.arange(256, dtype=torch.uint8, device=device)
    return plain_pixels(levels.view(1, 1, 1, -1, 1), dtype).flatten()


def to_frames(x_BCTHW: Tensor) -> Tensor:
    """[B, T, H, W, 3] uint8 of pixels in [-1, 1]: clamp, round to nearest."""
    if x_BCTHW.is_floating_point() and may_run("pixels", tensors=(x_BCTHW,)):
        from inlay.kernels.pixels_triton import frames_of  # Triton is imported when it first runs

        return frames_of(x_BCTHW)
    return plain_frames(x_BCTHW)


def plain_frames(x_BCTHW: Tensor) -> Tensor:
    """`to_frames` without its kernel."""
    x = x_BCTHW.detach().clamp(-1, 1).float().add_(1).mul_(127.5).round_().to(torch.uint8)
    return x.permute(0, 2, 3, 4, 1).contiguous()


def resized(frames_THWC: Tensor, height: int, width: int) -> Tensor:
    """Frames of another size: bicubic, smoothed where they become smaller; each by itself, whatever comes with it."""
    if frames_THWC.shape[1:3] == (height, width):
        return frames_THWC
    rows = [
        F.interpolate(frame_HWC.permute(2, 0, 1)[None].float(), (height, width), mode="bicubic", antialias=True)
        for frame_HWC in frames_THWC
    ]
    return torch.cat(rows).round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _as_tensor(frames: Tensor | NDArray[np.uint8] | NDArray[np.float32]) -> Tensor:
    if isinstance(frames, Tensor):
        return frames.detach()
    try:  # a copy of what PyTorch cannot share: axes that run backwards (BGR[..., ::-1]), memory that is read-only
        return torch.from_numpy(np.require(frames, requirements=["C", "W"]))
    except TypeError as error:
        kind = f"{frames.dtype}{list(frames.shape)}"
        raise ShapeError(f"frames are uint8, or floating point in [-1, 1]; got {kind}") from error


def from_array(
    frames: Tensor | NDArray[np.uint8] | NDArray[np.float32], *, axes: str = "THWC", fps: Fraction = Fraction(24)
) -> Video:
    """Frames of any axis order, uint8, or floating point in [-1, 1]."""
    x = _as_tensor(frames)
    if sorted(axes) != sorted("THWC"):
        raise ShapeError(f"axes names the order of T, H, W and C, such as THWC; got {axes!r}")
    single = "; a list of frames is stacked into one array first" if x.ndim == 3 else ""
    check_shape(x.ndim == 4, f"frames of one video are {', '.join(axes)}; got {describe(x)}{single}")
    colours = x.shape[axes.index("C")]
    others = [order for order in ORDERS if x.shape[order.index("C")] == 3]
    cure = f"axes names another order, such as {others[0]}" if others else "convert them to RGB first"
    check_shape(colours == 3, f"frames {axes} have 3 colours, and not {colours}; {cure}")
    x = x.permute(*(axes.index(axis) for axis in "THWC"))
    if x.is_floating_point():
        check_shape(bool(x.isfinite().all()), "frames hold numbers that are not finite; give pixels in [-1, 1]")
        most = float(x.abs().max())
        check_shape(most <= 1 + 1e-3, f"floating point frames are pixels in [-1, 1]; got up to {most:g}")
        return Video.from_pixels(x.permute(3, 0, 1, 2), fps=fps)
    check_shape(x.dtype == torch.uint8, f"frames are uint8, or floating point in [-1, 1]; got {describe(x)}")
    return Video(frames=x.contiguous(), fps=fps)


def join_videos(parts: Sequence[Video]) -> Video:
    """Join pieces of one video; those without times stand on the grid of the frame rate."""
    if len(parts) == 1:
        return parts[0]
    return Video(frames=torch.cat([part.frames for part in parts]), fps=parts[0].fps, seconds=join_seconds(parts))


def join_seconds(parts: Sequence[Video]) -> Tensor | None:
    """[T] the times of pieces of one video; None where none has any."""
    if all(part.seconds is None for part in parts):
        return None
    firsts = accumulate(map(len, parts[:-1]), initial=0)
    return torch.cat([_seconds(part, first) for part, first in zip(parts, firsts, strict=True)])


def _seconds(part: Video, first: int) -> Tensor:
    """[T] the times of a piece whose first frame is the `first`-th of its video."""
    if part.seconds is not None:
        return part.seconds
    return (first + torch.arange(len(part), dtype=torch.float64)) / float(part.fps)


Pieces = Video | Iterable[Video]  # one video, whole or as it comes


def in_step(a: Pieces, b: Pieces) -> Iterator[tuple[Video, Video]]:
    """Cut two videos in pieces at the same places, however each was cut before."""
    left, right = (iter([x] if isinstance(x, Video) else x) for x in (a, b))
    p, q, done = next(left, None), next(right, None), 0
    while p is not None and q is not None:
        n = min(len(p), len(q))
        yield p[:n], q[:n]
        done += n
        p = p[n:] if len(p) > n else next(left, None)
        q = q[n:] if len(q) > n else next(right, None)
    if p is not None or q is not None:
        ends = [done + (0 if rest is None else len(rest)) for rest in (p, q)]
        more = "at least " if p is not None else ""
        also = "at least " if q is not None else ""
        raise ShapeError(
            f"the videos differ in length: {more}{ends[0]} and {also}{ends[1]} frames; cut the longer one first"
        )
