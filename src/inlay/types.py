# SPDX-License-Identifier: Apache-2.0
"""The nouns that travel between rooms. Each checks itself when made and prints shapes, not numbers.

Legend: B batch, C channels, T video frames or latent slots, H W height and width, N kept cells.
Inside the walls pixels and latents are B C T H W, pixels in [-1, 1]; a file boundary hands out uint8 T H W C.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from inlay.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from os import PathLike

PRECISIONS = ("fp32", "fp16", "bf16", "q8")


def describe(t: Tensor) -> str:
    """`float32[1, 16, 9, 32, 32]`: what a tensor is, without its numbers."""
    return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"


def _check(ok: bool, message: str) -> None:
    if not ok:
        raise ShapeError(message)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Video:
    """Frames as a file holds them."""

    frames: Tensor  # [T, H, W, 3] uint8, RGB
    fps: Fraction = Fraction(24)
    seconds: Tensor | None = None  # [T] float64 presentation times; None: constant frame rate from zero

    def __post_init__(self) -> None:
        f = self.frames
        _check(
            f.ndim == 4 and f.shape[-1] == 3 and f.dtype == torch.uint8 and 0 not in f.shape,
            f"a video is uint8 [T, H, W, 3] with at least one frame; got {describe(f)}",
        )
        _check(self.fps > 0, f"the frame rate must be positive; got {self.fps}")
        if self.seconds is not None:
            _check(
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
        _check(
            x_CTHW.ndim == 4 and x_CTHW.shape[0] == 3, f"pixels of one clip are [3, T, H, W]; got {describe(x_CTHW)}"
        )
        x = x_CTHW.detach().float().clamp(-1, 1).add(1).mul(127.5).round().to(torch.uint8)
        return Video(frames=x.permute(1, 2, 3, 0).contiguous().cpu(), fps=fps, seconds=seconds)

    def save(self, path: str | PathLike[str], **options: object) -> Path:
        """Write to a video file; options as for `inlay.video.write_video`."""
        from inlay.video import write_video

        return write_video(self, path, **options)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Latents:
    """What a backbone makes of clips of equal size."""

    values: Tensor  # [B, C, T, H, W]

    def __post_init__(self) -> None:
        v = self.values
        _check(
            v.ndim == 5 and v.is_floating_point() and 0 not in v.shape,
            f"latents are floating point [B, C, T, H, W], none of them 0; got {describe(v)}",
        )

    def __repr__(self) -> str:
        return f"Latents({describe(self.values)})"

    @property
    def grid(self) -> tuple[int, int, int]:
        """(t, h, w): slots, rows, columns."""
        _, _, t, h, w = self.values.shape
        return t, h, w


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class KeepMask:
    """Which cells of which clip are kept."""

    keep: Tensor  # [B, T, H, W] bool

    def __post_init__(self) -> None:
        m = self.keep
        _check(
            m.ndim == 4 and m.dtype == torch.bool and 0 not in m.shape,
            f"a keep mask is bool [B, T, H, W], none of them 0; got {describe(m)}",
        )

    def __repr__(self) -> str:
        return f"KeepMask({describe(self.keep)}, keep_rate={self.keep_rate:.4f})"

    @property
    def counts(self) -> Tensor:
        """[B] kept cells of each clip."""
        return self.keep.flatten(1).sum(1)

    @property
    def keep_rate(self) -> float:
        return self.keep.sum().item() / self.keep.numel()


@dataclass(frozen=True, kw_only=True)
class VideoInfo:
    """The video a token file came from, and the video it decodes to."""

    width: int
    height: int
    fps: Fraction
    frames: int

    def __post_init__(self) -> None:
        for name in ("width", "height", "frames"):
            _check(getattr(self, name) >= 1, f"{name} must be at least 1; got {getattr(self, name)}")
        _check(self.fps > 0, f"fps must be positive; got {self.fps}")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How tokens were made: all that is needed to decode them, and to make them again."""

    backbone: str
    weight_hash: str  # of the backbone, so that decoding with another one is refused
    tau: float
    criterion: str = "latent-l1"
    reference: str = "last-kept"
    precision: str = "q8"
    fill: str = "lit"  # a hint: which fill the maker would use
    streaming: str = "clips"  # how chunks that are not key chunks go on from the one before
    time_stride: int = 4
    space_stride: int = 8

    def __post_init__(self) -> None:
        if not self.tau >= 0:
            raise ConfigError(f"tau is a distance and cannot be negative; got {self.tau}")
        if self.precision not in PRECISIONS:
            raise ConfigError(f"unknown precision {self.precision!r} (choices: {', '.join(PRECISIONS)})")


