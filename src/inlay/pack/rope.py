# SPDX-License-Identifier: Apache-2.0
"""Rotary angles of cells at (t, y, x), and queries and keys turned by them.

Legend: N cells, h heads, D head dimension; the pairs (0, 1), (2, 3) ... of a head turn together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from inlay.container.tokens import Tokens
from inlay.errors import ConfigError, ShapeError, check_number
from inlay.types import describe


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """How the pairs of a head are shared out among time, rows and columns."""

    head_dim: int
    pairs: tuple[int, int, int] | None = None  # for t, y, x; None: a third each, what is left over to t
    base: float = 10_000.0

    def __post_init__(self) -> None:
        check_number("head_dim", self.head_dim, "a whole number", whole=True)
        if self.head_dim < 6 or self.head_dim % 2:
            raise ConfigError(f"three axes need an even head dimension of at least 6; got {self.head_dim}")
        if self.pairs is None:
            third = self.head_dim // 6
            object.__setattr__(self, "pairs", (self.head_dim // 2 - 2 * third, third, third))
        if sum(self.axes) * 2 != self.head_dim or min(self.axes) < 0:
            raise ConfigError(f"the pairs of {self.axes} must add up to half the head dimension {self.head_dim}")
        if not self.base > 1:
            raise ConfigError(f"the base of the frequencies must be above 1; got {self.base}")

    @property
    def axes(self) -> tuple[int, int, int]:
        assert self.pairs is not None
        return self.pairs


def rope_angles(positions_N3: Tensor, config: RopeConfig) -> Tensor:
    """[N, D / 2] float32 angles. Positions may be whole numbers, seconds, or anything else that has differences."""
    if positions_N3.ndim != 2 or positions_N3.shape[1] != 3:
        raise ShapeError(f"positions are [N, 3] for (t, y, x); got {describe(positions_N3)}")
    parts = []
    for place_N, pairs in zip(positions_N3.float().unbind(1), config.axes, strict=True):
        steps = torch.arange(pairs, device=place_N.device, dtype=torch.float32) / max(pairs, 1)
        parts.append(place_N[:, None] * config.base**-steps)
    return torch.cat(parts, dim=1)


def rotate(x_NhD: Tensor, angles_NP: Tensor) -> Tensor:
    """Turn queries or keys; a product of two turned ones depends on the difference of their positions alone."""
    if x_NhD.ndim != 3 or tuple(angles_NP.shape) != (len(x_NhD), x_NhD.shape[-1] // 2):
        raise ShapeError(f"x is [N, heads, D] and angles [N, D / 2]; got {describe(x_NhD)} and {describe(angles_NP)}")
    cos, sin = angles_NP.cos()[:, None].to(x_NhD.dtype), angles_NP.sin()[:, None].to(x_NhD.dtype)
    a, b = x_NhD[..., 0::2], x_NhD[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


def grid_positions(T: int, H: int, W: int, *, device: torch.device | str = "cpu") -> Tensor:
    """[T * H * W, 3]: (t, y, x) of every cell of a dense grid, in the order of `Tokens`."""
    return torch.ones(T, H, W, dtype=torch.bool, device=device).nonzero()


def slot_seconds(tokens: Tokens) -> Tensor:
    """[T] float64: the time of the first frame each slot decodes to, from the video's own times where it has them."""
    stride, starts, frame = tokens.recipe.time_stride, [], 0
    for span in tokens.spans:
        continued = not span.key and tokens.recipe.streaming == "stateful"  # then there is no slot of a single frame
        lead = stride if continued else 1
        starts += [frame + (0 if k == 0 else lead + (k - 1) * stride) for k in range(span.slots)]
        frame += span.frames
    first_T = torch.tensor(starts).clamp(max=tokens.info.frames - 1)
    if tokens.seconds is not None:
        return tokens.seconds.double()[first_T]
    return first_T.double() / float(tokens.info.fps)


def timed_positions(tokens: Tokens) -> Tensor:
    """[N, 3] float32: (seconds, y, x), so that videos of different frame rates share one clock."""
    t, y, x = tokens.positions.unbind(1)
    return torch.stack([slot_seconds(tokens)[t].float(), y.float(), x.float()], dim=1)
