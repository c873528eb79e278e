# SPDX-License-Identifier: Apache-2.0
"""The moving things of the demo clip: the train, the ball and the sails of the mill."""

from __future__ import annotations

import math

import numpy as np

from inlay.video.canvas import Array, Canvas, colour, disc, inside, mix, noise, slab, smoothstep
from inlay.video.landscape import HUB, PATH, RAIL

BALL_RADIUS = 0.062
_WHITE = colour(250, 246, 238)
_STRIPES = np.stack([colour(226, 64, 54), _WHITE, colour(244, 186, 58), _WHITE, colour(52, 118, 190), _WHITE])


def train(canvas: Canvas, nose: float) -> None:
    """An engine and three coaches, its nose at u = nose."""
    _engine(canvas, nose - 0.16, nose)
    for index, body in enumerate((colour(46, 92, 134), colour(46, 92, 134), colour(150, 60, 58))):
        right = nose - 0.168 - 0.192 * index
        _coach(canvas, right - 0.184, right, body)


def _coach(canvas: Canvas, left: float, right: float, body: Array) -> None:
    top = RAIL - 0.082

    def shell(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        paint = mix(np.broadcast_to(body, (*u.shape, 3)), colour(244, 234, 212), inside(v - RAIL + 0.034, pixel))
        paint = mix(paint, colour(228, 190, 90), inside(np.abs(v - RAIL + 0.033) - 0.002, pixel))
        paint = mix(paint, colour(120, 120, 126), inside(v - top - 0.012, pixel))
        along = (u - left - 0.012) % 0.0325
        pane = slab(along, v, (0.004, top + 0.020, 0.0265, RAIL - 0.042), 0.004)
        glass = mix(colour(58, 76, 98), colour(168, 196, 214), smoothstep((along - v + top + 0.05) / 0.06))
        inner = (u > left + 0.012) & (u < right - 0.014)
        paint = mix(paint, glass, inside(pane, pixel) * inner)
        return inside(slab(u, v, (left, top, right, RAIL - 0.011), 0.010), pixel), paint

    _wheels(canvas, (left + 0.026, left + 0.052, right - 0.052, right - 0.026))
    canvas.paint(shell, (left - 0.01, top - 0.01, right + 0.01, RAIL))


def _engine(canvas: Canvas, left: float, right: float) -> None:
    top = RAIL - 0.086

    def shell(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        nose = 0.045 * smoothstep((u - right + 0.055) / 0.055)  # the roof falls towards the nose
        shape = np.maximum(slab(u, v, (left, top, right, RAIL - 0.010), 0.012), top + nose - v)
        paint = mix(colour(206, 58, 46), colour(138, 30, 36), smoothstep((v - top) / 0.075))
        paint = mix(paint, colour(250, 238, 214), inside(np.abs(v - RAIL + 0.030) - 0.005, pixel))
        cab = inside(slab(u, v, (right - 0.062, top + 0.020, right - 0.026, top + 0.044), 0.006), pixel)
        paint = mix(paint, mix(colour(58, 76, 98), colour(196, 218, 230), smoothstep((right - 0.03 - u) / 0.03)), cab)
        slats = (u % 0.008 < 0.004) * inside(slab(u, v, (left + 0.018, top + 0.022, left + 0.075, top + 0.042)), pixel)
        paint = mix(paint, colour(70, 22, 26), slats)
        lamp = inside(disc(u, v, (right - 0.012, RAIL - 0.030), 0.0065), pixel)
        return inside(shape, pixel), mix(paint, colour(255, 246, 196), lamp)

    _wheels(canvas, (left + 0.026, left + 0.054, right - 0.066, right - 0.038))
    canvas.paint(shell, (left - 0.01, top - 0.01, right + 0.01, RAIL))


def _wheels(canvas: Canvas, centres: tuple[float, ...]) -> None:
    for u0 in centres:

        def wheel(u: Array, v: Array, pixel: float, u0: float = u0) -> tuple[Array, Array]:
            reach = np.hypot(u - u0, v - RAIL + 0.011)
            return inside(reach - 0.011, pixel), mix(
                colour(44, 42, 46), colour(150, 148, 150), inside(reach - 0.005, pixel)
            )

        canvas.paint(wheel, (u0 - 0.02, RAIL - 0.03, u0 + 0.02, RAIL + 0.01))


def ball(canvas: Canvas, u0: float) -> None:
    """A striped ball that has rolled along the path to u = u0; it turns as far as it rolls."""
    r, v0, turn = BALL_RADIUS, PATH + 0.018 - BALL_RADIUS, u0 / BALL_RADIUS

    def shadow(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        reach = np.hypot((u - u0 + 0.35 * r) / (1.25 * r), (v - v0 - 0.97 * r) / (0.26 * r))
        return 0.55 * smoothstep((1.15 - reach) / 0.6), colour(40, 30, 20)

    def skin(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        x, y = (u - u0) / r, (v - v0) / r
        z = np.sqrt(np.clip(1 - x * x - y * y, 0, 1))
        sector = (np.arctan2(y, x) - turn) / (2 * math.pi) * 6 % 6
        index, part = sector.astype(np.int64) % 6, sector % 1
        blend = smoothstep(0.5 + (part - 1) * 2 * math.pi / 6 * np.hypot(x, y) * r / pixel)  # soft seams
        paint = mix(_STRIPES[index], _STRIPES[(index + 1) % 6], blend)
        paint = mix(paint, _WHITE, inside(np.hypot(x, y) - 0.17, pixel / r))
        light = np.clip(-0.45 * x - 0.60 * y + 0.66 * z, 0, 1)
        gloss = 0.6 * np.clip(-0.40 * x - 0.52 * y + 0.755 * z, 0, 1) ** 24
        grain = 0.94 + 0.06 * noise(x, y, cell=0.2, seed=80, octaves=2)
        return inside(np.hypot(u - u0, v - v0) - r, pixel), paint * ((0.42 + 0.62 * light) * grain)[..., None] + gloss[
            ..., None
        ]

    canvas.paint(shadow, (u0 - 2.4 * r, v0 + 0.5 * r, u0 + 2 * r, v0 + 1.5 * r))
    canvas.paint(skin, (u0 - 1.1 * r, v0 - 1.1 * r, u0 + 1.1 * r, v0 + 1.1 * r))


def sails(canvas: Canvas, angle: float) -> None:
    """Four lattice sails about the mill's hub, turned by `angle` radians."""
    reach = 0.118

    def arms(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        x, y = u - HUB[0], v - HUB[1]
        covered = np.zeros_like(u)
        for quarter in range(4):
            c, s = math.cos(angle + quarter * math.pi / 2), math.sin(angle + quarter * math.pi / 2)
            along, across = c * x + s * y, c * y - s * x
            spar = slab(along, across, (0.0, -0.0028, reach, 0.0028))
            cloth = slab(along, across, (0.030, 0.0, reach, 0.024))
            weave = np.maximum(inside(np.abs(along % 0.0145 - 0.00725) - 0.0018, pixel), inside(0.021 - across, pixel))
            covered = np.maximum(covered, inside(spar, pixel))
            covered = np.maximum(covered, inside(cloth, pixel) * (0.45 + 0.5 * weave))
        return covered, mix(colour(250, 246, 236), colour(92, 66, 56), inside(np.hypot(x, y) - 0.010, pixel))

    box = (HUB[0] - 0.13, HUB[1] - 0.13, HUB[0] + 0.13, HUB[1] + 0.13)
    canvas.paint(arms, box)
