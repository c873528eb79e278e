# SPDX-License-Identifier: Apache-2.0
"""A video or its tokens in, the film, the curve of kept cells and the contact sheet of masks out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import tee
from pathlib import Path
from typing import Any

from inlay.cli.chart import RunningCurve
from inlay.cli.curve import draw_curve
from inlay.cli.film import Shot, compose, frame_keep_rates, frame_seconds, shots
from inlay.cli.model import Settings
from inlay.cli.passes import counted
from inlay.cli.screen import Screen
from inlay.container.tokens import Tokens
from inlay.tokenizer import CLIP_FRAMES, Tokenizer
from inlay.video import VideoReader, write_video
from inlay.video.frames import Video
from inlay.video.webp import SUFFIX, write_webp


@dataclass(kw_only=True)
class Tally:
    """What the film showed, frame by frame: grows while the film is written."""

    seconds: list[float] = field(default_factory=list)
    keep_rates: list[float] = field(default_factory=list)
    cells: int = 0
    tokens: int = 0

    def add(self, shot: Shot) -> None:
        tokens = shot.tokens
        self.seconds += frame_seconds(tokens, len(self.seconds))
        self.keep_rates += frame_keep_rates(tokens).tolist()
        self.cells += tokens.cells
        self.tokens += len(tokens)

    def record(self) -> dict[str, Any]:
        return {
            "frames": len(self.seconds),
            "cells": self.cells,
            "tokens": self.tokens,
            "keep_rate": self.tokens / self.cells,
        }


def film_video(reader: VideoReader, tokenizer: Tokenizer, settings: Settings, fill: str | None) -> Iterator[Shot]:
    """Encode and decode as the film goes on; what is read is read once, and one chunk waits at a time."""
    shown, encoded = tee(reader.chunks(CLIP_FRAMES))
    return film_tokens(tokenizer.encode_chunks(encoded, **asdict(settings)), shown, tokenizer, fill)


def film_tokens(
    chunks: Iterable[Tokens], originals: Iterable[Video] | None, tokenizer: Tokenizer, fill: str | None
) -> Iterator[Shot]:
    """Decode as the film goes on."""
    shown, decoded = tee(chunks)
    return shots(shown, tokenizer.decode_chunks(decoded, fill), originals)


def write_film(
    scenes: Iterable[Shot], out: str, curve: str | None, *, title: str, frames: int | None, force: bool, screen: Screen
) -> dict[str, Any]:
    """Write the film (the suffix says as what), then the curve; returns what `inlay view --json` prints."""
    tally, running = Tally(), RunningCurve()

    def pictures() -> Iterator[Video]:
        for shot in scenes:
            if running.duration is None and frames is not None:
                running.duration = float(frames / shot.tokens.info.fps)
            first = len(tally.seconds)
            tally.add(shot)
            yield compose(shot, running, first=first)

    with screen.progress("filming", frames) as advance:
        film = counted(pictures(), advance)
        if Path(out).suffix.lower() == SUFFIX:
            write_webp(film, out)
        else:
            write_video(film, out, force=force)
    if curve is not None:
        draw_curve(curve, tally.seconds, tally.keep_rates, keep_rate=tally.tokens / tally.cells, title=title)
    return {"film": out, "curve": curve, **tally.record()}