@dataclass(frozen=True, kw_only=True)
class Span:
    """A chunk's place in a video: the slots it holds and the frames they decode to."""

    slots: int
    frames: int
    key: bool = True  # decodes on its own, with no state from the chunk before

    def __post_init__(self) -> None:
        _check(self.slots >= 1, f"a chunk has at least one slot; got {self.slots}")
        _check(self.frames >= 1, f"a chunk has at least one frame; got {self.frames}")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Tokens:
    """The kept cells of one video, in (t, y, x) order, with the mask that says where they belong.

    A long video is a row of chunks along t; `spans` tells where one ends and the next begins.
    """

    values: Tensor  # [N, C] floating point
    mask: Tensor  # [T, H, W] bool
    info: VideoInfo
    recipe: Recipe
    spans: tuple[Span, ...] = field(default=())
    seconds: Tensor | None = None  # [frames] float64 presentation times; None: constant frame rate from zero

    def __post_init__(self) -> None:
        m, v = self.mask, self.values
        _check(
            m.ndim == 3 and m.dtype == torch.bool and 0 not in m.shape,
            f"the mask of one video is bool [T, H, W], none of them 0; got {describe(m)}",
        )
        _check(v.ndim == 2 and v.is_floating_point(), f"token values are floating point [N, C]; got {describe(v)}")
        kept = int(m.sum())
        _check(kept == len(v), f"the mask keeps {kept} cells, values has {len(v)} rows")
        if not self.spans:
            object.__setattr__(self, "spans", (Span(slots=m.shape[0], frames=self.info.frames),))
        slots, frames = sum(s.slots for s in self.spans), sum(s.frames for s in self.spans)
        _check(slots == m.shape[0], f"the chunks have {slots} slots, the mask {m.shape[0]}")
        _check(frames == self.info.frames, f"the chunks have {frames} frames, the video {self.info.frames}")
        if self.seconds is not None:
            want = (self.info.frames,)
            _check(tuple(self.seconds.shape) == want, f"{want[0]} frames need {want[0]} times")

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        grid = "x".join(map(str, self.mask.shape))
        return (
            f"Tokens({len(self):,} of {self.cells:,} cells ({self.keep_rate:.1%}), grid {grid}, "
            f"{self.channels} channels, {self.info.frames} frames {self.info.width}x{self.info.height})"
        )

    @property
    def cells(self) -> int:
        return self.mask.numel()

    @property
    def channels(self) -> int:
        return self.values.shape[1]

    @property
    def keep_rate(self) -> float:
        return len(self) / self.cells

    @cached_property
    def positions(self) -> Tensor:
        """[N, 3] int64: (t, y, x) of each token."""
        return self.mask.nonzero()

    @cached_property
    def run_lengths(self) -> Tensor:
        """[N] int64: for how many slots each token stands, itself included, until the next kept one or the end."""
        return run_lengths(self.mask)[self.mask]

    def dense(self) -> Tensor:
        """[1, C, T, H, W]: kept cells in place, zeros elsewhere."""
        z_THWC = self.values.new_zeros(*self.mask.shape, self.channels)
        z_THWC[self.mask] = self.values
        return z_THWC.permute(3, 0, 1, 2)[None]

    def chunks(self) -> Iterator[Tokens]:
        """The chunks, each as the tokens of a short video of its own."""
        slot = frame = token = 0
        for span in self.spans:
            mask = self.mask[slot : slot + span.slots]
            n = int(mask.sum())
            times = None if self.seconds is None else self.seconds[frame : frame + span.frames]
            yield replace(
                self,
                values=self.values[token : token + n],
                mask=mask,
                info=replace(self.info, frames=span.frames),
                spans=(span,),
                seconds=times,
            )
            slot, frame, token = slot + span.slots, frame + span.frames, token + n

    @staticmethod
    def join(parts: list[Tokens]) -> Tokens:
        """The inverse of `chunks`."""
        _check(len(parts) > 0, "there are no chunks to join")
        first = parts[0]
        times = None
        if all(p.seconds is not None for p in parts):
            times = torch.cat([p.seconds for p in parts if p.seconds is not None])
        return replace(
            first,
            values=torch.cat([p.values for p in parts]),
            mask=torch.cat([p.mask for p in parts]),
            info=replace(first.info, frames=sum(p.info.frames for p in parts)),
            spans=tuple(s for p in parts for s in p.spans),
            seconds=times,
        )

    def save(self, path: str | PathLike[str], *, force: bool = False) -> Path:
        """Write a token file (`*.inlay`); `inlay.open` reads it back."""
        from inlay.container import save

        return save(self, path, force=force)


def run_lengths(mask_THW: Tensor) -> Tensor:
    """[T, H, W] int64: slots from each cell to the next kept one at the same place, or to the end.

    >>> run_lengths(torch.tensor([1, 0, 0, 1]).bool().view(4, 1, 1)).flatten().tolist()
    [3, 2, 1, 1]
    """
    T = mask_THW.shape[0]
    slot_T11 = torch.arange(T, device=mask_THW.device).view(T, 1, 1)
    next_THW = torch.where(mask_THW, slot_T11, T)
    next_THW = next_THW.flip(0).cummin(0).values.flip(0)  # first kept slot at or after t
    after_THW = torch.cat([next_THW[1:], torch.full_like(next_THW[:1], T)])
    return after_THW - slot_T11
