# SPDX-License-Identifier: Apache-2.0
"""Choose which cells to keep: those that changed since their reference."""

from inlay.masking.budget import KINDS, Bucket, Budget, Solution, largest_tau, smallest_tau
from inlay.masking.criteria import CRITERIA, latent_cosine, latent_l1, latent_l2, pixel_grid
from inlay.masking.profile import Profile
from inlay.masking.reference import REFERENCES, MaskConfig, MaskState, keep_mask, keep_rate_of, scan
from inlay.masking.select import Selection, Selector, SelectState

__all__ = [
    "CRITERIA",
    "KINDS",
    "REFERENCES",
    "Bucket",
    "Budget",
    "MaskConfig",
    "MaskState",
    "Profile",
    "SelectState",
    "Selection",
    "Selector",
    "Solution",
    "keep_mask",
    "keep_rate_of",
    "largest_tau",
    "latent_cosine",
    "latent_l1",
    "latent_l2",
    "pixel_grid",
    "scan",
    "smallest_tau",
]
