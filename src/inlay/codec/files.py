# SPDX-License-Identifier: Apache-2.0
"""Encode a video into a token file, and go on where an interrupted run left off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain
from os import PathLike
from pathlib import Path

import torch

from inlay.codec.trail import Trail, trail_of
from inlay.codec.whole import VideoEncoder
from inlay.container import TokenReader, TokenWriter, Unfinished, part_of, unfinished
from inlay.container.tokens import Tokens
from inlay.errors import UsageError, VideoError
from inlay.masking import Budget
from inlay.video.frames import Video

PIPE_BUCKET_SECONDS = 2.0


def encode_file(
    encoder: VideoEncoder,
    pieces: Iterable[Video],
    path: str | PathLike[str],
    *,
    force: bool = False,
    resume: bool = False,
    live: bool = False,
) -> None:
    """Write the tokens of a video. What was done stays in `path.part` if this is interrupted.

    Args:
        resume: go on with the part that an interrupted run left, if this is the video it was begun with.
        live: the video need never end: what has come is written at once.
    """
    left = find_part(path, resume=resume, force=force)
    begun = resume and part_of(path).exists()
    trail = Trail(path, encoder, after=left.frames if left is not None else 0, begun=begun)
    done = list(_written(left)) if left is not None else []
    for tokens in done:
        encoder.parts.saw_tokens(tokens)
    with closing(encoder.encode(trail.follow(pieces), done=done, live=live)) as chunks:  # closed before the video is
        first = next(chunks, None)
        if first is None:
            raise VideoError(
                f"the video ends before frame {left.frames if left else 0}, where {part_of(path)} left off; "
                "is it the same video?"
                if left
                else "the video has no frames"
            )
        writer = TokenWriter(path, info=first.info, recipe=first.recipe, force=force, keep_part=True, resume=left)
        with closing(trail), writer:
            for tokens in chain([first], chunks):
                trail.note(tokens.info.frames)
                writer.append(tokens)


def find_part(path: str | PathLike[str], *, resume: bool, force: bool) -> Unfinished | None:
    """What an interrupted run left, where it is to be gone on with; refuses to write over it unasked."""
    part = part_of(path)
    if resume:
        return unfinished(path)
    if part.exists() and not force:
        raise UsageError(
            f"{part} was left by an interrupted encode; go on with it, or begin anew", about=("resume", "force")
        )
    return None


def keep_part(path: str | PathLike[str]) -> bool:
    """Give the part of an interrupted run, if there is one, the name of the file: how a live stream ends."""
    part = part_of(path)
    if not part.exists():
        return False
    part.replace(Path(path))
    trail_of(path).unlink(missing_ok=True)
    return True


def _written(left: Unfinished) -> Iterator[Tokens]:
    with TokenReader(left.path, keep_going=True, large=True) as reader:  # our own
        for number in range(len(left.entries)):
            yield reader.read(number)


def budget_of_pipe(budget: Budget) -> Budget:
    """What can be promised of a video that is seen once: rates are held as it goes by."""
    if budget.causal:
        return budget
    if budget.kind in ("tokens", "psnr") or budget.exact:
        kind = "exact" if budget.exact else budget.kind
        raise UsageError(
            f"{kind} needs the whole video, and a pipe is seen once; encode a file, or give a keep rate or bits",
            about=kind,
        )
    return replace(budget, bucket_seconds=PIPE_BUCKET_SECONDS)


def with_times(pieces: Iterable[Video]) -> Iterator[Video]:
    """The pieces of a pipe, each with its times: whether a pipe's rate varies shows only as it goes on, and a token
    file has times for all chunks or for none."""
    first = 0
    for video in pieces:
        grid = (first + torch.arange(len(video), dtype=torch.float64)) / float(video.fps)
        yield replace(video, seconds=grid if video.seconds is None else video.seconds)
        first += len(video)
