# SPDX-License-Identifier: Apache-2.0
"""Flicker: how much the error changes from frame to frame, once motion is followed.

With e the error of a frame, flicker is the mean of |e(t+1) - W e(t)|, on the 0..255 scale, where W carries the error
field along the optical flow of the reference. Pixels whose flow forth and back do not meet are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from inlay.errors import MissingError, ShapeError, pick, require
from inlay.measure.base import MeasureConfig, recall

Flow = Callable[[Tensor, Tensor], Tensor]  # (a_HWC, b_HWC) uint8 -> [2, H, W] float32


def dis(device: str) -> Flow:
    """Dense inverse search by OpenCV (medium preset), on the CPU whatever the device."""
    cv2: Any = require("cv2", extra="measure")
    finder = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)

    def flow(a_HWC: Tensor, b_HWC: Tensor) -> Tensor:
        h, w, _ = a_HWC.shape
        if min(h, w) < 16:
            raise ShapeError(f"optical flow needs frames of 16x16 at least; these are {w}x{h}")
        grey = [cv2.cvtColor(x.cpu().contiguous().numpy(), cv2.COLOR_RGB2GRAY) for x in (a_HWC, b_HWC)]
        found_HW2 = finder.calc(grey[0], grey[1], None)
        return torch.from_numpy(found_HW2).permute(2, 0, 1).to(a_HWC.device)

    return flow


def raft(device: str) -> Flow:
    """RAFT (large) by torchvision, with the weights that torchvision fetches and keeps."""
    net = _raft_net(device)

    def flow(a_HWC: Tensor, b_HWC: Tensor) -> Tensor:
        h, w, _ = a_HWC.shape
        pad = [0, max(128, -(-w // 8) * 8) - w, 0, max(128, -(-h // 8) * 8) - h]
        a, b = (
            F.pad(x.to(device).permute(2, 0, 1)[None].float().div(127.5).sub(1), pad, mode="replicate")
            for x in (a_HWC, b_HWC)
        )
        with torch.no_grad():
            return net(a, b)[-1][0, :, :h, :w].to(a_HWC.device)

    return flow


@lru_cache(maxsize=1)
def _raft_net(device: str) -> Any:
    optical_flow = require("torchvision.models.optical_flow")
    try:
        net = optical_flow.raft_large(weights=optical_flow.Raft_Large_Weights.C_T_SKHT_V2, progress=False)
    except OSError as error:  # urllib's errors are among these
        raise MissingError(f"torchvision could not fetch the weights of RAFT ({error}); use flow 'dis'") from error
    return net.eval().requires_grad_(False).to(device)


FLOWS: dict[str, Callable[[str], Flow]] = {"dis": dis, "raft": raft}


class FlickerGauge:
    def __init__(self, config: MeasureConfig) -> None:
        self.flow = pick("flow", config.flow, FLOWS)(config.device)
        self.kind, self.static_pixels = config.flow, config.static_pixels
        self.last: tuple[Tensor, Tensor] | None = None  # the frame before, of both, so that pieces join without a seam
        self.sums, self.counts = {"static": 0.0, "moving": 0.0}, {"static": 0, "moving": 0}

    def update(self, reference_THWC: Tensor, other_THWC: Tensor) -> None:
        frames = list(zip(reference_THWC, other_THWC, strict=True))
        if self.last is not None:
            self._step(self.last, frames[0], self._motion(self.last[0], reference_THWC[0]))
        flows = recall(
            reference_THWC, ("flow", self.kind), lambda: [self._motion(*pair) for pair in pairwise(reference_THWC)]
        )
        for (before, now), flow in zip(pairwise(frames), flows, strict=True):
            self._step(before, now, flow)
        self.last = frames[-1]

    def _motion(self, before_HWC: Tensor, now_HWC: Tensor) -> tuple[Tensor, Tensor]:
        """The flow back to the frame before, and where it can be trusted; both are the reference's alone."""
        back_2HW = self.flow(now_HWC, before_HWC)
        return back_2HW, consistent(back_2HW, self.flow(before_HWC, now_HWC))

    def _step(self, before: tuple[Tensor, Tensor], now: tuple[Tensor, Tensor], motion: tuple[Tensor, Tensor]) -> None:
        back_2HW, valid_HW = motion
        change_CHW = _error(*now) - warp(_error(*before), back_2HW)
        change_HW = change_CHW.abs().mean(0).double()
        still_HW = back_2HW.square().sum(0).sqrt() < self.static_pixels
        for region, here_HW in (("static", valid_HW & still_HW), ("moving", valid_HW & ~still_HW)):
            self.sums[region] += float(change_HW[here_HW].sum())
            self.counts[region] += int(here_HW.sum())

    def finish(self) -> dict[str, float]:
        """A region without a valid pixel, as the moving part of a still, has no value: NaN."""
        found = {f"flicker-{region}": _ratio(self.sums[region], self.counts[region]) for region in self.sums}
        return {"flicker": _ratio(sum(self.sums.values()), sum(self.counts.values())), **found}


def warp(x_CHW: Tensor, flow_2HW: Tensor) -> Tensor:
    """Each pixel fetched from where its flow points, bilinear; beyond the border the nearest pixel."""
    h, w = x_CHW.shape[1:]
    place_2HW = flow_2HW + _grid(h, w, flow_2HW.device)
    size = torch.tensor([w, h], device=flow_2HW.device).view(2, 1, 1)
    unit_HW2 = ((place_2HW * 2 + 1) / size - 1).permute(1, 2, 0)
    return F.grid_sample(x_CHW[None], unit_HW2[None], padding_mode="border", align_corners=False)[0]


def consistent(back_2HW: Tensor, forth_2HW: Tensor) -> Tensor:
    """[H, W] bool: back and forth again ends within sqrt(0.01 (|back|^2 + |forth|^2) + 0.5) px, inside the frame."""
    h, w = back_2HW.shape[1:]
    x, y = back_2HW + _grid(h, w, back_2HW.device)
    inside = (x >= 0) & (x <= w - 1) & (y >= 0) & (y <= h - 1)
    there_2HW = warp(forth_2HW, back_2HW)
    gap, length = (back_2HW + there_2HW).square().sum(0), (back_2HW.square() + there_2HW.square()).sum(0)
    return inside & (gap <= 0.01 * length + 0.5)


def _grid(h: int, w: int, device: torch.device) -> Tensor:
    y_HW, x_HW = torch.meshgrid(torch.arange(h, device=device), torch.arange(w, device=device), indexing="ij")
    return torch.stack([x_HW, y_HW]).float()


def _error(reference_HWC: Tensor, other_HWC: Tensor) -> Tensor:
    return (other_HWC.float() - reference_HWC.float()).permute(2, 0, 1)


def _ratio(total: float, count: int) -> float:
    return total / count if count else math.nan
