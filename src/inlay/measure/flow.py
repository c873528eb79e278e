# SPDX-License-Identifier: Apache-2.0
"""Optical flow: where each pixel of one frame is found in another, as (dx, dy) in pixels."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from inlay.errors import MissingError, ShapeError, require

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
    try:
        from torchvision.models import optical_flow
    except ImportError as error:
        raise MissingError("flow 'raft' needs torchvision; run: pip install torchvision, or use flow 'dis'") from error
    try:
        net = optical_flow.raft_large(weights=optical_flow.Raft_Large_Weights.C_T_SKHT_V2, progress=False)
    except OSError as error:  # urllib's errors are among these
        raise MissingError(f"torchvision could not fetch the weights of RAFT ({error}); use flow 'dis'") from error
    return net.eval().requires_grad_(False).to(device)


FLOWS: dict[str, Callable[[str], Flow]] = {"dis": dis, "raft": raft}
