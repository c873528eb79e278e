# SPDX-License-Identifier: Apache-2.0
"""PSNR by two conventions, and the mean absolute error."""

from __future__ import annotations

import math

from torch import Tensor

from inlay.codec.quality import frame_errors, frame_psnr
from inlay.measure.base import MeasureConfig

EPS = 2.0**-23  # float32 machine epsilon, 1.19e-7, as TokenBench adds it


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
