# SPDX-License-Identifier: Apache-2.0
"""The side-by-side film: input | kept cells lit | reconstruction, with the keep rate running beneath.

Legend: T frames, H W pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inlay.codec import slot_of_frame
from inlay.container.tokens import Tokens
from inlay.draw.caption import Caption, above, line_picture
from inlay.draw.images import PAPER, fitted, label
from inlay.draw.lighting import light
from inlay.draw.running import RunningCurve
from inlay.errors import ShapeError
from inlay.video.frames import Video, join_videos

GAP = 8  # pixels between panels
TYPE = (17, 26)  # height of letters in pixels, on the smallest panels and on the largest
SHORT_SIDE = (240, 540)  # a panel smaller than the first is enlarged, larger than the second reduced
MADE = "reconstruction"


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
    """Frames of a video in pieces of any length."""

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
        return join_videos(parts)


def film(
    scenes: Iterable[Shot], *, frames: int | None = None, made: str = MADE, caption: Caption | None = None
) -> Iterator[Video]:
    """Compose a whole film, chunk by chunk.

    Args:
        frames: how many there will be, where that is known; a short film then has its whole time on one axis.
        made: what stands above the reconstruction.
        caption: the line above; grows by every chunk that is shown.
    """
    running, caption = RunningCurve(), caption or Caption()
    for shot in scenes:
        running.frame = float(1 / shot.tokens.info.fps)
        if running.duration is None and frames is not None:
            running.duration = frames * running.frame
        yield compose(shot, running, made=made, caption=caption)


def compose(
    shot: Shot,
    curve: RunningCurve | None = None,
    *,
    made: str = MADE,
    caption: Caption | None = None,
    short_side: tuple[int, int] = SHORT_SIDE,
) -> Video:
    """One chunk of film: labelled panels side by side, between the caption and the curve where there are such."""
    backdrop = shot.original or shot.result
    count, rates = len(shot.result), frame_keep_rates(shot.tokens).tolist()
    panels = [([f"kept cells {100 * rate:.0f} %" for rate in rates], lit(backdrop.frames, shot.tokens))]
    panels.append(([made] * count, shot.result.frames))
    if shot.original is not None:
        panels.insert(0, (["input"] * count, shot.original.frames))
    drawn = side_by_side(panels, short_side=short_side)
    size = _type_size(drawn.shape[1])
    if caption is not None:
        line = caption.add(shot.tokens, shot.original, shot.result)
        drawn = above(line_picture(line, drawn.shape[2], size), drawn)
    if curve is not None:
        seconds = _frame_seconds(shot.tokens, curve.frames)
        drawn = torch.cat([drawn, curve.draw(seconds, rates, width=drawn.shape[2], size=size)], 1)
    return Video(frames=_even(drawn), fps=backdrop.fps, seconds=backdrop.seconds)


def lit(frames_THWC: Tensor, tokens: Tokens) -> Tensor:
    """The frames of one chunk under its mask."""
    return light(frames_THWC.cpu(), tokens.mask[slot_of_frame(tokens)].cpu(), tokens.recipe.cell_side)


def frame_keep_rates(tokens: Tokens) -> Tensor:
    """[T] share of cells kept in the slot of each frame."""
    return tokens.mask.flatten(1).float().mean(1)[slot_of_frame(tokens)]


def side_by_side(panels: Sequence[tuple[Sequence[str], Tensor]], *, short_side: tuple[int, int] = SHORT_SIDE) -> Tensor:
    """[T, H, W, 3]: panels in a row, each given as a label for every frame and the frames; even sides."""
    drawn = [_panel(labels, fitted(frames.cpu(), *short_side)) for labels, frames in panels]
    gap = _paper(len(drawn[0]), drawn[0].shape[1], GAP)
    return _even(torch.cat([piece for panel in drawn for piece in (gap, panel)][1:], 2))


def _panel(labels: Sequence[str], frames_THWC: Tensor) -> Tensor:
    _, height, width, _ = frames_THWC.shape
    size = _type_size(height)
    header = torch.stack([label(text, round(1.7 * size), width, size) for text in labels])
    return torch.cat([header, frames_THWC], 1)


def _type_size(height: int) -> int:
    smallest, largest = TYPE
    return min(max(height // 16, smallest), largest)


def _frame_seconds(tokens: Tokens, first: int) -> list[float]:
    """When each frame of a chunk is shown, `first` frames having gone before."""
    if tokens.seconds is not None:
        return tokens.seconds.tolist()
    return [float((first + i) / tokens.info.fps) for i in range(tokens.info.frames)]


def _paper(frames: int, height: int, width: int) -> Tensor:
    return torch.full((frames, height, width, 3), PAPER[0], dtype=torch.uint8)


def _even(frames_THWC: Tensor) -> Tensor:
    """Even sides play everywhere; the film is not a measurement, so a line of paper does no harm."""
    t, h, w, _ = frames_THWC.shape
    if not h % 2 and not w % 2:
        return frames_THWC
    out = _paper(t, h + h % 2, w + w % 2)
    out[:, :h, :w] = frames_THWC
    return out
