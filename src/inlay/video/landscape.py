# SPDX-License-Identifier: Apache-2.0
"""The landscape of the demo clip: three layers, between which things may pass.

Every painter takes a canvas; see `canvas` for the units. The railway lies at v = RAIL, the path's middle at v = PATH.
"""

from __future__ import annotations

import numpy as np

from inlay.video.canvas import Array, Canvas, colour, disc, inside, mix, noise, slab, smoothstep

RAIL, PATH = 0.615, 0.885
HUB = (0.215, 0.335)  # of the windmill
_LETTERS = {
    "I": "111 010 010 010 010 010 111",
    "N": "10001 11001 10101 10101 10011 10001 10001",
    "L": "1000 1000 1000 1000 1000 1000 1111",
    "A": "01110 10001 10001 11111 10001 10001 10001",
    "Y": "10001 10001 01010 00100 00100 00100 00100",
}


def backdrop(canvas: Canvas, seed: int) -> None:
    """All that lies behind the train: sky, mountains, hills, forest, embankment, meadow and path."""
    _sky(canvas, seed)
    _ridge(canvas, seed + 10, top=0.26, swing=0.34, cell=0.36, low=colour(120, 136, 168), high=colour(176, 182, 200))
    _ridge(canvas, seed + 20, top=0.40, swing=0.09, cell=0.60, low=colour(92, 122, 104), high=colour(140, 158, 112))
    _mill_tower(canvas)
    _forest(canvas, seed)
    _ground(canvas, seed)


def midground(canvas: Canvas, seed: int) -> None:
    """What hides the train: a cottage and bushes."""
    _cottage(canvas, 0.64, seed)
    for left, size in ((0.035, 0.060), (0.115, 0.045), (0.885, 0.055), (1.06, 0.07), (1.18, 0.05), (1.52, 0.06)):
        _bush(canvas, left, size, seed + int(1000 * left))


