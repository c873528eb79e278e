# SPDX-License-Identifier: Apache-2.0
"""Originals, tokens and reconstructions in, a film out: input | kept cells lit | reconstruction, the curve beneath.

Legend: T frames, H W pixels. Kept cells stay in colour, dropped ones turn dark and grey, with a line between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from inlay.cli.chart import INK, PAPER, RunningCurve
from inlay.cli.letters import write
from inlay.codec.config import slot_of_frame
from inlay.container.tokens import Tokens
from inlay.errors import ShapeError
from inlay.video.frames import Video
from inlay.video.lighting import light

GAP, MARGIN = 8, 4  # pixels
TYPE = (17, 26)  # height of letters in pixels, on the smallest panels and on the largest
SHORT_SIDE = (240, 540)  # a panel smaller than the first is enlarged, larger than the second reduced


@dataclass(frozen=True, kw_only=True)
class Shot:
    """The same frames three times over; without the original video there are two panels."""

    original: Video | None
    tokens: Tokens
    result: Video


def shots(tokens: Iterable[Tokens], results: Iterable[Video], originals: Iterable[Video] | None) -> Iterator[Shot]:
    """Walk chunk by chunk, however the originals and results are cut themselves."""
    result_frames = _Frames(results, "the decoded video")
    original_frames = _Frames(originals, "the original video") if originals is not None else None
    for part in tokens:
        n = part.info.frames
        original = original_frames.take(n) if original_frames else None
        yield Shot(original=original, tokens=part, result=result_frames.take(n))


class _Frames:
    """Videos in, the same frames in pieces of any length out."""

    def __init__(self, videos: Iterable[Video], name: str) -> None:
        self.videos, self.name = iter(videos), name
        self.rest: Video | None = None

    def take(self, n: int) -> Video:
        parts: list[Video] = []
        while n:
            video = self.rest or next(self.videos, None)
            if video is None:
                raise ShapeError(f"{self.name} has {n} frames fewer than the tokens; are they of the same clip?")
            parts.append(video[:n])
            self.rest = video[n:] if len(video) > n else None
            n -= len(parts[-1])
        times = [p.seconds for p in parts if p.seconds is not None]
        seconds = torch.cat(times) if len(times) == len(parts) else None
        return Video(frames=torch.cat([p.frames for p in parts]), fps=parts[0].fps, seconds=seconds)


def frame_keep_rates(tokens: Tokens) -> Tensor:
    """[T] share of cells kept in the slot of each frame."""
    return tokens.mask.flatten(1).float().mean(1)[slot_of_frame(tokens)]


def lit(frames_THWC: Tensor, tokens: Tokens) -> Tensor:
    """The frames of one chunk under its mask."""
    return light(frames_THWC, tokens.mask[slot_of_frame(tokens)].cpu(), tokens.recipe.space_stride)


def frame_seconds(tokens: Tokens, first: int) -> list[float]:
    """When each frame of a chunk is shown, `first` frames having gone before."""
    if tokens.seconds is not None:
        return tokens.seconds.tolist()
    return [float((first + i) / tokens.info.fps) for i in range(tokens.info.frames)]


def compose(shot: Shot, curve: RunningCurve | None = None, *, first: int = 0) -> Video:
    """One film chunk: labelled panels side by side, above the curve where there is one; `first` frames went before."""
    backdrop = shot.original or shot.result
    rates = frame_keep_rates(shot.tokens).tolist()
    panels = [(["reconstruction"] * len(shot.result), shot.result.frames)]
    panels.insert(0, ([f"kept cells {rate:.0%}" for rate in rates], lit(backdrop.frames, shot.tokens)))
    if shot.original is not None:
        panels.insert(0, (["input"] * len(shot.result), shot.original.frames))
    drawn = [_panel(labels, frames) for labels, frames in panels]
    gap = torch.full((*drawn[0].shape[:2], GAP, 3), PAPER, dtype=torch.uint8)
    film = torch.cat([piece for panel in drawn for piece in (gap, panel)][1:], 2)
    if curve is not None:
        seconds, size = frame_seconds(shot.tokens, first), _type_size(drawn[0].shape[1])
        film = torch.cat([film, curve.draw(seconds, rates, width=film.shape[2], size=size)], 1)
    return Video(frames=_even(film), fps=backdrop.fps, seconds=backdrop.seconds)


def _type_size(height: int) -> int:
    smallest, largest = TYPE
    return min(max(height // 16, smallest), largest)


def _panel(labels: list[str], frames_THWC: Tensor) -> Tensor:
    frames = _scaled(frames_THWC)
    size = _type_size(frames.shape[1])
    header = torch.full((len(frames), round(1.7 * size), frames.shape[2], 3), PAPER, dtype=torch.uint8)
    for picture, label in zip(header, labels, strict=True):
        write(picture, label, x=MARGIN, middle=len(picture) // 2, size=size, colour=INK)
    return torch.cat([header, frames], 1)


def _scaled(frames_THWC: Tensor) -> Tensor:
    """Small pictures enlarged by a whole number, so that cells stay crisp; large ones reduced by area."""
    short = min(frames_THWC.shape[1:3])
    smallest, largest = SHORT_SIDE
    if short < smallest:
        factor = math.ceil(smallest / short)
        return frames_THWC.repeat_interleave(factor, 1).repeat_interleave(factor, 2)
    if short <= largest:
        return frames_THWC
    size = [round(side * largest / short) for side in frames_THWC.shape[1:3]]
    small = interpolate(frames_THWC.permute(0, 3, 1, 2).float(), size=size, mode="area")
    return small.round().to(torch.uint8).permute(0, 2, 3, 1)


def _even(frames_THWC: Tensor) -> Tensor:
    """Even sides play everywhere; the film is not a measurement, so a line of paper does no harm."""
    t, h, w, _ = frames_THWC.shape
    out = torch.full((t, h + h % 2, w + w % 2, 3), PAPER, dtype=torch.uint8)
    out[:, :h, :w] = frames_THWC
    return out
