# SPDX-License-Identifier: Apache-2.0
"""Fill in the dropped cells: hold, linear, and LIT, the inpainting transformer."""

from inlay.fill.filler import LIT_FILES, Filler
from inlay.fill.lit import LIT_KINDS, Lit, LitConfig, load_lit, paper, paper_small, plus, save_lit
from inlay.fill.plain import FILLS, Fill, age, hold, linear, until_kept

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
    "until_kept",
]
