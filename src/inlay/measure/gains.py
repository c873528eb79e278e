# SPDX-License-Identifier: Apache-2.0
"""How far each channel's error reaches the picture: decode latents with a little noise in one channel at a time.

Legend: B batch, C channels, T slots, H W grid.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from inlay.codec import Parts
from inlay.errors import UsageError
from inlay.kernels.switch import at_level

NOISE = 1 / 16  # of a channel's deviation: as large as the rounding of a coarse step, and small enough to be linear
SLOTS, SIDE = 3, 12  # of the window that is decoded
BATCH = 8  # channels at a time
CLIPS = 6  # calibration clips that are decoded
GREY = 127.5  # grey levels in one unit of pixels


@dataclass(frozen=True, kw_only=True, eq=False)
class Gains:
    """What was seen so far: `update` for each clip, `finish`."""

    change_C: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))  # mean squares, summed
    clips: int = 0

    @torch.inference_mode()
    @at_level("0")  # products of 8 and 16 bits round by more than the noise that is looked for
    def update(self, parts: Parts, z_BCTHW: Tensor) -> Gains:
        """Decode the middle of a clip once for each channel."""
        z_CTHW = window(z_BCTHW)
        std_C = torch.tensor(parts.spec.latent_std, device=z_CTHW.device, dtype=z_CTHW.dtype)
        draw = torch.Generator().manual_seed(self.clips)
        noise_THW = torch.empty(z_CTHW.shape[1:]).uniform_(-1, 1, generator=draw).to(z_CTHW)  # as rounding errors are
        noise_THW *= NOISE / noise_THW.square().mean().sqrt()
        plain = parts.decode_latents(z_CTHW[None].to(parts.dtype)).double()
        found = []
        for first in range(0, len(z_CTHW), BATCH):
            chosen = torch.arange(first, min(first + BATCH, len(z_CTHW)), device=z_CTHW.device)
            noisy = z_CTHW.repeat(len(chosen), 1, 1, 1, 1)
            noisy[torch.arange(len(chosen)), chosen] += noise_THW * std_C[chosen, None, None, None]
            change = parts.decode_latents(noisy.to(parts.dtype)).double() - plain
            found.append(change.square().flatten(1).mean(1) / (NOISE * std_C[chosen]).square())
        return replace(self, change_C=self.change_C + torch.cat(found).cpu(), clips=self.clips + 1)

    def finish(self) -> tuple[float, ...]:
        """Grey levels of the picture a unit of latent, for each channel; four digits, more than is known."""
        if not self.clips:
            raise UsageError("gains need at least one clip; give a video that can be read")
        return tuple(float(f"{gain:.4g}") for gain in (GREY * (self.change_C / self.clips).sqrt()).tolist())


def window(z_BCTHW: Tensor) -> Tensor:
    """[C, T, H, W]: the beginning of the first clip in the middle of the picture."""
    _, _, _, H, W = z_BCTHW.shape
    top, left = max(0, (H - SIDE) // 2), max(0, (W - SIDE) // 2)
    return z_BCTHW[0, :, :SLOTS, top : top + SIDE, left : left + SIDE].clone()
