# SPDX-License-Identifier: Apache-2.0
"""Frames in, in any pieces, the latents of chunks out: cut at full chunks, key intervals and scene cuts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from inlay.codec.config import StreamConfig
from inlay.codec.cuts import CutFinder
from inlay.container.tokens import Tokens
from inlay.errors import ShapeError
from inlay.masking import pixel_grid
from inlay.tokenizer import Tokenizer, join_videos
from inlay.types import Recipe, Span, VideoInfo
from inlay.video.frames import Video


@dataclass(frozen=True, kw_only=True, eq=False)
class LatentChunk:
    """What a chunk is before it is decided which of its cells are kept."""

    z_BCTHW: Tensor  # float32
    compared_BCTHW: Tensor  # what the criterion compares: the latents, or the pixels on their grid
    span: Span
    info: VideoInfo
    seconds: Tensor | None
    first: int  # frames that slot 0 stands for, if there are as many

    def tokens(self, keep_BTHW: Tensor, recipe: Recipe) -> Tokens:
        keep_THW = keep_BTHW[0].cpu()
        return Tokens(
            values=self.z_BCTHW[0].cpu().permute(1, 2, 3, 0)[keep_THW],
            mask=keep_THW,
            info=self.info,
            recipe=recipe,
            spans=(self.span,),
            seconds=self.seconds,
        )

    def slot_frames(self, stride: int) -> list[int]:
        """How many frames each slot stands for."""
        ends = [min(self.first + t * stride, self.span.frames) for t in range(self.span.slots)]
        return [end - begin for begin, end in pairwise([0, *ends])]


class LatentStream:
    """Holds frames until a chunk is full, and what the network must know of the chunk before."""

    def __init__(self, tokenizer: Tokenizer, config: StreamConfig, criterion: str) -> None:
        self.tokenizer, self.spec = tokenizer, tokenizer.spec
        self.config, self.criterion = config, criterion
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next frame begins another video."""
        self._held: list[Video] = []
        self._count = 0
        self._restart()

    def _restart(self) -> None:
        self._state: Any = None
        self._since_key = 0
        self._cuts = CutFinder()

    @property
    def held_frames(self) -> int:
        return self._count

    def push(self, video: Video) -> Iterator[LatentChunk]:
        if self._held and video.frames.shape[1:] != self._held[0].frames.shape[1:]:
            raise ShapeError(f"the frames of one video have one size; got {self._held[0]!r} and then {video!r}")
        self._held.append(video)
        self._count += len(video)
        while self._count >= (wanted := self._wanted()):
            yield from self._chunk(self._take(wanted))

    def flush(self) -> Iterator[LatentChunk]:
        while self._count:
            yield from self._chunk(self._take(min(self._count, self._wanted())))
        self.reset()

    def _wanted(self) -> int:
        """Frames of the next chunk."""
        whole = self.config.chunk_frames
        limit = self.config.key_frames(self.spec, self._held[0].fps) if self._held else None
        size = whole - self.spec.first_slot_frames if self._continues else whole
        return size if limit is None else min(size, limit - self._since_key)

    @property
    def _continues(self) -> bool:
        return self.config.mode == "stateful" and self._since_key > 0

    def _take(self, frames: int) -> Video:
        whole = join_videos(self._held)
        self._count -= frames
        self._held = [whole[frames:]] if self._count else []
        return whole[:frames]

    def _chunk(self, video: Video) -> Iterator[LatentChunk]:
        x_BCTHW = self.tokenizer.pixels([video], continued=self._continues)
        z_BCTHW, state = self._encode(x_BCTHW)
        cut = self._find_cut(z_BCTHW, x_BCTHW[:, :, : len(video)]) if self.config.cuts else None
        if cut is None:
            yield self._made(video, x_BCTHW, z_BCTHW)
            self._state, self._since_key = state, self._since_key + len(video)
            if self._since_key == self.config.key_frames(self.spec, video.fps):
                self._restart()
            return
        self._held.insert(0, video[cut:])
        self._count += len(video) - cut
        if cut:  # the end of the old scene on its own: its last slot must not have seen the new one
            x_BCTHW = self.tokenizer.pixels([video[:cut]], continued=self._continues)
            yield self._made(video[:cut], x_BCTHW, self._encode(x_BCTHW)[0])
        self._restart()

    @torch.inference_mode()
    def _encode(self, x_BCTHW: Tensor) -> tuple[Tensor, Any]:
        if self.config.mode != "stateful":
            return self.tokenizer.backbone.encode(x_BCTHW).float(), None
        backbone: Any = self.tokenizer.backbone
        z_BCTHW, state = backbone.encode_next(x_BCTHW, self._state)
        return z_BCTHW.float(), state

    def _find_cut(self, z_BCTHW: Tensor, x_BCTHW: Tensor) -> int | None:
        return self._cuts.find(z_BCTHW, x_BCTHW, first=self._first, stride=self.spec.time_stride)

    @property
    def _first(self) -> int:
        """Frames that slot 0 of the next chunk stands for."""
        return self.spec.time_stride if self._continues else self.spec.first_slot_frames

    def _made(self, video: Video, x_BCTHW: Tensor, z_BCTHW: Tensor) -> LatentChunk:
        slots = z_BCTHW.shape[2]
        compared = self._pooled(x_BCTHW, z_BCTHW) if self.criterion == "pixel-l1" else z_BCTHW
        return LatentChunk(
            z_BCTHW=z_BCTHW,
            compared_BCTHW=compared,
            span=Span(slots=slots, frames=len(video), key=self._since_key == 0),
            info=VideoInfo(width=video.width, height=video.height, fps=video.fps, frames=len(video)),
            seconds=video.seconds,
            first=self._first,
        )

    def _pooled(self, x_BCTHW: Tensor, z_BCTHW: Tensor) -> Tensor:
        t, h, w = z_BCTHW.shape[2:]
        if not self._continues:
            return pixel_grid(x_BCTHW, (t, h, w))
        led = torch.cat([x_BCTHW[:, :, :1], x_BCTHW], dim=2)  # the grid has a slot 0 of one frame; it is dropped again
        return pixel_grid(led, (t + 1, h, w))[:, :, 1:]
