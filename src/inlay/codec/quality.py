# SPDX-License-Identifier: Apache-2.0
"""PSNR as a budget asks for it: the mean over frames. `inlay.measure` reports the same numbers by the same functions.

Legend: T frames, H W height and width, C colours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from inlay.errors import ShapeError
from inlay.video.frames import Video, in_step

CAP_DB = 100.0  # an identical frame has no finite PSNR; without a cap one such frame makes every mean infinite


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


def frame_psnr(mse_T: Tensor) -> Tensor:
    """[T] decibels of mean squared errors on the 0..255 scale."""
    return (20 * math.log10(255) - 10 * mse_T.log10()).clamp(max=CAP_DB)


def mean_psnr(reference: Iterable[Video], other: Iterable[Video]) -> float:
    """Mean over frames of the PSNR of two videos, given in any pieces."""
    each: list[float] = []
    for a, b in in_step(reference, other):
        each += frame_psnr(frame_errors(a.frames, b.frames)[0]).tolist()
    if not each:
        raise ShapeError("there are no frames to compare")
    return math.fsum(each) / len(each)  # exact, so that it does not depend on where the pieces end
