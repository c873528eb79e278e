# SPDX-License-Identifier: Apache-2.0
"""Give dropped cells back: hold, linear, LIT."""

from inlay.fill.filler import LIT_FILES, Filler
from inlay.fill.lit import LIT_KINDS, Lit, LitConfig, load_lit, paper, paper_small, plus, save_lit
from inlay.fill.plain import FILLS, Fill, age, hold, linear, until_kept
from inlay.fill.tiles import tiled

__all__ = [
    "FILLS",
    "LIT_FILES",
    "LIT_KINDS",
    "Fill",
    "Filler",
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
