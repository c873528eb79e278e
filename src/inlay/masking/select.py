# SPDX-License-Identifier: Apache-2.0
"""Choose the cells of a stream chunk by chunk: the scan, with a noise floor and a bucket if wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from inlay.masking.budget import Bucket, Income
from inlay.masking.noise import NoiseState, limits, observe
from inlay.masking.scan import Limit, MaskConfig, Slot, first_slot, next_slot, scan, stack_slots

NOTHING = Income(0.0, 0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectState:
    """All that a selector remembers between slots."""

    reference_BCHW: Tensor | None = None
    noise: NoiseState = field(default_factory=NoiseState)
    bucket: Bucket | None = None
    price: float = 1.0  # of a token, in the bucket's unit


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """Which cells of a chunk are kept, how far each was from its reference where that was asked for, and the state."""

    keep_BTHW: Tensor
    score_BTHW: Tensor | None
    state: SelectState


class Selector:
    """Decides slot by slot, from the past alone."""

    def __init__(self, config: MaskConfig, *, noise: bool = False) -> None:
        self.config, self.noise = config, noise

    def select(
        self,
        z_BCTHW: Tensor,
        state: SelectState,
        *,
        key: bool,
        incomes: Sequence[Income] = (),
        scored: bool = False,
    ) -> Selection:
        """A key chunk starts from nothing but the bucket.

        Args:
            incomes: of each slot, where a bucket steers.
            scored: also give the scores, which the mask kernel does not.
        """
        if key:
            state = replace(state, reference_BCHW=None, noise=NoiseState())
        if not (self.noise or scored or state.bucket is not None):
            keep_BTHW, reference_BCHW = scan(z_BCTHW, self.config, state.reference_BCHW)
            return Selection(keep_BTHW=keep_BTHW, score_BTHW=None, state=replace(state, reference_BCHW=reference_BCHW))
        slots: list[Slot] = []
        for t, z_BCHW in enumerate(z_BCTHW.unbind(2)):
            slot, state = self.slot(z_BCHW, state, incomes[t] if state.bucket is not None else NOTHING)
            slots.append(slot)
        found = stack_slots(slots)
        return Selection(keep_BTHW=found.keep_BTHW, score_BTHW=found.score_BTHW, state=state)

    def slot(self, z_BCHW: Tensor, state: SelectState, income: Income) -> tuple[Slot, SelectState]:
        """One slot, and the state after it."""
        distance, reference_BCHW = self.config.distance, state.reference_BCHW
        noise = observe(state.noise, z_BCHW, distance, self.config.tau) if self.noise else state.noise
        if reference_BCHW is None:
            slot = first_slot(z_BCHW, self.config, self.config.tau)
        else:
            score_BHW = distance(z_BCHW, reference_BCHW)
            limit = self._limit(score_BHW, noise, state, income.credit)
            slot = next_slot(z_BCHW, reference_BCHW, score_BHW, limit, self.config.reference)
        bucket = state.bucket
        if bucket is not None:
            bucket = bucket.after(income, state.price * int(slot.keep_BHW.sum()))
        noise = replace(noise, active_BHW=slot.keep_BHW)
        return slot, replace(state, reference_BCHW=slot.reference_BCHW, noise=noise, bucket=bucket)

    def _limit(self, score_BHW: Tensor, noise: NoiseState, state: SelectState, income: float) -> Limit:
        bucket = state.bucket
        tau = self.config.tau if bucket is None else bucket.tau(self.config.tau)
        limit: Limit = limits(noise, score_BHW, tau) if self.noise else tau
        return limit if bucket is None else capped(score_BHW, limit, bucket.room(income, state.price))


def capped(score_BHW: Tensor, limit: Limit, most: int) -> Tensor:
    """The limit, raised beyond reach for all but the `most` cells that changed most."""
    limits_BHW = torch.as_tensor(limit, device=score_BHW.device, dtype=score_BHW.dtype).expand_as(score_BHW)
    wanted = score_BHW >= limits_BHW
    if int(wanted.sum()) <= most:
        return limits_BHW
    order = torch.where(wanted, score_BHW, -1.0).flatten().argsort(descending=True, stable=True)
    chosen = torch.zeros(score_BHW.numel(), dtype=torch.bool, device=score_BHW.device)
    chosen[order[:most]] = True
    return torch.where(chosen.view_as(score_BHW), limits_BHW, torch.inf)
