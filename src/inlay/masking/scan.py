# SPDX-License-Identifier: Apache-2.0
"""The scan over time: Algorithm 1 of the paper as a step with explicit state, and the loop derived from it.

The encoder, training (a tau for each clip), calibration (a tau for each copy of a clip) and the studies use this step.
Legend: B batch, C channels, T slots, H W grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from inlay.errors import ConfigError, ShapeError, pick
from inlay.kernels import may_run
from inlay.kernels.scan import fused_scan, knows
from inlay.masking.criteria import CRITERIA, Distance, pixel_grid
from inlay.masking.thin import thinned
from inlay.types import KEY_SLOTS, describe

MaskState = Tensor  # [B, C, H, W] what the next slot is compared with
Limit = float | Tensor  # one threshold, or [B] or [B, H, W] of them


@dataclass(frozen=True, kw_only=True)
class MaskConfig:
    """Which cells to keep."""

    tau: float = field(default=0.3, metadata={"help": "threshold: keep a cell whose change is at least this"})
    criterion: str = field(default="latent-l1", metadata={"help": "how change is measured", "choices": CRITERIA})
    reference: str = field(default="last-kept", metadata={"help": "what a cell is compared with"})
    key_slots: str = field(
        default="whole", metadata={"help": "cells of slots with nothing before", "choices": KEY_SLOTS}
    )

    def __post_init__(self) -> None:
        if not 0 <= self.tau < float("inf"):
            raise ConfigError(f"tau is a distance: zero or more, and finite; got {self.tau}")
        pick("criterion", self.criterion, CRITERIA)
        pick("reference", self.reference, REFERENCES)
        pick("key slots", self.key_slots, dict.fromkeys(KEY_SLOTS))

    @property
    def distance(self) -> Distance:
        return CRITERIA[self.criterion]


@dataclass(frozen=True, kw_only=True, eq=False)
class Slot:
    """What the scan decided of one slot, and what the next one is compared with."""

    keep_BHW: Tensor
    score_BHW: Tensor  # distance from the reference; infinite where there was none
    reference_BCHW: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Scan:
    """The slots of a clip together."""

    keep_BTHW: Tensor
    score_BTHW: Tensor
    reference_BCHW: Tensor  # after the last slot


def last_kept(reference_BCHW: Tensor, z_BCHW: Tensor, keep_BHW: Tensor) -> Tensor:
    """What is kept becomes the reference: a cell is compared with the latent kept last at its place."""
    return torch.where(keep_BHW[:, None], z_BCHW, reference_BCHW)


def previous(reference_BCHW: Tensor, z_BCHW: Tensor, keep_BHW: Tensor) -> Tensor:
    """The slot before is the reference, kept or not: slow drift goes unseen."""
    return z_BCHW


Advance = Callable[[Tensor, Tensor, Tensor], Tensor]
REFERENCES: dict[str, Advance] = {"last-kept": last_kept, "previous": previous}


def first_slot(z_BCHW: Tensor, config: MaskConfig, limit: Limit) -> Slot:
    """A slot with nothing before it: kept whole, or thinned out."""
    if config.key_slots == "thin":
        keep_BHW, score_BHW, known_BCHW = thinned(z_BCHW, config.distance, spread(limit))
        after_BCHW = REFERENCES[config.reference](known_BCHW, z_BCHW, keep_BHW)
        return Slot(keep_BHW=keep_BHW, score_BHW=score_BHW, reference_BCHW=after_BCHW)
    keep_BHW = torch.ones_like(z_BCHW[:, 0], dtype=torch.bool)
    score_BHW = torch.full_like(z_BCHW[:, 0], torch.inf, dtype=torch.float32)
    return Slot(keep_BHW=keep_BHW, score_BHW=score_BHW, reference_BCHW=z_BCHW)


def next_slot(z_BCHW: Tensor, reference_BCHW: Tensor, score_BHW: Tensor, limit: Limit, reference: str) -> Slot:
    """A slot whose distance from its reference is known."""
    keep_BHW = score_BHW >= spread(limit)
    after_BCHW = REFERENCES[reference](reference_BCHW, z_BCHW, keep_BHW)
    return Slot(keep_BHW=keep_BHW, score_BHW=score_BHW, reference_BCHW=after_BCHW)


def spread(limit: Limit) -> Limit:
    """A threshold for each clip, as one for each of its cells."""
    return limit.view(-1, 1, 1) if isinstance(limit, Tensor) and limit.ndim == 1 else limit


def scored_scan(
    z_BCTHW: Tensor, config: MaskConfig, state: MaskState | None = None, *, tau: Limit | None = None
) -> Scan:
    """The scan slot by slot, with its scores: what every quicker form must equal.

    Args:
        state: the reference after the chunk before; without one, slot 0 is a key slot.
        tau: a threshold for each clip of the batch, in place of the config's one for all.
    """
    limit = config.tau if tau is None else tau
    slots: list[Slot] = []
    for z_BCHW in z_BCTHW.unbind(2):
        if state is None:
            slots.append(first_slot(z_BCHW, config, limit))
        else:
            slots.append(next_slot(z_BCHW, state, config.distance(z_BCHW, state), limit, config.reference))
        state = slots[-1].reference_BCHW
    return stack_slots(slots)


def stack_slots(slots: list[Slot]) -> Scan:
    """Slots in order as one scan."""
    return Scan(
        keep_BTHW=torch.stack([slot.keep_BHW for slot in slots], dim=1),
        score_BTHW=torch.stack([slot.score_BHW for slot in slots], dim=1),
        reference_BCHW=slots[-1].reference_BCHW,
    )


def plain_scan(z_BCTHW: Tensor, config: MaskConfig, state: MaskState | None = None) -> tuple[Tensor, MaskState]:
    """`scan` without its kernel."""
    found = scored_scan(z_BCTHW, config, state)
    return found.keep_BTHW, found.reference_BCHW


def scan(z_BCTHW: Tensor, config: MaskConfig, state: MaskState | None = None) -> tuple[Tensor, MaskState]:
    """[B, T, H, W] bool and the state after the last slot; without a state, slot 0 is a key slot."""
    if not (may_run("scan", tensors=(z_BCTHW,)) and knows(config.criterion, config.reference)):
        return plain_scan(z_BCTHW, config, state)
    settings = {"criterion": config.criterion, "reference": config.reference}
    if state is not None or config.key_slots == "whole":
        return fused_scan(z_BCTHW, state, **settings, tau=config.tau)
    first = first_slot(z_BCTHW[:, :, 0], config, config.tau)
    rest = z_BCTHW[:, :, 1:]
    if not rest.shape[2]:
        return first.keep_BHW[:, None], first.reference_BCHW
    keep_BTHW, after_BCHW = fused_scan(rest, first.reference_BCHW, **settings, tau=config.tau)
    return torch.cat([first.keep_BHW[:, None], keep_BTHW], dim=1), after_BCHW


def compared(z_BCTHW: Tensor, config: MaskConfig, pixels_BCTHW: Tensor | None) -> Tensor:
    """What the criterion compares: the latents, or for pixel-l1 the pixels pooled onto their grid."""
    if z_BCTHW.ndim != 5:
        raise ShapeError(f"latents are [B, C, T, H, W]; got {describe(z_BCTHW)}")
    if config.criterion != "pixel-l1":
        return z_BCTHW
    if pixels_BCTHW is None:
        raise ConfigError("the criterion pixel-l1 compares pixels, and none were given; pass the clip's pixels")
    t, h, w = z_BCTHW.shape[2:]
    return pixel_grid(pixels_BCTHW, (t, h, w))


def keep_mask(z_BCTHW: Tensor, config: MaskConfig, pixels_BCTHW: Tensor | None = None) -> Tensor:
    """[B, T, H, W] bool, the cells of whole clips to keep; only the criterion pixel-l1 needs `pixels`."""
    return scan(compared(z_BCTHW, config, pixels_BCTHW), config)[0]


def keep_rate_of(keep_BTHW: Tensor) -> float:
    """Kept cells over all cells of a mask."""
    return keep_BTHW.sum().item() / keep_BTHW.numel()
