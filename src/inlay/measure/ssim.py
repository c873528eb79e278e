# SPDX-License-Identifier: Apache-2.0
"""Structural similarity, with the uniform 7x7 window and the Gaussian 11x11 one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from inlay.errors import ShapeError
from inlay.measure.base import Gauge, MeasureConfig

C1, C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
FRAMES_AT_ONCE = 33  # where launches cost more than memory; a CPU is fastest frame by frame


@dataclass(frozen=True, kw_only=True)
class SsimState:
    window: tuple[float, ...]  # K weights along one axis, summing to 1; both windows are separable
    unbiased: float  # factor on variances: K*K / (K*K - 1) for the sample variance, 1 for the population's
    key: str
    frames: int = 0
    total: float = 0.0


def start_uniform(config: MeasureConfig) -> SsimState:
    return SsimState(window=(1 / 7,) * 7, unbiased=49 / 48, key="ssim")


def start_gaussian(config: MeasureConfig) -> SsimState:
    weights = [math.exp(-(x**2) / (2 * 1.5**2)) for x in range(-5, 6)]
    return SsimState(window=tuple(w / sum(weights) for w in weights), unbiased=1.0, key="ssim-gaussian")


def update(state: SsimState, reference_THWC: Tensor, other_THWC: Tensor) -> SsimState:
    size = len(state.window)
    if min(reference_THWC.shape[1:3]) < size:
        h, w = reference_THWC.shape[1:3]
        raise ShapeError(f"SSIM here has a window of {size}x{size}; the frames are only {w}x{h}")
    at_once = 1 if reference_THWC.device.type == "cpu" else FRAMES_AT_ONCE
    pairs = zip(reference_THWC.split(at_once), other_THWC.split(at_once), strict=True)
    values_T = torch.cat([frames_ssim(a, b, state.window, state.unbiased) for a, b in pairs])
    return replace(state, frames=state.frames + len(reference_THWC), total=state.total + float(values_T.sum()))


def finish(state: SsimState) -> dict[str, float]:
    return {state.key: state.total / state.frames}


def frames_ssim(a_THWC: Tensor, b_THWC: Tensor, window: tuple[float, ...], unbiased: float = 1.0) -> Tensor:
    """[T] means over the region where the window fits and over channels.

    In float64: the variance is a small difference of large squares.
    """
    a, b = (x.double().permute(0, 3, 1, 2).contiguous() for x in (a_THWC, b_THWC))
    stack = torch.stack([a, b, a * a, b * b, a * b])
    mean_a, mean_b, aa, bb, ab = _smooth(_smooth(stack, window, 3), window, 4)
    var_a, var_b, cov = ((p - q) * unbiased for p, q in ((aa, mean_a**2), (bb, mean_b**2), (ab, mean_a * mean_b)))
    above = (2 * mean_a * mean_b + C1) * (2 * cov + C2)
    below = (mean_a**2 + mean_b**2 + C1) * (var_a + var_b + C2)
    return (above / below).mean((1, 2, 3))


def _smooth(x_NTCHW: Tensor, window: tuple[float, ...], axis: int) -> Tensor:
    """Weighted sum of shifted views: several times faster than a convolution in float64."""
    size = x_NTCHW.shape[axis] - len(window) + 1
    out = x_NTCHW.narrow(axis, 0, size) * window[0]
    for i, weight in enumerate(window[1:], 1):
        out.add_(x_NTCHW.narrow(axis, i, size), alpha=weight)
    return out


SSIM = Gauge(start=start_uniform, update=update, finish=finish)
SSIM_GAUSSIAN = Gauge(start=start_gaussian, update=update, finish=finish)
