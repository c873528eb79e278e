# SPDX-License-Identifier: Apache-2.0
"""PSNR by two conventions, and the mean absolute error."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from inlay.codec.quality import frame_errors, frame_psnr
from inlay.measure.base import Gauge, MeasureConfig

EPS = 2.0**-23  # float32 machine epsilon, 1.19e-7, as TokenBench adds it


@dataclass(frozen=True, kw_only=True)
class ErrorState:
    frames: int = 0
    db_sum: float = 0.0  # of per-frame PSNR
    mse_sum: float = 0.0  # of per-frame mean squared errors
    mae_sum: float = 0.0  # of per-frame mean absolute errors


def start(config: MeasureConfig) -> ErrorState:
    return ErrorState()


def update(state: ErrorState, reference_THWC: Tensor, other_THWC: Tensor) -> ErrorState:
    mse_T, mae_T = frame_errors(reference_THWC, other_THWC)
    db_T = frame_psnr(mse_T)
    return replace(
        state,
        frames=state.frames + len(mse_T),
        db_sum=state.db_sum + float(db_T.sum()),
        mse_sum=state.mse_sum + float(mse_T.sum()),
        mae_sum=state.mae_sum + float(mae_T.sum()),
    )


def finish(state: ErrorState) -> dict[str, float]:
    rmse = math.sqrt(state.mse_sum / state.frames)
    return {
        "psnr": state.db_sum / state.frames,
        "psnr-video": 20 * math.log10(255 / (rmse + EPS)),
        "error-level": state.mae_sum / state.frames,
    }


ERROR = Gauge(start=start, update=update, finish=finish)
