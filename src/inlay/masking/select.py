# SPDX-License-Identifier: Apache-2.0
"""The latents of a stream in, its keep mask out: Algorithm 1, with a noise floor and a bucket if wanted.

Without either this is `scan`, which stays as its plain twin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from inlay.errors import pick
from inlay.masking.budget import Bucket
from inlay.masking.criteria import CRITERIA
from inlay.masking.noise import NoiseState, limits, observe
from inlay.masking.reference import REFERENCES, MaskConfig


@dataclass(frozen=True, kw_only=True, eq=False)
class SelectState:
    """All that a selector remembers between slots."""

    reference_BCHW: Tensor | None = None
    noise: NoiseState = field(default_factory=NoiseState)
    bucket: Bucket | None = None
    price: float = 1.0  # of a token, in the bucket's unit


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """Which cells of a chunk are kept, how far each was from its reference, and the state after it."""

    keep_BTHW: Tensor
    score_BTHW: Tensor
    state: SelectState


class Selector:
    """Decides slot by slot, from the past alone."""

    def __init__(self, config: MaskConfig, *, noise: bool = False) -> None:
        self.config, self.noise = config, noise
        self.step = pick("reference", config.reference, REFERENCES)
        self.distance = pick("criterion", config.criterion, CRITERIA)

    def select(self, z_BCTHW: Tensor, state: SelectState, *, key: bool, incomes: Sequence[float] = ()) -> Selection:
        """A key chunk starts from nothing but the bucket; `incomes` is what each slot earns."""
        if key:
            state = replace(state, reference_BCHW=None, noise=NoiseState())
        keep: list[Tensor] = []
        score: list[Tensor] = []
        for t, z_BCHW in enumerate(z_BCTHW.unbind(2)):
            income = incomes[t] if state.bucket is not None else 0.0
            kept, scored, state = self.slot(z_BCHW, state, income)
            keep.append(kept)
            score.append(scored)
        return Selection(keep_BTHW=torch.stack(keep, 1), score_BTHW=torch.stack(score, 1), state=state)

    def slot(self, z_BCHW: Tensor, state: SelectState, income: float) -> tuple[Tensor, Tensor, SelectState]:
        """One slot: (keep, score, state after)."""
        noise = observe(state.noise, z_BCHW, self.distance, self.config.tau) if self.noise else state.noise
        bucket, price = state.bucket, state.price
        if state.reference_BCHW is None:
            keep = torch.ones_like(z_BCHW[:, 0], dtype=torch.bool)
            score, reference = torch.full_like(z_BCHW[:, 0], torch.inf, dtype=torch.float32), z_BCHW
        else:
            score = self.distance(z_BCHW, state.reference_BCHW)
            tau = self.config.tau if bucket is None else bucket.tau(self.config.tau)
            limit: Tensor | float = limits(noise, score, tau) if self.noise else tau
            if bucket is not None:
                limit = capped(score, limit, bucket.room(income, price))
            reference, keep = self.step(state.reference_BCHW, z_BCHW, self.distance, limit)  # type: ignore[arg-type]
        if bucket is not None:
            bucket = bucket.after(income, price * int(keep.sum()))
        after = replace(state, reference_BCHW=reference, noise=replace(noise, active_BHW=keep), bucket=bucket)
        return keep, score, after


def capped(score_BHW: Tensor, limit: Tensor | float, most: int) -> Tensor:
    """The limit, raised beyond reach for all but the `most` cells that changed most."""
    limits_BHW = torch.as_tensor(limit, device=score_BHW.device, dtype=score_BHW.dtype).expand_as(score_BHW)
    wanted = score_BHW >= limits_BHW
    if int(wanted.sum()) <= most:
        return limits_BHW
    order = torch.where(wanted, score_BHW, -1.0).flatten().argsort(descending=True, stable=True)
    chosen = torch.zeros(score_BHW.numel(), dtype=torch.bool, device=score_BHW.device)
    chosen[order[:most]] = True
    return torch.where(chosen.view_as(score_BHW), limits_BHW, torch.inf)
