# SPDX-License-Identifier: Apache-2.0
"""`LatentEncoder`: frames of one or several streams to the latents of chunks, cut at full chunks, key intervals and
scene cuts. The streams go in step: where chunks have one shape, the network sees them together.

Legend: B batch (one stream's chunk has 1), C channels, T slots or frames, H W grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from inlay.backbones import State
from inlay.codec.calls import Call, Room, run_calls
from inlay.codec.config import EncodeConfig
from inlay.codec.cuts import CutFinder
from inlay.codec.parts import Parts
from inlay.errors import ShapeError
from inlay.masking import pixel_grid
from inlay.types import Span, VideoInfo
from inlay.video.frames import Video, join_videos


@dataclass(frozen=True, kw_only=True, eq=False)
class LatentChunk:
    """What a chunk is before it is decided which of its cells are kept."""

    z_BCTHW: Tensor  # float32
    compared_BCTHW: Tensor  # what the criterion compares: the latents, or the pixels on their grid
    span: Span
    info: VideoInfo
    seconds: Tensor | None
    first: int  # frames that slot 0 stands for, if there are as many
    stream: int = 0  # of those that go in step

    def slot_frames(self, stride: int) -> list[int]:
        """How many frames each slot stands for."""
        ends = [min(self.first + t * stride, self.span.frames) for t in range(self.span.slots)]
        return [end - begin for begin, end in pairwise([0, *ends])]


class Stream:
    """One video on its way in: the frames that wait, and what the network must know of the chunk before."""

    def __init__(self, parts: Parts, config: EncodeConfig, number: int) -> None:
        self.parts, self.spec, self.config, self.number = parts, parts.spec, config, number
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next frame begins another video."""
        self._held: list[Video] = []
        self._count = 0
        self._restart()

    def _restart(self) -> None:
        self._state: State = None
        self._since_key = 0
        self._cuts = CutFinder()
        self._scene_frames: int | None = None  # a cut was found: the scene ends after as many frames

    def add(self, video: Video) -> None:
        if self._held and video.frames.shape[1:] != self._held[0].frames.shape[1:]:
            raise ShapeError(f"the frames of one video have one size; got {self._held[0]!r} and then {video!r}")
        self._held.append(video)
        self._count += len(video)

    def ready(self, *, ended: bool) -> bool:
        """Whether a chunk can be made: it is full, or nothing will come after it."""
        return self._count > 0 and (ended or self._count >= self._wanted())

    def _wanted(self) -> int:
        """Frames of the next chunk."""
        if self._scene_frames is not None:
            return self._scene_frames
        whole = self.config.chunk_frames
        limit = self.config.key_frames(self.spec, self._held[0].fps)
        size = whole - self.spec.first_slot_frames if self._continues else whole
        return size if limit is None else min(size, limit - self._since_key)

    @property
    def _continues(self) -> bool:
        return self.config.mode == "stateful" and self._since_key > 0

    @property
    def _first(self) -> int:
        """Frames that slot 0 of the next chunk stands for."""
        return self.spec.time_stride if self._continues else self.spec.first_slot_frames

    def take(self) -> tuple[Video, Call]:
        """The frames of the next chunk, and what to ask of the network."""
        frames = min(self._count, self._wanted())
        whole = join_videos(self._held)
        self._count -= frames
        self._held = [whole[frames:]] if self._count else []
        video = whole[:frames]
        x_BCTHW = self.parts.pixels([video], continued=self._continues)
        return video, Call(x_BCTHW=x_BCTHW, carries=self.config.mode == "stateful", state=self._state)

    def accept(self, video: Video, call: Call) -> LatentChunk | None:
        """The chunk that the network's answer makes; None where it holds a cut, and has to be taken in two."""
        assert call.z_BCTHW is not None, "the network has answered"
        if self._scene_frames is not None:  # the end of a scene, encoded again: it must not have seen the next one
            chunk = self._made(video, call)
            self._restart()
            return chunk
        cut, cuts = self._find_cut(video, call)
        if cut is not None:
            self._held.insert(0, video)
            self._count += len(video)
            if cut:
                self._scene_frames = cut
            else:
                self._restart()
            return None
        chunk = self._made(video, call)
        self._cuts, self._state, self._since_key = cuts, call.state, self._since_key + len(video)
        if self._since_key == self.config.key_frames(self.spec, video.fps):
            self._restart()
        return chunk

    def _find_cut(self, video: Video, call: Call) -> tuple[int | None, CutFinder]:
        if not self.config.cuts:
            return None, self._cuts
        assert call.z_BCTHW is not None, "the network has answered"
        seen = self._cuts.look(call.z_BCTHW, call.x_BCTHW[:, :, : len(video)])
        return self._cuts.find(seen, first=self._first, stride=self.spec.time_stride)

    def _made(self, video: Video, call: Call) -> LatentChunk:
        z_BCTHW = call.z_BCTHW
        assert z_BCTHW is not None, "the network has answered"
        plain = self.config.criterion != "pixel-l1"
        return LatentChunk(
            z_BCTHW=z_BCTHW,
            compared_BCTHW=z_BCTHW if plain else self._pooled(call.x_BCTHW, z_BCTHW),
            span=Span(slots=z_BCTHW.shape[2], frames=len(video), key=self._since_key == 0),
            info=VideoInfo(width=video.width, height=video.height, fps=video.fps, frames=len(video)),
            seconds=video.seconds,
            first=self._first,
            stream=self.number,
        )

    def _pooled(self, x_BCTHW: Tensor, z_BCTHW: Tensor) -> Tensor:
        t, h, w = z_BCTHW.shape[2:]
        if not self._continues:
            return pixel_grid(x_BCTHW, (t, h, w))
        led = torch.cat([x_BCTHW[:, :, :1], x_BCTHW], dim=2)  # the grid has a slot 0 of one frame; it is dropped again
        return pixel_grid(led, (t + 1, h, w))[:, :, 1:]


