# SPDX-License-Identifier: Apache-2.0
"""Clips made by code, the same ones every time: for the demo, the docs and the tests."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch

from inlay.errors import UsageError
from inlay.video.canvas import Array, Canvas, noise, smoothstep
from inlay.video.frames import Video

_PAN = 0.32  # how far the demo's camera travels, in picture heights
_FINE = 2  # the still layers are painted this much finer, so that the camera can move by half pixels


def demo_clip(frames: int = 66, height: int = 256, width: int = 256, *, seed: int = 4) -> Video:
    """A landscape that stands still while a mill turns, a train passes and a ball rolls; at last the camera pans.

    Most cells do not change for two thirds of the clip, some are hidden and come back, and then everything moves.
    """
    from inlay.video import sprites

    _check(frames, height, width)
    aspect = width / height
    layers = _paint_layers(height, width, seed)
    pictures, seen = [], -1
    for index in range(frames):
        time = index / max(frames - 1, 1)
        left = round(_PAN * float(smoothstep(np.array(3 * time - 2))) * height * _FINE)
        if left != seen:
            seen, (back, middle, front) = left, (_view(layer, left, width) for layer in layers)
        canvas = Canvas(height, width, left=left / (height * _FINE))
        canvas.lay(back)
        sprites.sails(canvas, 0.35 + 0.07 * index)
        sprites.train(canvas, 0.16 + (aspect + 0.38) * time)
        canvas.lay(middle)
        sprites.ball(canvas, 0.10 + (aspect + 0.02) * time)
        canvas.lay(front)
        pictures.append(canvas.bytes())
    return _video(pictures)


def still(frames: int = 33, height: int = 64, width: int = 64, *, seed: int = 0) -> Video:
    """The same textured picture again and again."""
    _check(frames, height, width)
    picture = texture(height, width, seed=seed)
    return _video([picture] * frames)


def moving_square(
    frames: int = 33,
    height: int = 64,
    width: int = 64,
    *,
    side: int | None = None,
    step: tuple[int, int] = (2, 1),
    seed: int = 0,
) -> Video:
    """A textured square that moves by `step` (x, y) pixels a frame over a still picture and bounces off the edges."""
    _check(frames, height, width)
    side = max(1, min(height, width) // 4) if side is None else side
    if not 1 <= side <= min(height, width):
        raise UsageError(f"the square must fit into {width}x{height}; got a side of {side}")
    ground = texture(height, width, seed=seed) // 2
    square = 255 - texture(side, side, seed=seed + 1) // 3
    pictures = []
    for index in range(frames):
        x, y = _bounce(index * step[0], width - side), _bounce(index * step[1], height - side)
        picture = ground.copy()
        picture[y : y + side, x : x + side] = square
        pictures.append(picture)
    return _video(pictures)


def scene_cut(frames: int = 33, height: int = 64, width: int = 64, *, at: int | None = None, seed: int = 0) -> Video:
    """One still picture up to frame `at` (the middle), another from there on."""
    _check(frames, height, width)
    at = frames // 2 if at is None else at
    if not 0 <= at <= frames:
        raise UsageError(f"the cut must lie within the {frames} frames; got {at}")
    before, after = (texture(height, width, seed=seed + 100 * i) for i in range(2))
    return _video([before] * at + [after] * (frames - at))


def pan(frames: int = 33, height: int = 64, width: int = 64, *, step: int = 2, seed: int = 0) -> Video:
    """A camera that moves to the right by `step` pixels a frame over a still world; everything changes."""
    _check(frames, height, width)
    travel = abs(step) * (frames - 1)
    world = texture(height, width + travel, seed=seed)
    starts = (index * step if step >= 0 else travel + index * step for index in range(frames))
    return _video([world[:, x : x + width] for x in starts])


def texture(height: int, width: int, *, seed: int = 0) -> Array:
    """[H, W, 3] uint8 coloured fractal noise, its grain measured in pixels: a larger one continues a smaller one."""
    u, v = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    light = noise(u, v, cell=24.0, seed=1000 + seed, octaves=5)
    tints = [noise(u, v, cell=48.0, seed=1001 + 10 * channel + seed, octaves=3) for channel in range(3)]
    x_HWC = np.stack([0.65 * light + 0.35 * tint for tint in tints], -1)
    return np.round(np.clip((x_HWC - 0.5) * 1.8 + 0.5, 0, 1) * 255).astype(np.uint8)


def _paint_layers(height: int, width: int, seed: int) -> list[Array]:
    from inlay.video import landscape

    reach = _FINE * (width + math.ceil(_PAN * height) + 1)
    layers = []
    for painter in (landscape.backdrop, landscape.midground, landscape.foreground):
        canvas = Canvas(_FINE * height, reach)
        painter(canvas, seed)
        layers.append(canvas.rgba)
    return layers


def _view(layer_HWC: Array, left: int, width: int) -> Array:
    """What the camera sees of a layer from the fine pixel `left` on, at the clip's own resolution."""
    window = layer_HWC[:, left : left + _FINE * width]
    parts = [window[y::_FINE, x::_FINE] for y in range(_FINE) for x in range(_FINE)]
    return sum(parts[1:], parts[0]) / np.float32(len(parts))


def _bounce(distance: int, span: int) -> int:
    place = distance % max(2 * span, 1)
    return min(place, 2 * span - place)


def _video(pictures: list[Array]) -> Video:
    return Video(frames=torch.from_numpy(np.stack(pictures)), fps=Fraction(24))


def _check(frames: int, height: int, width: int) -> None:
    if min(frames, height, width) < 1:
        raise UsageError(f"a clip needs at least one frame and one pixel; got {frames} frames of {width}x{height}")
