# SPDX-License-Identifier: Apache-2.0
"""Estimate the noise of slots, and set thresholds that it does not reach.

Noise changes from slot to slot without going anywhere: over two slots it changes no more than over one, and where cells
are averaged it cancels out. Motion fails one of the two tests, or is stronger than noise, and tells nothing about it.

Legend: B batch, C channels, H W grid.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.masking.criteria import Distance

QUIET = 0.25  # the floor is this quantile of the change over cells: a quarter of the picture must stand still
DRIFT = 1.3  # change over two slots beyond this many times that over one is motion
BLOCK = 4  # cells a side that are averaged: of noise a quarter is left
LEFT = 1.2  # what is left beyond this many times the share that noise would leave is motion
STRONGEST = 2.0  # a floor beyond this many tau is no sensor's noise
HIGH, LOW = 2.75, 2.0  # thresholds in floors: to begin to change, and to go on changing beside or after a change
BLEND = 0.3  # weight of the newest slot in the running floor


@dataclass(frozen=True, kw_only=True, eq=False)
class NoiseState:
    """What the next slot's noise is judged by."""

    last_BCHW: Tensor | None = None
    before_BCHW: Tensor | None = None
    active_BHW: Tensor | None = None  # kept in the slot before
    floor: float = 0.0
    sure: bool = False  # seen over two slots, not one


def observe(state: NoiseState, z_BCHW: Tensor, distance: Distance, tau: float) -> NoiseState:
    """The state with this slot's evidence."""
    last, before = state.last_BCHW, state.before_BCHW
    if last is None:
        return replace(state, last_BCHW=z_BCHW)
    one = _quiet(distance(z_BCHW, last))
    size = min(BLOCK, *z_BCHW.shape[2:])
    left = _quiet(distance(F.avg_pool2d(z_BCHW.float(), size), F.avg_pool2d(last.float(), size)))
    still = one <= STRONGEST * tau and left <= LEFT * one / size
    floor, sure = state.floor, state.sure
    if before is None:
        floor = one if still else 0.0  # a first guess
    elif still and _quiet(distance(z_BCHW, before)) <= DRIFT * one:
        floor, sure = (floor + BLEND * (one - floor) if sure else one), True
    elif not sure:
        floor = 0.0  # the first guess was motion
    return replace(state, last_BCHW=z_BCHW, before_BCHW=last, floor=floor, sure=sure)


def limits(state: NoiseState, score_BHW: Tensor, tau: float) -> Tensor:
    """[B, H, W] thresholds, nowhere below tau: high for quiet cells, lower where something changes already."""
    high, low = max(tau, HIGH * state.floor), max(tau, LOW * state.floor)
    change = score_BHW >= high
    if state.active_BHW is not None:
        change = change | state.active_BHW
    near = F.max_pool2d(change.float()[:, None], 3, stride=1, padding=1)[:, 0] > 0
    return torch.where(near, low, high)


def _quiet(score_BHW: Tensor) -> float:
    return float(score_BHW.flatten().quantile(QUIET))
