# SPDX-License-Identifier: Apache-2.0
"""`LatentEncoder`: frames of one or several streams to the latents of chunks, cut at full chunks, key intervals and
scene cuts. The streams go in step: where chunks have one shape, the network sees them together.

Legend: B batch (one stream's chunk has 1), C channels, T slots or frames, H W grid.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from inlay.codec.calls import BatchLimits, Call, Row, run_calls
from inlay.codec.config import EncodeConfig
from inlay.codec.cuts import Jumps
from inlay.codec.parts import Parts
from inlay.errors import ShapeError
from inlay.masking import pixel_grid
from inlay.types import Span, VideoInfo, coded_size
from inlay.video.frames import Video, join_seconds, resized


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Carried:
    """What the next chunk of a stream must know of those before it."""

    row: Row | None = None  # state of the network, and what was seen last
    since_key: int = 0  # frames
    scene_frames: int | None = None  # a cut was found: the scene ends after as many frames


@dataclass(kw_only=True, eq=False)
class Job:
    """A chunk on its way through the network."""

    pieces: list[Video]  # as they came: only the device sees them joined
    call: Call
    before: Carried

    @property
    def frames(self) -> int:
        return sum(len(piece) for piece in self.pieces)


class Stream:
    """One video on its way in: the frames that wait, and what is carried from chunk to chunk.

    A chunk is taken and launched, and settled once the network has answered: only then is it known whether it holds a
    cut. Chunks may be launched before the one before them is settled; a cut then takes them back.
    """

    def __init__(self, parts: Parts, config: EncodeConfig, number: int) -> None:
        self.parts, self.spec, self.config, self.number = parts, parts.spec, config, number
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next frame begins another video."""
        self._held: list[Video] = []
        self._count = 0
        self._size: tuple[int, int] | None = None  # height and width of the video, whatever it is encoded at
        self._tip = Carried()  # after the chunk taken last, as long as there is no cut in it
        self._recent: Jumps | None = None  # changes from frame to frame, since the last key chunk

    def add(self, video: Video) -> None:
        size = video.height, video.width
        if self._size not in (None, size):
            raise ShapeError(f"the frames of one video have one size; got {self._size} and then {size}")
        self._size = size
        self._held.append(replace(video, frames=resized(video.frames, *coded_size(*size, self.config.coded_scale))))
        self._count += len(video)

    def ready(self, *, ended: bool) -> bool:
        """Whether a chunk can be taken: it is full, or nothing will come after it."""
        return self._count > 0 and (ended or self._count >= self._wanted())

    def _wanted(self) -> int:
        """Frames of the next chunk."""
        if self._tip.scene_frames is not None:
            return self._tip.scene_frames
        whole = self.config.chunk_frames
        limit = self.config.key_frames(self.spec, self._held[0].fps)
        size = whole - self.spec.first_slot_frames if self._continues(self._tip) else whole
        return size if limit is None else min(size, limit - self._tip.since_key)

    def _continues(self, at: Carried) -> bool:
        return self.config.mode == "stateful" and at.since_key > 0

    def _first(self, at: Carried) -> int:
        """Frames that slot 0 of the next chunk stands for."""
        return self.spec.time_stride if self._continues(at) else self.spec.first_slot_frames

    def take(self) -> Job:
        """The frames of the next chunk, and what to ask of the network."""
        pieces, tip = self._take(min(self._count, self._wanted())), self._tip
        call = Call(
            pieces=[piece.frames for piece in pieces],
            carries=self.config.mode == "stateful",
            continued=self._continues(tip),
            looks=self.config.cuts and tip.scene_frames is None,
            before=tip.row,
        )
        return Job(pieces=pieces, call=call, before=tip)

    def _take(self, frames: int) -> list[Video]:
        """So many of the frames that wait."""
        taken: list[Video] = []
        self._count -= frames
        while frames:
            piece, *rest = self._held
            self._held = rest if len(piece) <= frames else [piece[frames:], *rest]
            taken.append(piece[:frames])
            frames -= len(taken[-1])
        return taken

    def launched(self, job: Job) -> None:
        """The network is at work on it: the next chunk may be taken, on the guess that there is no cut in this one."""
        if job.call.z_BCTHW is None:
            return
        since_key = job.before.since_key + job.frames
        ends = job.before.scene_frames is not None
        if ends or since_key == self.config.key_frames(self.spec, job.pieces[0].fps):
            self._tip = Carried()
        else:
            self._tip = Carried(row=job.call.after, since_key=since_key)

    def settle(self, job: Job, later: Sequence[Job]) -> LatentChunk | None:
        """The chunk; None where it holds a cut and has to be taken in two, with the `later` ones taken back."""
        if job.before.since_key == 0:
            self._recent = None
        cut = None
        if job.call.evidence is not None:
            evidence, row = job.call.evidence
            first, stride = self._first(job.before), self.spec.time_stride
            cut, self._recent = evidence.find_cut(row, self._recent, first=first, stride=stride)
        if cut is None:
            return self._made(job)
        back = [piece for taken in (job, *later) for piece in taken.pieces]
        self._held = [*back, *self._held]
        self._count += sum(len(video) for video in back)
        self._tip = replace(job.before, scene_frames=cut) if cut else Carried()
        return None

    def _made(self, job: Job) -> LatentChunk:
        z_BCTHW, frames, fps = job.call.z_BCTHW, job.frames, job.pieces[0].fps
        assert z_BCTHW is not None and self._size is not None, "the network has answered"
        height, width = self._size
        plain = self.config.criterion != "pixel-l1"
        return LatentChunk(
            z_BCTHW=z_BCTHW,
            compared_BCTHW=z_BCTHW if plain else self._pooled(job, z_BCTHW),
            span=Span(slots=z_BCTHW.shape[2], frames=frames, key=job.before.since_key == 0),
            info=VideoInfo(width=width, height=height, fps=fps, frames=frames),
            seconds=join_seconds(job.pieces),
            first=self._first(job.before),
            stream=self.number,
        )

    def _pooled(self, job: Job, z_BCTHW: Tensor) -> Tensor:
        t, h, w = z_BCTHW.shape[2:]
        assert job.call.frames_THWC is not None, "the network has answered"
        x_BCTHW = self.parts.padded(job.call.frames_THWC[None], continued=job.call.continued)
        if not self._continues(job.before):
            return pixel_grid(x_BCTHW, (t, h, w))
        led = torch.cat([x_BCTHW[:, :, :1], x_BCTHW], dim=2)  # the grid has a slot 0 of one frame; it is dropped again
        return pixel_grid(led, (t + 1, h, w))[:, :, 1:]


