# SPDX-License-Identifier: Apache-2.0
"""The scan over time: Algorithm 1 of the paper as a step with explicit state, and the loop derived from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from inlay.errors import ConfigError, ShapeError, pick
from inlay.kernels import may_run
from inlay.kernels.scan import fused_scan, knows
from inlay.masking.criteria import CRITERIA, Distance, pixel_grid
from inlay.types import describe

MaskState = Tensor  # [B, C, H, W] what the next slot is compared with


@dataclass(frozen=True, kw_only=True)
class MaskConfig:
    """Which cells to keep."""

    tau: float = field(default=0.3, metadata={"help": "threshold: keep a cell whose change is at least this"})
    criterion: str = field(default="latent-l1", metadata={"help": "how change is measured", "choices": CRITERIA})
    reference: str = field(default="last-kept", metadata={"help": "what a cell is compared with"})

    def __post_init__(self) -> None:
        if not 0 <= self.tau < float("inf"):
            raise ConfigError(f"tau is a distance: zero or more, and finite; got {self.tau}")
        pick("criterion", self.criterion, CRITERIA)
        pick("reference", self.reference, REFERENCES)


def last_kept(ref_BCHW: Tensor, z_BCHW: Tensor, distance: Distance, tau: float) -> tuple[Tensor, Tensor]:
    """Keep what moved away from the latent kept last at its place; what is kept becomes the reference."""
    keep_BHW = distance(z_BCHW, ref_BCHW) >= tau
    return torch.where(keep_BHW[:, None], z_BCHW, ref_BCHW), keep_BHW


def previous(ref_BCHW: Tensor, z_BCHW: Tensor, distance: Distance, tau: float) -> tuple[Tensor, Tensor]:
    """Keep what moved since the slot before, kept or not: slow drift goes unseen."""
    return z_BCHW, distance(z_BCHW, ref_BCHW) >= tau


Step = Callable[[Tensor, Tensor, Distance, float], tuple[Tensor, Tensor]]
REFERENCES: dict[str, Step] = {"last-kept": last_kept, "previous": previous}


def scan(z_BCTHW: Tensor, config: MaskConfig, state: MaskState | None = None) -> tuple[Tensor, MaskState]:
    """[B, T, H, W] bool and the state after the last slot; without a state, slot 0 is kept whole."""
    if may_run("scan", tensors=(z_BCTHW,)) and knows(config.criterion, config.reference):
        return fused_scan(z_BCTHW, state, criterion=config.criterion, reference=config.reference, tau=config.tau)
    return plain_scan(z_BCTHW, config, state)


def plain_scan(z_BCTHW: Tensor, config: MaskConfig, state: MaskState | None = None) -> tuple[Tensor, MaskState]:
    """The scan slot by slot: what every quicker form must equal."""
    step = pick("reference", config.reference, REFERENCES)
    distance = pick("criterion", config.criterion, CRITERIA)
    keep: list[Tensor] = []
    for z_BCHW in z_BCTHW.unbind(2):
        if state is None:
            state, kept = z_BCHW, torch.ones_like(z_BCHW[:, 0], dtype=torch.bool)
        else:
            state, kept = step(state, z_BCHW, distance, config.tau)
        keep.append(kept)
    assert state is not None, "latents have at least one slot"
    return torch.stack(keep, dim=1), state


def keep_rate_of(keep_BTHW: Tensor) -> float:
    """Kept cells over all cells of a mask."""
    return keep_BTHW.sum().item() / keep_BTHW.numel()


def keep_mask(z_BCTHW: Tensor, config: MaskConfig, pixels_BCTHW: Tensor | None = None) -> Tensor:
    """[B, T, H, W] bool, the cells of whole clips to keep; `pixels` are needed by the criterion pixel-l1 only."""
    if z_BCTHW.ndim != 5:
        raise ShapeError(f"latents are [B, C, T, H, W]; got {describe(z_BCTHW)}")
    if config.criterion == "pixel-l1":
        if pixels_BCTHW is None:
            raise ConfigError("the criterion pixel-l1 compares pixels, and none were given; pass the clip's pixels")
        t, h, w = z_BCTHW.shape[2:]
        return scan(pixel_grid(pixels_BCTHW, (t, h, w)), config)[0]
    return scan(z_BCTHW, config)[0]
