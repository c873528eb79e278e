# SPDX-License-Identifier: Apache-2.0
"""Kept cells in, dense latents out: what the dropped cells were, as well as can be told."""

from inlay.fill.lit import LITS, Lit, LitConfig, load_lit, paper, paper_small, plus, save_lit
from inlay.fill.plain import FILLS, Fill, age, hold, linear, until_kept
from inlay.fill.tiles import tiled

__all__ = [
    "FILLS",
    "LITS",
    "Fill",
    "Lit",
    "LitConfig",
    "age",
    "hold",
    "linear",
    "load_lit",
    "paper",
    "paper_small",
    "plus",
    "save_lit",
    "tiled",
    "until_kept",
]
