# SPDX-License-Identifier: Apache-2.0
"""What is to be timed: a config that checks itself."""

from __future__ import annotations

from dataclasses import dataclass

from inlay.errors import ConfigError, UsageError, pick

SIZES: dict[str, tuple[int, int]] = {"256": (256, 256), "480p": (480, 848), "720p": (720, 1280)}  # height, width
PATHS = {"eager": "0", "fast": "1", "compiled": "compile"}  # name -> INLAY_FAST
MOST_PIXELS, MOST_CLIP_PIXELS = 1 << 25, 1 << 31  # of one frame: 8K; of all that goes through the network together
STAGES = ("video", "encode", "mask", "gather", "entropy", "lit", "decode")


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """Every size with every clip length, batch and path."""

    backbone: str = "mini"
    device: str = "auto"
    dtype: str = "float32"
    sizes: tuple[str, ...] = ("256",)
    frames: tuple[int, ...] = (33,)
    batches: tuple[int, ...] = (1,)
    paths: tuple[str, ...] = ("eager", "fast")
    stages: tuple[str, ...] = STAGES
    keep: float = 0.32  # share of cells that the threshold is set to keep
    repeats: int = 5
    warmup: int = 2
    seconds: float = 90.0  # for all timed calls together; each is made at least twice all the same

    def __post_init__(self) -> None:
        for name in ("sizes", "paths", "stages"):
            if not getattr(self, name):
                raise ConfigError(f"{name} names nothing to time; leave it out, or give at least one")
        for name in self.sizes:
            size_of(name)
        for path in self.paths:
            pick("path", path, PATHS)
        for stage in self.stages:
            pick("stage", stage, dict.fromkeys(STAGES))
        for name in ("frames", "batches"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise ConfigError(f"{name} are whole numbers from 1; got {getattr(self, name)}")
        largest = max(height * width for height, width in map(size_of, self.sizes))
        if largest * max(self.frames) * max(self.batches) > MOST_CLIP_PIXELS:
            raise ConfigError(
                f"clips of more than {MOST_CLIP_PIXELS:,} pixels are not timed; give fewer or smaller ones"
            )
        if self.repeats < 1 or self.warmup < 0:
            raise ConfigError(f"repeats are at least 1, warm-ups at least 0; got {self.repeats}, {self.warmup}")
        if not self.seconds > 0:
            raise ConfigError(f"seconds are more than 0; got {self.seconds}", about="seconds")
        if not 0 < self.keep <= 1:
            raise ConfigError(f"keep is a share of the cells, in (0, 1]; got {self.keep}")


def size_of(name: str) -> tuple[int, int]:
    """(height, width) of a name in SIZES, or of HxW.

    >>> size_of("64x96")
    (64, 96)
    """
    height, x, width = name.partition("x")
    if x and height.isdecimal() and width.isdecimal() and max(len(height), len(width)) < 9 and int(height) * int(width):
        if int(height) * int(width) > MOST_PIXELS:
            raise ConfigError(
                f"a frame of {name} has more than {MOST_PIXELS:,} pixels; give a smaller size", about="size"
            )
        return int(height), int(width)
    return pick("size (a name, or height x width as 480x848)", name, SIZES)


def names(text: str) -> tuple[str, ...]:
    """What stands between commas.

    >>> names("eager, fast")
    ('eager', 'fast')
    """
    return tuple(part.strip() for part in text.split(",") if part.strip())


def numbers(text: str, flag: str) -> tuple[int, ...]:
    """The same as whole numbers."""
    try:
        return tuple(int(part) for part in names(text))
    except ValueError as error:
        raise UsageError(f"{flag} takes whole numbers with commas between, as 1,8; got {text!r}") from error