def foreground(canvas: Canvas, seed: int) -> None:
    """What hides the ball: a sign, and grass along the lower edge."""
    _sign(canvas, 0.30)
    blades = 0.962 + 0.05 * noise(canvas.u, canvas.v * 0, cell=0.012, seed=seed + 70, octaves=2)

    def grass(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        grain = noise(u, v, cell=0.010, seed=seed + 71, octaves=3)
        return inside(blades - v, 2 * pixel), mix(colour(38, 66, 30), colour(96, 130, 52), grain)

    canvas.paint(grass)


def _sky(canvas: Canvas, seed: int) -> None:
    def sky(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        base = mix(colour(84, 134, 196), colour(250, 214, 170), smoothstep(v / 0.46))
        glow = np.exp(-np.maximum(disc(u, v, (0.76, 0.17), 0.045), 0) / 0.10)
        base = mix(base, colour(255, 238, 200), 0.55 * glow)
        puffs = smoothstep((noise(u, v * 2.6, cell=0.34, seed=seed, octaves=5) - 0.50) / 0.22) * smoothstep(
            (0.42 - v) / 0.2
        )
        base = mix(base, mix(colour(255, 250, 242), colour(214, 208, 214), smoothstep((v - 0.08) / 0.3)), 0.85 * puffs)
        return np.ones_like(u), mix(base, colour(255, 248, 226), inside(disc(u, v, (0.76, 0.17), 0.045), 2 * pixel))

    canvas.paint(sky)


def _ridge(canvas: Canvas, seed: int, *, top: float, swing: float, cell: float, low: Array, high: Array) -> None:
    line = top + swing * (noise(canvas.u, canvas.v * 0, cell=cell, seed=seed, octaves=6) - 0.5)

    def slope(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        light = noise(u + 0.5 * v, v * 0.6 - 0.4 * u, cell=cell / 5, seed=seed + 1, octaves=5)
        body = mix(low, high, smoothstep((light - 0.3) / 0.4))
        snow = smoothstep((0.255 - v + 0.10 * (light - 0.5)) / 0.02) * (1.0 if swing > 0.1 else 0.0)
        body = mix(body, colour(240, 242, 248), 0.9 * snow)
        haze = smoothstep((v - top) / 0.28)
        return inside(line - v, pixel), mix(body, colour(206, 200, 190), 0.35 * haze)

    canvas.paint(slope)


def _mill_tower(canvas: Canvas) -> None:
    u0, v0 = HUB

    def tower(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        half = 0.020 + 0.085 * (v - v0 + 0.02)
        shade = np.clip((u - u0) / half * 0.5 + 0.5, 0, 1)
        stone = mix(colour(246, 240, 226), colour(168, 158, 150), smoothstep(shade))
        window = inside(slab(u, v, (u0 - 0.008, v0 + 0.06, u0 + 0.008, v0 + 0.085), 0.004), pixel)
        stone = mix(stone, colour(70, 62, 62), window)
        return inside(np.maximum(np.abs(u - u0) - half, v0 - 0.010 - v), pixel), stone

    def cap(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        return inside(np.maximum(disc(u, v, (u0, v0 - 0.006), 0.027), v - v0 + 0.004), pixel), colour(128, 58, 46)

    canvas.paint(tower, (u0 - 0.06, v0 - 0.05, u0 + 0.06, 0.52))
    canvas.paint(cap, (u0 - 0.04, v0 - 0.05, u0 + 0.04, v0 + 0.02))


def _forest(canvas: Canvas, seed: int) -> None:
    rng = np.random.default_rng([seed, 30])
    end = float(canvas.u[0, -1]) + 0.05
    for row in range(2):
        for u0 in np.arange(-0.05, end, 0.024):
            u0 += float(rng.uniform(-0.011, 0.011))
            height, tint = float(rng.uniform(0.055, 0.105)), float(rng.uniform(0, 1))
            _pine(canvas, u0, 0.555 + 0.025 * row, height, tint, seed)


def _pine(canvas: Canvas, u0: float, foot: float, height: float, tint: float, seed: int) -> None:
    def pine(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        down = np.clip((v - foot + height) / height, 0, 1)
        jag = 0.72 + 0.28 * (down * 6 % 1)
        half = 0.26 * height * down * jag
        grain = noise(u, v, cell=0.008, seed=seed + 31, octaves=2)
        dark, light = mix(colour(24, 52, 44), colour(44, 70, 40), np.full_like(u, tint)), colour(92, 124, 74)
        side = np.clip(0.5 + (u - u0) / (0.3 * height), 0, 1)
        return inside(np.maximum(np.abs(u - u0) - half, v - foot), pixel), mix(dark, light, 0.75 * grain * side)

    canvas.paint(pine, (u0 - 0.3 * height, foot - height, u0 + 0.3 * height, foot + 0.01))


def _ground(canvas: Canvas, seed: int) -> None:
    def meadow(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        broad = noise(u, v * 3, cell=0.20, seed=seed + 40, octaves=3)
        fine = noise(u, v * 1.6, cell=0.012, seed=seed + 41, octaves=3)
        grass = mix(colour(86, 118, 52), colour(158, 168, 78), smoothstep((broad - 0.25) / 0.5))
        grass = mix(grass, colour(50, 80, 36), 0.6 * smoothstep((fine - 0.45) / 0.3))
        bloom = noise(u, v, cell=0.011, seed=seed + 42, octaves=1)
        grass = mix(grass, colour(246, 226, 120), smoothstep((bloom - 0.93) / 0.04) * (v > 0.68))
        wave = 0.012 * np.sin(7 * u) + 0.03 * (noise(u, v * 0, cell=0.15, seed=seed + 43) - 0.5)
        grit = noise(u, v * 2, cell=0.010, seed=seed + 44, octaves=3)
        sand = mix(colour(190, 160, 116), colour(232, 208, 166), grit)
        path = smoothstep((0.062 - np.abs(v - PATH - 0.5 * wave) + 0.012 * (grit - 0.5)) / 0.008)
        return inside(0.572 - v, pixel), mix(grass, sand, path)

    def bed(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        stones = noise(u, v, cell=0.014, seed=seed + 45, octaves=2)
        body = mix(colour(96, 82, 74), colour(172, 156, 140), smoothstep((stones - 0.3) / 0.4))
        sleeper = (u % 0.026 < 0.012) & (v < RAIL + 0.012)
        body = mix(body, colour(72, 52, 42), 0.9 * sleeper)
        rail = inside(np.abs(v - RAIL - 0.003) - 0.003, pixel)
        edge = RAIL + 0.040 + 0.008 * (stones - 0.5)
        return inside(np.maximum(RAIL - v, v - edge), pixel), mix(body, colour(206, 206, 210), rail)

    canvas.paint(meadow)
    canvas.paint(bed, (-1, RAIL - 0.01, 1e3, RAIL + 0.06))


def _cottage(canvas: Canvas, left: float, seed: int) -> None:
    top, foot, right = 0.575, 0.745, left + 0.20

    def wall(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        course = np.floor((v - top) / 0.014)
        joint = ((v - top) % 0.014 < 0.003) | ((u + 0.014 * (course % 2)) % 0.028 < 0.003)
        tint = noise(u, v, cell=0.02, seed=seed + 50, octaves=2)
        bricks = mix(mix(colour(196, 118, 88), colour(222, 156, 122), tint), colour(226, 208, 190), 0.8 * joint)
        for start in (left + 0.022, left + 0.138):
            frame = (start, top + 0.045, start + 0.042, top + 0.100)
            bricks = mix(bricks, colour(248, 246, 240), inside(slab(u, v, frame), pixel))
            pane = (np.abs((u - start) % 0.021 - 0.0105) < 0.0075) & (
                np.abs((v - frame[1]) % 0.0275 - 0.01375) < 0.0105
            )
            shine = mix(
                colour(66, 92, 120), colour(190, 214, 232), smoothstep((u - start - v + frame[1] + 0.05) / 0.09)
            )
            bricks = np.where((pane & (slab(u, v, frame) < 0))[..., None], shine, bricks)
        door = (left + 0.082, top + 0.070, left + 0.120, foot)
        bricks = mix(bricks, colour(56, 84, 82), inside(slab(u, v, door), pixel))
        bricks = mix(bricks, colour(236, 200, 96), inside(disc(u, v, (left + 0.112, 0.70), 0.0035), pixel))
        return inside(slab(u, v, (left, top, right, foot)), pixel), bricks

    def roof(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        slope = (v - top + 0.085) * 0.55
        tile = ((v * 70) % 1 + 0.4 * ((u * 60 + np.floor(v * 70) * 0.5) % 1)) / 1.4
        body = mix(colour(112, 44, 38), colour(178, 84, 62), tile.astype(np.float32))
        edge = np.maximum(np.abs(u - left - 0.10) - 0.070 - slope, np.maximum(top - 0.085 - v, v - top - 0.004))
        return inside(edge, pixel), body

    def shadow(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        return 0.5 * smoothstep(-slab(u, v, (left - 0.10, foot - 0.03, right, foot + 0.022), 0.02) / 0.02), colour(
            26, 36, 24
        )

    def chimney(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        return inside(slab(u, v, (left + 0.14, top - 0.115, left + 0.164, top - 0.05)), pixel), colour(150, 92, 76)

    canvas.paint(shadow, (left - 0.15, foot - 0.06, right + 0.05, foot + 0.05))
    canvas.paint(wall, (left - 0.01, top - 0.01, right + 0.01, foot + 0.01))
    canvas.paint(chimney, (left, top - 0.13, right, top))
    canvas.paint(roof, (left - 0.05, top - 0.10, right + 0.05, top + 0.02))


def _bush(canvas: Canvas, left: float, size: float, seed: int) -> None:
    def leaves(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        outline = disc((u - left) * 0.8 + left, v, (left, 0.68), size)
        outline = outline + 0.5 * size * (noise(u, v, cell=0.03, seed=seed, octaves=3) - 0.5)
        grain = noise(u, v, cell=0.014, seed=seed + 1, octaves=3)
        lit = np.clip(grain - (v - 0.68) / (3 * size), 0, 1)
        return inside(np.maximum(outline, v - 0.69 - 0.03 * grain), pixel), mix(
            colour(28, 56, 30), colour(126, 152, 70), lit
        )

    canvas.paint(leaves, (left - 2 * size, 0.5, left + 2 * size, 0.76))


def _sign(canvas: Canvas, left: float) -> None:
    board = (left, 0.690, left + 0.215, 0.795)

    def posts(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        wood = mix(colour(92, 62, 40), colour(150, 108, 70), noise(u * 6, v * 0.6, cell=0.03, seed=60))
        both = np.abs(np.abs(u - left - 0.1075) - 0.070) - 0.0105
        return inside(np.maximum(both, np.maximum(0.70 - v, v - 0.965)), pixel), wood

    def plank(u: Array, v: Array, pixel: float) -> tuple[Array, Array]:
        grain = noise(u * 0.5, v * 8, cell=0.05, seed=61)
        wood = mix(colour(226, 200, 152), colour(246, 228, 190), grain)
        rim = inside(-slab(u, v, board, 0.008) - 0.006, pixel)
        wood = mix(wood, colour(110, 72, 44), rim)
        return inside(slab(u, v, board, 0.008), pixel), mix(wood, colour(52, 40, 48), _lettering(u, v, left, pixel))

    canvas.paint(posts, (left, 0.68, left + 0.22, 0.98))
    canvas.paint(plank, (left - 0.01, 0.68, left + 0.23, 0.81))


def _lettering(u: Array, v: Array, left: float, pixel: float) -> Array:
    """The project's name in dots, and two lines of writing too small to read."""
    dot = 0.0064
    x, covered = left + 0.020, np.zeros_like(u)
    for letter in "INLAY":
        rows = _LETTERS[letter].split()
        for j, row in enumerate(rows):
            for i in (i for i, bit in enumerate(row) if bit == "1"):
                corner = (x + i * dot, 0.706 + j * dot)
                covered = np.maximum(covered, inside(slab(u, v, (*corner, corner[0] + dot, corner[1] + dot)), pixel))
        x += (len(rows[0]) + 1.35) * dot
    for line in (0.764, 0.777):
        words = noise(u, v * 0 + line, cell=0.010, seed=62, octaves=2) > 0.36
        covered = np.maximum(
            covered, 0.8 * words * inside(slab(u, v, (left + 0.03, line, left + 0.185, line + 0.005)), pixel)
        )
    return covered
