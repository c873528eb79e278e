# SPDX-License-Identifier: Apache-2.0
"""Small records that packages exchange, each checked when it is made.

Legend: B batch, C channels, T video frames or latent slots, H W height and width, N kept cells.
Pixels and latents are B C T H W inside the library, pixels in [-1, 1]; a file boundary hands out uint8 T H W C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import torch
from torch import Tensor

from inlay.errors import ConfigError, ShapeError

STEPPED = ("q8", "q8-quick")  # precisions that round to steps
PRECISIONS = ("fp32", "fp16", "bf16", *STEPPED)
FINEST_STEP, COARSEST_STEP = 2.0**-126, 2.0**100  # normal numbers in bfloat16, far from its ends
LARGEST_STEP = 1e6  # of the ladder: beyond any that leaves a picture
KEY_SLOTS = ("whole", "thin")  # of slots with nothing before: all cells, or those that their neighbours do not tell
SLOWEST, FASTEST = Fraction(1, 3600), Fraction(10_000)  # frames a second
SCALES = {"1": Fraction(1), "3/4": Fraction(3, 4), "1/2": Fraction(1, 2)}  # sizes that a video is encoded at


def describe(t: Tensor) -> str:
    """`float32[1, 16, 9, 32, 32]`: what a tensor is, without its numbers."""
    return f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}"


def check_shape(ok: bool, message: str) -> None:
    """Raise a `ShapeError` with this message unless `ok`."""
    if not ok:
        raise ShapeError(message)


def as_fraction(fps: float | Fraction) -> Fraction:
    """Frames a second as a fraction, of a float the one it is near; 0 for what is no number.

    >>> as_fraction(29.97), as_fraction(30_000 / 1001)
    (Fraction(2997, 100), Fraction(30000, 1001))
    """
    try:
        return fps if isinstance(fps, Fraction) else Fraction(float(fps)).limit_denominator(100_000)
    except (TypeError, ValueError, OverflowError):
        return Fraction(0)


def frame_rate(fps: float | Fraction) -> Fraction:
    """The same, refused where no token file may have it."""
    rate = as_fraction(fps)
    if not SLOWEST <= rate <= FASTEST:
        raise ConfigError(f"fps is from {SLOWEST} to {FASTEST} frames a second; got {fps!r}", about="fps")
    return rate


@dataclass(frozen=True, kw_only=True)
class VideoInfo:
    """The video a token file came from, and the video it decodes to."""

    width: int
    height: int
    fps: Fraction
    frames: int

    def __post_init__(self) -> None:
        for name in ("width", "height", "frames"):
            check_shape(getattr(self, name) >= 1, f"{name} must be at least 1; got {getattr(self, name)}")
        object.__setattr__(self, "fps", as_fraction(self.fps))
        check_shape(self.fps > 0, f"fps must be positive; got {self.fps}")


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
    created_by: str = "inlay"  # in words: how the video was cut into chunks
    step: float | None = None  # the place on the ladder that `steps` come from, where they come from one
    steps: tuple[float, ...] | None = None  # of each channel, in bfloat16; None: q8 chooses its own for each chunk
    key_slots: str = "whole"  # of KEY_SLOTS
    scale: str = "1"  # of SCALES: the size that the video was encoded at; it comes back at its own

    def __post_init__(self) -> None:
        if self.key_slots not in KEY_SLOTS:
            raise ConfigError(
                f"unknown key slots {self.key_slots!r} (choices: {', '.join(KEY_SLOTS)})", about="key_slots"
            )
        if self.scale not in SCALES:
            raise ConfigError(f"unknown scale {self.scale!r} (choices: {', '.join(SCALES)})", about="scale")
        if self.steps is not None:
            object.__setattr__(self, "steps", checked_steps(self.steps))
            if self.precision not in STEPPED:
                raise ConfigError(
                    f"steps are those of precision q8; {self.precision} has none", about=("step", "precision")
                )
        if self.step is not None and not (self.steps is not None and 0 < self.step <= LARGEST_STEP):
            raise ConfigError(
                f"a step is above 0 and at most {LARGEST_STEP:g}, with steps of each channel", about="step"
            )
        if not self.tau >= 0:
            raise ConfigError(f"tau is a distance and cannot be negative; got {self.tau}")
        if self.precision not in PRECISIONS:
            raise ConfigError(f"unknown precision {self.precision!r} (choices: {', '.join(PRECISIONS)})")

    def coded(self, height: int, width: int) -> tuple[int, int]:
        """Height and width that a video of this size has for the backbone."""
        return coded_size(height, width, self.scale)

    @property
    def cell_side(self) -> float:
        """Pixels of the video that a cell is wide and high."""
        return float(self.space_stride / SCALES[self.scale])


def coded_size(height: int, width: int, scale: str) -> tuple[int, int]:
    """Height and width of a video that is encoded at this scale."""
    return ceil(height * SCALES[scale]), ceil(width * SCALES[scale])


def checked_steps(steps: Sequence[float]) -> tuple[float, ...]:
    """Steps as a file holds them, in bfloat16; refuses what is none."""
    rounded = torch.tensor([float(step) for step in steps], dtype=torch.float64).to(torch.bfloat16).float()
    if not len(rounded) or not bool(((rounded >= FINEST_STEP) & (rounded <= COARSEST_STEP)).all()):
        found = f"{rounded.min():g} to {rounded.max():g}" if len(rounded) else "none"
        raise ConfigError(f"steps are positive numbers from 1e-37 to 1e30; got {found}", about="step")
    return tuple(rounded.tolist())


@dataclass(frozen=True, kw_only=True)
class Span:
    """A chunk's place in a video: the slots it holds and the frames they decode to."""

    slots: int
    frames: int
    key: bool = True  # decodes on its own, with no state from the chunk before

    def __post_init__(self) -> None:
        check_shape(self.slots >= 1, f"a chunk has at least one slot; got {self.slots}")
        check_shape(self.frames >= 1, f"a chunk has at least one frame; got {self.frames}")
