# SPDX-License-Identifier: Apache-2.0
"""Paint pictures by code: signed distances for edges, value noise for surfaces.

Lengths are in units of the picture's height, u to the right and v down, so that a scene looks the same at any size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Array = np.ndarray
Shader = Callable[[Array, Array, float], tuple[Array, Array]]  # u, v, pixel size -> coverage [H, W], colour [..., 3]

_LATTICE = 256


def noise(u: Array, v: Array, *, cell: float, seed: int, octaves: int = 4) -> Array:
    """Fractal value noise in [0, 1]; the largest grains have the size `cell`."""
    total, weight = np.zeros(np.broadcast_shapes(u.shape, v.shape), np.float32), 0.0
    for octave in range(octaves):
        table = np.random.default_rng([seed, octave]).random((_LATTICE, _LATTICE), dtype=np.float32)
        scale = 2.0**octave / cell
        total += _smooth_lookup(table, u * scale, v * scale) * 0.5**octave
        weight += 0.5**octave
    return total / np.float32(weight)


def _smooth_lookup(table: Array, x: Array, y: Array) -> Array:
    x0, y0 = np.floor(x).astype(np.int64), np.floor(y).astype(np.int64)
    fx, fy = smoothstep(x - x0), smoothstep(y - y0)
    left, right, top, bottom = x0 % _LATTICE, (x0 + 1) % _LATTICE, y0 % _LATTICE, (y0 + 1) % _LATTICE
    upper = table[top, left] * (1 - fx) + table[top, right] * fx
    lower = table[bottom, left] * (1 - fx) + table[bottom, right] * fx
    return (upper * (1 - fy) + lower * fy).astype(np.float32)


def smoothstep(x: Array) -> Array:
    x = np.clip(x, 0, 1)
    return (x * x * (3 - 2 * x)).astype(np.float32)


def inside(distance: Array, pixel: float) -> Array:
    """Coverage of a pixel by a shape at this signed distance (negative inside): an edge one pixel wide."""
    return np.clip(0.5 - distance / pixel, 0, 1).astype(np.float32)


def disc(u: Array, v: Array, centre: tuple[float, float], radius: float) -> Array:
    return np.hypot(u - centre[0], v - centre[1]) - radius


def slab(u: Array, v: Array, box: Sequence[float], rounding: float = 0.0) -> Array:
    """Distance to the rectangle (left, top, right, bottom), its corners rounded."""
    left, top, right, bottom = box
    du = np.abs(u - (left + right) / 2) - (right - left) / 2 + rounding
    dv = np.abs(v - (top + bottom) / 2) - (bottom - top) / 2 + rounding
    return np.hypot(np.maximum(du, 0), np.maximum(dv, 0)) + np.minimum(np.maximum(du, dv), 0) - rounding


def colour(*rgb: float) -> Array:
    """0 to 255, as colours are usually written, to 0 to 1."""
    return np.asarray(rgb, np.float32) / 255


def mix(a: Array, b: Array, share: Array) -> Array:
    """From `a` to `b` as the [H, W] share goes from 0 to 1."""
    return a + (b - a) * share[..., None]


class Canvas:
    """A picture with alpha, premultiplied, whose left edge stands at `left` in the world."""

    def __init__(self, height: int, width: int, *, left: float = 0.0) -> None:
        self.pixel = 1 / height
        self.u = (left + (np.arange(width, dtype=np.float32) + 0.5) * self.pixel)[None, :]
        self.v = ((np.arange(height, dtype=np.float32) + 0.5) * self.pixel)[:, None]
        self.rgba = np.zeros((height, width, 4), np.float32)

    def paint(self, shader: Shader, box: Sequence[float] | None = None) -> None:
        """Lay a shape over the picture; `box` (left, top, right, bottom) bounds it, to save time."""
        rows, columns = slice(None), slice(None)
        if box is not None:
            columns = slice(*np.searchsorted(self.u[0], (box[0], box[2])))
            rows = slice(*np.searchsorted(self.v[:, 0], (box[1], box[3])))
        u, v = np.broadcast_arrays(self.u[:, columns], self.v[rows])
        if u.size:
            coverage, rgb = shader(u, v, self.pixel)
            over = np.concatenate([np.broadcast_to(rgb, (*u.shape, 3)), np.ones((*u.shape, 1), np.float32)], -1)
            self.lay(over * coverage[..., None], rows, columns)

    def lay(self, rgba: Array, rows: slice = slice(None), columns: slice = slice(None)) -> None:
        """Premultiplied pixels over what is there."""
        below = self.rgba[rows, columns]
        self.rgba[rows, columns] = rgba + below * (1 - rgba[..., 3:])

    def bytes(self) -> Array:
        """[H, W, 3] uint8."""
        return np.round(np.clip(self.rgba[..., :3], 0, 1) * 255).astype(np.uint8)
