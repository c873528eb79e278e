# SPDX-License-Identifier: Apache-2.0
"""Two pieces of video in, PSNR by two conventions and the mean absolute error out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from inlay.measure.base import Gauge, MeasureConfig

CAP_DB = 100.0  # an identical frame has no finite PSNR; without a cap one such frame makes every mean infinite
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
    db_T = (20 * math.log10(255) - 10 * mse_T.log10()).clamp(max=CAP_DB)
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


def frame_errors(reference_THWC: Tensor, other_THWC: Tensor) -> tuple[Tensor, Tensor]:
    """Mean squared and mean absolute error, [T] float64 on the 0..255 scale.

    Frame by frame, so that a long piece needs no large copy; sums of integers, so that they are exact.
    """
    squares, sizes = [], []
    for a_HWC, b_HWC in zip(reference_THWC, other_THWC, strict=True):
        error_HWC = a_HWC.to(torch.int32) - b_HWC.to(torch.int32)
        squares.append(error_HWC.square().sum())
        sizes.append(error_HWC.abs().sum())
    pixels = reference_THWC[0].numel()
    return torch.stack(squares).double() / pixels, torch.stack(sizes).double() / pixels


ERROR = Gauge(start=start, update=update, finish=finish)