Round = list[tuple[int, LatentChunk]]  # stream, its next chunk


class LatentEncoder:
    """The streams of a codec in step."""

    def __init__(
        self,
        parts: Parts,
        config: EncodeConfig,
        *,
        streams: int = 1,
        batch: int | None = None,
        room: Room | None = None,
    ) -> None:
        self.parts, self.config = parts, config
        self.batch = batch or parts.batch
        self.streams = [Stream(parts, config, number) for number in range(streams)]
        self.errors: dict[int, Exception] = {}  # streams that failed: nothing more comes from them
        self.room: Room = {} if room is None else room

    def reset(self) -> None:
        """Forget everything: the next frames begin other videos."""
        self.errors = {}
        for stream in self.streams:
            stream.reset()

    def push(self, videos: Sequence[Video | None]) -> None:
        """Hand a piece to each stream that has one; `rounds` gives the chunks."""
        for number, (stream, video) in enumerate(zip(self.streams, videos, strict=True)):
            if video is None or number in self.errors:
                continue
            try:
                stream.add(video)
            except ShapeError as error:
                self.errors[number] = error

    def rounds(self, *, ended: Sequence[bool]) -> Iterator[Round]:
        """The chunks that are complete, one of each stream at a time; for streams that ended, the rest too."""
        while True:
            ready = [
                number
                for number, stream in enumerate(self.streams)
                if number not in self.errors and stream.ready(ended=ended[number])
            ]
            if not ready:
                return
            if chunks := self._round(ready):
                yield chunks

    def _round(self, ready: list[int]) -> Round:
        jobs = [(number, *self.streams[number].take()) for number in ready]
        run_calls(self.parts, [call for _, _, call in jobs], self.room, most=self.batch)
        made: Round = []
        for number, video, call in jobs:
            if call.error is not None:
                self.errors[number] = call.error
                continue
            chunk = self.streams[number].accept(video, call)
            if chunk is not None:
                made.append((number, chunk))
                for watch in self.parts.watches:
                    watch.on_latents(chunk)
        return made


def encode_clip(parts: Parts, video: Video) -> LatentChunk:
    """The latents of a clip on its own, however long, as one chunk."""
    z_BCTHW = parts.encode_pixels(parts.pixels([video])).float()
    return LatentChunk(
        z_BCTHW=z_BCTHW,
        compared_BCTHW=z_BCTHW,
        span=Span(slots=z_BCTHW.shape[2], frames=len(video)),
        info=VideoInfo(width=video.width, height=video.height, fps=video.fps, frames=len(video)),
        seconds=video.seconds,
        first=parts.spec.first_slot_frames,
    )
