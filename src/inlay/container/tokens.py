# SPDX-License-Identifier: Apache-2.0
"""`Tokens`: the kept cells of one video and the mask that says where they belong.

Legend: C channels, T slots, H W rows and columns of the grid, N kept cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from inlay.types import Recipe, Span, VideoInfo, check_shape, describe


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
        check_shape(
            m.ndim == 3 and m.dtype == torch.bool and 0 not in m.shape,
            f"the mask of one video is bool [T, H, W], none of them 0; got {describe(m)}",
        )
        check_shape(v.ndim == 2 and v.is_floating_point(), f"token values are floating point [N, C]; got {describe(v)}")
        kept = int(m.count_nonzero())  # a sum would first make whole numbers of all cells
        check_shape(kept == len(v), f"the mask keeps {kept} cells, values has {len(v)} rows")
        if not self.spans:
            object.__setattr__(self, "spans", (Span(slots=m.shape[0], frames=self.info.frames),))
        slots, frames = sum(s.slots for s in self.spans), sum(s.frames for s in self.spans)
        check_shape(slots == m.shape[0], f"the chunks have {slots} slots, the mask {m.shape[0]}")
        check_shape(frames == self.info.frames, f"the chunks have {frames} frames, the video {self.info.frames}")
        if self.seconds is not None:
            want = (self.info.frames,)
            check_shape(tuple(self.seconds.shape) == want, f"{want[0]} frames need {want[0]} times")

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        grid = "x".join(map(str, self.mask.shape))
        kept = f"{len(self):,} of {self.cells:,} cells ({self.keep_rate:.1%}, mode {self.recipe.streaming})"
        return (
            f"Tokens({kept}, grid {grid}, "
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
            n = int(mask.count_nonzero())
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
    def join(chunks: Iterable[Tokens]) -> Tokens:
        """The inverse of `chunks`."""
        parts = list(chunks)
        check_shape(len(parts) > 0, "there are no chunks to join")
        first = parts[0]
        if len(parts) == 1:
            return first
        for other in parts[1:]:
            _check_alike(first, other)
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
        from inlay.container.writer import save

        return save(self, path, force=force)


def _check_alike(first: Tokens, other: Tokens) -> None:
    """Chunks of one video have one recipe, and one grid."""
    pairs = {f.name: (getattr(first.recipe, f.name), getattr(other.recipe, f.name)) for f in fields(Recipe)}
    pairs["grid"] = (tuple(first.mask.shape[1:]), tuple(other.mask.shape[1:]))
    for name, (a, b) in pairs.items():
        check_shape(a == b, f"chunks of one video have one recipe and one grid; their {name} is {a} and {b}")


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
