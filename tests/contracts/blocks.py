# SPDX-License-Identifier: Apache-2.0
"""A backbone of no weights that gives back what it was given, only coarser: for tests that ask how good a video is."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.backbones import BackboneSpec

TIME, SPACE, PARTS = 4, 8, 2  # frames a slot, pixels a cell's side, means a cell's side
CHANNELS = 3 * PARTS**2


class Blocks:
    """The mean colours of the quarters of each cell; slot 0 is the first frame's."""

    def __init__(self) -> None:
        self.spec = BackboneSpec(
            name="tests.contracts.blocks:Blocks",
            channels=CHANNELS,
            time_stride=TIME,
            space_stride=SPACE,
            causal=True,
            stateful=False,
            latent_mean=(0.0,) * CHANNELS,
            latent_std=(1.0,) * CHANNELS,
            weight_hash="0" * 16,
            parameters=0,
            licence="Apache-2.0",
        )

    def encode(self, x_BCTHW: Tensor) -> Tensor:
        side = SPACE // PARTS
        first = F.avg_pool3d(x_BCTHW[:, :, :1], (1, side, side))
        rest = F.avg_pool3d(x_BCTHW[:, :, 1:], (TIME, side, side)) if x_BCTHW.shape[2] > 1 else first[:, :, :0]
        parts = [F.pixel_unshuffle(slot, PARTS) for slot in (*first.unbind(2), *rest.unbind(2))]
        return torch.stack(parts, dim=2)

    def decode(self, z_BCTHW: Tensor) -> Tensor:
        slots = [F.pixel_shuffle(slot, PARTS) for slot in z_BCTHW.unbind(2)]
        wide = [F.interpolate(slot, scale_factor=SPACE // PARTS, mode="nearest") for slot in slots]
        return torch.stack([wide[0], *(frame for slot in wide[1:] for frame in [slot] * TIME)], dim=2)

    def to(self, *args: Any, **kwargs: Any) -> Blocks:
        return self
