# SPDX-License-Identifier: Apache-2.0
"""Choose which cells to keep: those that changed since their reference."""

from inlay.masking.budget import KINDS, Bucket, Budget, Income
from inlay.masking.criteria import CRITERIA, latent_cosine, latent_l1, latent_l2, pixel_grid
from inlay.masking.dial import Dial, best_pairs
from inlay.masking.look import FIRST_LOOK, KEY_WEIGHT, SECOND_LOOK, fill_error, look_again
from inlay.masking.profile import Profile
from inlay.masking.scan import REFERENCES, MaskConfig, Scan, compared, keep_mask, keep_rate_of, scan, scored_scan
from inlay.masking.search import Solution, largest_tau, nearest_tau, smallest_tau
from inlay.masking.select import Selection, Selector, SelectState
from inlay.masking.steps import CACHE, LADDER, OWN, step_size

__all__ = [
    "CACHE",
    "CRITERIA",
    "FIRST_LOOK",
    "KEY_WEIGHT",
    "KINDS",
    "LADDER",
    "OWN",
    "REFERENCES",
    "SECOND_LOOK",
    "Bucket",
    "Budget",
    "Dial",
    "Income",
    "MaskConfig",
    "Profile",
    "Scan",
    "SelectState",
    "Selection",
    "Selector",
    "Solution",
    "best_pairs",
    "compared",
    "fill_error",
    "keep_mask",
    "keep_rate_of",
    "largest_tau",
    "latent_cosine",
    "latent_l1",
    "latent_l2",
    "look_again",
    "nearest_tau",
    "pixel_grid",
    "scan",
    "scored_scan",
    "smallest_tau",
    "step_size",
]
