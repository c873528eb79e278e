# SPDX-License-Identifier: Apache-2.0
"""PSNR by two conventions, the mean absolute error, and structural similarity with two windows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from inlay.codec.quality import frame_errors, frame_psnr
from inlay.errors import ShapeError
from inlay.measure.base import MeasureConfig

EPS = 2.0**-23  # float32 machine epsilon, 1.19e-7, as TokenBench adds it
C1, C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
GAUSSIAN = [math.exp(-(x**2) / (2 * 1.5**2)) for x in range(-5, 6)]
FRAMES_AT_ONCE = 33  # where launches cost more than memory; a CPU is fastest frame by frame


class ErrorGauge:
    def __init__(self, config: MeasureConfig) -> None:
        self.frames = 0
        self.db_sum = self.mse_sum = self.mae_sum = 0.0  # of per-frame PSNR, mean squared and mean absolute errors

    def update(self, reference_THWC: Tensor, other_THWC: Tensor) -> None:
        mse_T, mae_T = frame_errors(reference_THWC, other_THWC)
        self.frames += len(mse_T)
        self.db_sum += float(frame_psnr(mse_T).sum())
        self.mse_sum += float(mse_T.sum())
        self.mae_sum += float(mae_T.sum())

    def finish(self) -> dict[str, float]:
        rmse = math.sqrt(self.mse_sum / self.frames)
        return {
            "psnr": self.db_sum / self.frames,
            "psnr-video": 20 * math.log10(255 / (rmse + EPS)),
            "error-level": self.mae_sum / self.frames,
        }


class SsimGauge:
    """The uniform window, and the sample variance."""

    key = "ssim"
    window: tuple[float, ...] = (1 / 7,) * 7  # weights along one axis, summing to 1; both windows are separable
    unbiased = 49 / 48  # factor on variances: K*K / (K*K - 1) for the sample variance, 1 for the population's

    def __init__(self, config: MeasureConfig) -> None:
        self.frames, self.total = 0, 0.0

    def update(self, reference_THWC: Tensor, other_THWC: Tensor) -> None:
        size = len(self.window)
        if min(reference_THWC.shape[1:3]) < size:
            h, w = reference_THWC.shape[1:3]
            raise ShapeError(f"SSIM here has a window of {size}x{size}; the frames are only {w}x{h}")
        at_once = 1 if reference_THWC.device.type == "cpu" else FRAMES_AT_ONCE
        pairs = zip(reference_THWC.split(at_once), other_THWC.split(at_once), strict=True)
        values_T = torch.cat([frames_ssim(a, b, self.window, self.unbiased) for a, b in pairs])
        self.frames += len(reference_THWC)
        self.total += float(values_T.sum())

    def finish(self) -> dict[str, float]:
        return {self.key: self.total / self.frames}


class GaussianSsimGauge(SsimGauge):
    """The Gaussian window, and the variance of the population."""

    key, unbiased = "ssim-gaussian", 1.0
    window = tuple(w / sum(GAUSSIAN) for w in GAUSSIAN)


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
