# SPDX-License-Identifier: Apache-2.0
"""The passes over a video that the commands are made of, one chunk in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from inlay.cli.screen import Screen
from inlay.codec import Cutting, decode_part
from inlay.container import TokenReader
from inlay.errors import MissingError, TokenFileError
from inlay.tokenizer import Tokenizer
from inlay.types import Recipe
from inlay.video import write_video
from inlay.video.frames import Video
from inlay.video.writer import DEFAULT_CRF


def counted(pieces: Iterable[Video], advance: Callable[[int], None]) -> Iterator[Video]:
    """The same pieces, each reported once the next one is asked for."""
    for piece in pieces:
        yield piece
        advance(len(piece))


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
    cut: Cutting | None = None,
) -> int:
    """An open token file, or a part of it, becomes a video; returns how many frames were written."""
    written = 0

    def count(frames: int) -> None:
        nonlocal written
        written += frames
        advance(frames)

    with screen.progress("decoding", reader.info.frames if cut is None else cut.frames) as advance:
        if cut is None:
            videos = tokenizer.decode_chunks(reader, fill=fill)
        else:
            videos = decode_part(partial(tokenizer.decode_chunks, fill=fill), reader, cut)
        write_video(counted(videos, count), out, lossless=lossless, crf=crf, force=force)
    return written


def backbone_of(recipe: Recipe, given: str | None) -> str:
    """The backbone to decode with: the one the user names, else the file's, which may only be one of our table."""
    from inlay.backbones import BACKBONES

    if given is None and recipe.backbone not in BACKBONES:
        raise TokenFileError(
            f"the file names the backbone {recipe.backbone!a}, which is none of ours, and a file does not choose "
            "what code runs; if you trust it, name the backbone yourself",
            about="backbone",
        )
    return given or recipe.backbone


def fill_of(recipe: Recipe, tokenizer: Tokenizer, given: str | None, screen: Screen) -> str:
    """The fill that is asked for, else the file's hint where it can be had."""
    if given is not None:
        return given
    try:
        tokenizer.filler.find(recipe.fill)
    except MissingError as error:
        screen.note(f"the file suggests the fill {recipe.fill!r}, using {tokenizer.filler.default!r}: {error}")
        return tokenizer.filler.default
    return recipe.fill
