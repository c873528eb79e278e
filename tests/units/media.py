# SPDX-License-Identifier: Apache-2.0
"""Video files written with PyAV alone: what `inlay.video` must be able to read.

PyAV is imported where it writes: a GPU machine may lack it, and the tests there write no video.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

BARS = np.array(
    [[255, 255, 255], [255, 255, 0], [0, 255, 255], [0, 255, 0], [255, 0, 255], [255, 0, 0], [0, 0, 255], [0, 0, 0]],
    np.uint8,
)


def gradient(frames: int = 12, height: int = 48, width: int = 64) -> np.ndarray:
    """[T, H, W, 3]: red grows to the right, green downwards, blue with time; no symmetry, so that turning shows."""
    t, y, x = np.meshgrid(
        np.arange(frames) * 12 % 256, np.linspace(0, 255, height), np.linspace(0, 255, width), indexing="ij"
    )
    return np.stack([x, y, t], -1).astype(np.uint8)


def bars(frames: int = 3, height: int = 64, width: int = 128) -> np.ndarray:
    """[T, H, W, 3]: eight fully saturated colour bars."""
    row = np.repeat(BARS, width // len(BARS), axis=0)
    return np.broadcast_to(row, (frames, height, width, 3)).copy()


def make(
    path: Path,
    x_THWC: np.ndarray,
    *,
    codec: str = "libx264",
    pixels: str = "yuv420p",
    fps: Fraction = Fraction(25),
    stamps: Sequence[int] | None = None,
    clock: Fraction | None = None,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
    matrix: int = 6,
    color_range: int = 1,
    tagged: bool = True,
    rotation: int = 0,
    tags: dict[str, str] | None = None,
) -> Path:
    """Encode; `stamps` in ticks of `clock` for a variable rate; `rotation` counter-clockwise, as PyAV counts."""
    import av

    with av.open(str(path), "w", options=container_options or {}) as container:
        stream: Any = container.add_stream(codec, rate=fps, options=options or {})
        stream.height, stream.width = x_THWC.shape[1:3]
        stream.pix_fmt = pixels
        if clock is not None:
            stream.time_base = stream.codec_context.time_base = clock
        if tagged:
            stream.codec_context.colorspace, stream.codec_context.color_range = matrix, color_range
        if rotation:
            stream.set_display_rotation(rotation)
        stream.metadata.update(tags or {})
        for index, picture in enumerate(x_THWC):
            frame: Any = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(
                format=pixels,
                dst_colorspace="ITU709" if matrix == 1 else "ITU601",
                dst_color_range="JPEG" if color_range == 2 else "MPEG",
            )
            if stamps is not None:
                frame.pts, frame.time_base = stamps[index], clock
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def make_audio(path: Path, codec: str) -> Path:
    import av

    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=48000, layout="mono")
        for start in range(0, 48000, 4800):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 4800), np.int16), format="s16", layout="mono")
            frame.sample_rate, frame.pts = 48000, start
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def psnr(a: Any, b: Any) -> float:
    error = np.mean((np.asarray(a, np.float64) - np.asarray(b, np.float64)) ** 2)
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))
