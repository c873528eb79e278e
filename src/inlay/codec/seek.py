# SPDX-License-Identifier: Apache-2.0
"""Find the chunks of a token file that hold the frames between two times: nothing else of the file is read."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import accumulate

from torch import Tensor

from inlay.container import TokenReader
from inlay.container.tokens import Tokens
from inlay.errors import TokenFileError, UsageError
from inlay.video.frames import Video


@dataclass(frozen=True, kw_only=True)
class Cutting:
    """Chunks `first` to `last`, of whose frames `skip` at the front are not wanted, and `frames` then are."""

    first: int
    last: int
    skip: int
    frames: int


def cutting(reader: TokenReader, start_seconds: float | None, end_seconds: float | None) -> Cutting:
    """The chunks that hold the frames from one time to another, from the key chunk on that they build upon."""
    start = 0.0 if start_seconds is None else start_seconds
    end = math.inf if end_seconds is None else end_seconds
    if not 0 <= start < math.inf:
        raise UsageError(f"a video is decoded from a time in seconds, 0 or more; got {start:g}", about="start_seconds")
    if not end > start:
        raise UsageError(
            f"the end must be later than the start; got {start:g} to {end:g} seconds",
            about=("start_seconds", "end_seconds"),
        )
    begin, until = frame_at(reader, start), frame_at(reader, end)
    total = reader.info.frames
    if begin >= total:
        raise UsageError(
            f"{reader.name} has {duration(reader):.2f} seconds, and {start:g} is after its end", about="start_seconds"
        )
    if until <= begin and _after_a_loss(reader, begin):
        raise TokenFileError(_nothing_intact(reader), about=("start_seconds", "end_seconds"))
    if until <= begin:  # a span shorter than a frame shows the frame it falls on
        begin = max(begin - 1, 0)
        until = begin + 1
    edges, spans = _edges(reader), reader.spans
    holding = max(i for i, edge in enumerate(edges[:-1]) if edge <= begin)
    first = max((i for i in range(holding + 1) if spans[i].key), default=0)
    last = max(i for i, edge in enumerate(edges[:-1]) if edge < until)
    return Cutting(first=first, last=last, skip=begin - edges[first], frames=until - begin)


def decode_part(
    decode: Callable[[Iterable[Tokens]], Iterable[Video]], reader: TokenReader, cut: Cutting
) -> Iterator[Video]:
    """The frames that were asked for, their times counted from the first of them.

    Args:
        decode: makes the frames of each chunk, one for one; chunks that are lost are not among them.
    """
    numbers: deque[int] = deque()

    def chunks() -> Iterator[Tokens]:
        with suppress(TokenFileError) if reader.keep_going else nullcontext():  # not one of these is intact
            for number, tokens in reader.chunks(cut.first, cut.last):
                numbers.append(number)
                yield tokens

    edges = _edges(reader)
    begin = edges[cut.first] + cut.skip
    origin, found = None, False
    for video in decode(chunks()):
        edge = edges[numbers.popleft()]
        start, end = max(begin - edge, 0), min(begin + cut.frames - edge, len(video))
        if start >= end:
            continue
        part = video[start:end]
        if part.seconds is not None:
            origin = part.seconds[0] if origin is None else origin
            part = replace(part, seconds=part.seconds - origin)
        found = True
        yield part
    if not found:
        raise TokenFileError(_nothing_intact(reader), about=("start_seconds", "end_seconds"))


def _nothing_intact(reader: TokenReader) -> str:
    """What is lost of a file, and what of it could be asked for in place of a stretch that is lost."""
    intact = [i for i, _ in reader.chunks()]
    problems = "; ".join(dict.fromkeys(reader.problems))
    return f"{reader.name}: nothing of this stretch is intact: {problems}; intact are {_stretches(reader, intact)}"


def _after_a_loss(reader: TokenReader, frame: int) -> bool:
    """Whether the times that come before those of a frame are of a chunk that is lost."""
    edges = _edges(reader)
    return reader.timed and frame in edges[1:] and edges.index(frame) - 1 not in _intact(reader)


def _stretches(reader: TokenReader, chunks: Sequence[int]) -> str:
    """The seconds that chunks cover: `0.00 to 1.38 s, 2.75 to 5.50 s`."""
    edges, fps = _edges(reader), float(reader.info.fps)
    ends: list[list[float]] = []
    before = None
    for i in chunks:
        times = _times(reader, i).tolist() if reader.timed else [edges[i] / fps, (edges[i + 1] - 1) / fps]
        if before != i - 1:
            ends.append([times[0], 0.0])
        ends[-1][1] = times[-1] + 1 / fps
        before = i
    return ", ".join(f"{start:.2f} to {end:.2f} s" for start, end in ends)


def _edges(reader: TokenReader) -> list[int]:
    """The number of the first frame of each chunk, and of all frames."""
    return [0, *accumulate(span.frames for span in reader.spans)]


def frame_at(reader: TokenReader, seconds: float) -> int:
    """How many frames come before this time."""
    info = reader.info
    if math.isinf(seconds):
        return info.frames
    if not reader.timed:
        return min(math.ceil(seconds * info.fps - 1e-9), info.frames)
    intact = _intact(reader)  # of chunks with times of their own a few are looked into, by halving
    at = bisect_left(intact, seconds - 1e-9, key=lambda i: float(_times(reader, i)[-1]))
    if at == len(intact):
        return info.frames
    before = _edges(reader)[intact[at]]
    return before + int((_times(reader, intact[at]) < seconds - 1e-9).sum())


def _intact(reader: TokenReader) -> Sequence[int]:
    """The chunks whose times can be looked up: all, unless damage is to be passed over."""
    if not reader.keep_going:
        return range(len(reader))
    found = []
    for i in range(len(reader)):
        with suppress(TokenFileError):
            _times(reader, i)
            found.append(i)
    return found


def _times(reader: TokenReader, i: int) -> Tensor:
    times = reader.seconds(i)
    if times is None:
        raise TokenFileError(f"{reader.name}: some chunks have presentation times and some do not")
    return times


def duration(reader: TokenReader) -> float:
    info, intact = reader.info, _intact(reader) if reader.timed else ()
    if not intact:
        return float(info.frames / info.fps)
    return float(_times(reader, intact[-1])[-1]) + float(1 / info.fps)
