# SPDX-License-Identifier: Apache-2.0
"""Find the chunks of a token file that hold the frames between two times: nothing else of the file is read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from inlay.container import TokenReader
from inlay.container.tokens import Tokens
from inlay.errors import UsageError
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
    until = max(until, begin + 1)  # a span shorter than a frame shows the frame it falls on
    edges = [0]
    for span in reader.spans:
        edges.append(edges[-1] + span.frames)
    holding = max(i for i, edge in enumerate(edges[:-1]) if edge <= begin)
    first = max(i for i in range(holding + 1) if reader.spans[i].key)
    last = max(i for i, edge in enumerate(edges[:-1]) if edge < until)
    return Cutting(first=first, last=last, skip=begin - edges[first], frames=until - begin)


def chunks_of(reader: TokenReader, cut: Cutting) -> Iterator[Tokens]:
    for i in range(cut.first, cut.last + 1):
        yield reader.read(i)


def trimmed(videos: Iterable[Video], cut: Cutting) -> Iterator[Video]:
    """The frames that were asked for, their times counted from the first of them."""
    skip, left, origin = cut.skip, cut.frames, None
    for video in videos:
        if skip >= len(video):
            skip -= len(video)
            continue
        part = video[skip : skip + left]
        skip, left = 0, left - len(part)
        if part.seconds is not None:
            origin = part.seconds[0] if origin is None else origin
            part = replace(part, seconds=part.seconds - origin)
        yield part


def frame_at(reader: TokenReader, seconds: float) -> int:
    """How many frames come before this time."""
    info = reader.info
    if math.isinf(seconds):
        return info.frames
    if not reader.timed:
        return min(math.ceil(seconds * info.fps - 1e-9), info.frames)
    low, high = 0, len(reader)  # of chunks with times of their own a few are looked into, by halving
    while low < high:
        middle = (low + high) // 2
        times = reader.read(middle).seconds
        assert times is not None, "a timed file has times in every chunk"
        if float(times[-1]) < seconds - 1e-9:
            low = middle + 1
        else:
            high = middle
    before = sum(span.frames for span in reader.spans[:low])
    if low == len(reader):
        return before
    times = reader.read(low).seconds
    assert times is not None, "a timed file has times in every chunk"
    return before + int((times < seconds - 1e-9).sum())


def duration(reader: TokenReader) -> float:
    info = reader.info
    last = reader.read(-1).seconds if reader.timed else None
    return float(info.frames / info.fps) if last is None else float(last[-1]) + float(1 / info.fps)