Round = list[tuple[int, LatentChunk]]  # stream, its next chunk
Launched = dict[int, Job]  # stream -> its chunk


class LatentEncoder:
    """The streams of a codec in step.

    Args:
        streams: how many.
        first: what those who look on call the first of them.
        batch: how many of them go through the network together.
        limits: how many chunks of a shape fit into memory, learnt on the way.
        ahead: how many rounds may be launched before an earlier one is settled: a GPU then never waits for Python.
        watched: whether those who look on are told of the chunks.
    """

    def __init__(
        self,
        parts: Parts,
        config: EncodeConfig,
        *,
        streams: int = 1,
        first: int = 0,
        batch: int | None = None,
        limits: BatchLimits | None = None,
        ahead: int | None = None,
        watched: bool = True,
    ) -> None:
        self.parts, self.config, self.watched = parts, config, watched
        self.batch = batch or parts.batch
        self.ahead = parts.ahead if ahead is None else ahead
        self.streams = [Stream(parts, config, first + number) for number in range(streams)]
        self.errors: dict[int, Exception] = {}  # streams that failed: nothing more comes from them
        self.limits: BatchLimits = {} if limits is None else limits
        self._pending: deque[Launched] = deque()  # on the device, not settled yet

    def reset(self) -> None:
        """Forget everything: the next frames begin other videos."""
        self.errors = {}
        self._pending.clear()
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

    def rounds(self, *, ended: Sequence[bool], waits: bool = True) -> Iterator[Round]:
        """The chunks that are complete, one of each stream at a time; for streams that ended, the rest too.

        Args:
            waits: until all that was launched is there. Else up to `ahead` rounds stay on the device, for a later call:
                so it has work while the next frames are fetched.
        """
        while True:
            while len(self._pending) <= self.ahead and (jobs := self._launch(ended)):
                self._pending.append(jobs)
            if len(self._pending) <= (0 if waits else self.ahead):
                return
            if chunks := self._settle(self._pending.popleft(), self._pending):
                yield chunks

    def _launch(self, ended: Sequence[bool]) -> Launched:
        jobs = {
            number: stream.take()
            for number, stream in enumerate(self.streams)
            if number not in self.errors and stream.ready(ended=ended[number])
        }
        run_calls(self.parts, [job.call for job in jobs.values()], self.limits, most=self.batch)
        for number, job in jobs.items():
            self.streams[number].launched(job)
        return jobs

    def _settle(self, jobs: Launched, pending: deque[Launched]) -> Round:
        made: Round = []
        for number, job in jobs.items():
            chunk = None
            if job.call.error is not None:
                self.errors[number] = job.call.error
            else:
                later = [other[number] for other in pending if number in other]
                chunk = self.streams[number].settle(job, later)
            if chunk is None:
                for other in pending:
                    other.pop(number, None)
                continue
            made.append((number, chunk))
            if self.watched:
                self.parts.saw_latents(chunk)
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
