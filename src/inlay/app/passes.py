# SPDX-License-Identifier: Apache-2.0
"""Files in, files out: the passes over a video that the commands are made of, one chunk in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from typing import TypeVar

import torch

from inlay.app.model import Model, Settings
from inlay.app.screen import Screen
from inlay.container import TokenReader, TokenWriter
from inlay.errors import MissingError
from inlay.tokenizer import CLIP_FRAMES, Tokenizer
from inlay.types import Recipe, Tokens, Video
from inlay.video import Geometry, VideoReader, open_video, write_video
from inlay.video.writer import DEFAULT_CRF

Piece = TypeVar("Piece", Video, Tokens)


def counted(pieces: Iterable[Piece], advance: Callable[[int], None]) -> Iterator[Piece]:
    """The same pieces, each reported once the next one is asked for."""
    for piece in pieces:
        yield piece
        advance(len(piece) if isinstance(piece, Video) else piece.info.frames)


def open_clip(source: str, *, size: str = "keep", frames: int | None = None, keep_going: bool = False) -> VideoReader:
    return open_video(source, size=Geometry.parse(size), frames=frames, keep_going=keep_going)


def encode_file(
    reader: VideoReader,
    out: str,
    *,
    tokenizer: Tokenizer,
    settings: Settings,
    piped: bool = False,
    force: bool,
    screen: Screen,
) -> None:
    """An open video becomes a token file."""
    with screen.progress("encoding", reader.frames) as advance:
        tokens = tokenizer.encode_chunks(counted(_chunks(reader, piped=piped), advance), **asdict(settings))
        first = next(tokens)
        with TokenWriter(out, info=first.info, recipe=first.recipe, force=force) as writer:
            writer.append(first)
            for chunk in tokens:
                writer.append(chunk)


def _chunks(reader: VideoReader, *, piped: bool) -> Iterator[Video]:
    """A pipe shows only as it goes on that its rate varies, and a token file has times for all chunks or none: what
    comes from a pipe has them for all."""
    if not piped:
        yield from reader.chunks(CLIP_FRAMES)
        return
    first = 0
    for video in reader.chunks(CLIP_FRAMES):
        grid = (first + torch.arange(len(video), dtype=torch.float64)) / float(video.fps)
        yield replace(video, seconds=grid if video.seconds is None else video.seconds)
        first += len(video)


def decode_file(
    reader: TokenReader,
    out: str,
    *,
    tokenizer: Tokenizer,
    fill: str,
    lossless: bool = False,
    crf: float = DEFAULT_CRF,
    force: bool,
    screen: Screen,
) -> int:
    """An open token file becomes a video; returns how many frames were written."""
    written = 0

    def count(frames: int) -> None:
        nonlocal written
        written += frames
        advance(frames)

    with screen.progress("decoding", reader.info.frames) as advance:
        videos = tokenizer.decode_chunks(reader, fill)
        write_video(counted(videos, count), out, lossless=lossless, crf=crf, force=force)
    return written


def tokenizer_of(recipe: Recipe, model: Model, screen: Screen) -> tuple[Tokenizer, str]:
    """The tokenizer a file was made with, and the fill: the one asked for, else the file's hint where it can be had."""
    tokenizer = model.load()
    if model.fill is not None:
        return tokenizer, model.fill
    try:
        tokenizer.find_fill(recipe.fill)
    except MissingError as error:
        screen.note(f"the file suggests the fill {recipe.fill!r}, using {tokenizer.default_fill!r}: {error}")
        return tokenizer, tokenizer.default_fill
    return tokenizer, recipe.fill
