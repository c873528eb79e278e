# SPDX-License-Identifier: Apache-2.0
"""Tokens of several videos as one packed batch, with the positions, masks and batches other models need."""

from __future__ import annotations

from inlay.pack.attention import ATTENTIONS, attend, flex_mask, same_clip, sdpa_mask
from inlay.pack.batch import Packed, pack, pack_kept, pack_latents, unpack
from inlay.pack.rope import RopeConfig, grid_positions, rope_angles, rotate, slot_seconds, timed_positions
from inlay.pack.samplers import TAILS, PlannedSampler, ShapeSampler, TokenBudgetSampler

__all__ = [
    "ATTENTIONS",
    "TAILS",
    "Packed",
    "PlannedSampler",
    "RopeConfig",
    "ShapeSampler",
    "TokenBudgetSampler",
    "attend",
    "flex_mask",
    "grid_positions",
    "pack",
    "pack_kept",
    "pack_latents",
    "rope_angles",
    "rotate",
    "same_clip",
    "sdpa_mask",
    "slot_seconds",
    "timed_positions",
    "unpack",
]
