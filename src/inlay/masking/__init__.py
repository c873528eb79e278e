# SPDX-License-Identifier: Apache-2.0
"""Latents in, KeepMask out: marks the cells that changed since their reference."""

from inlay.masking.criteria import CRITERIA, latent_cosine, latent_l1, latent_l2, pixel_grid
from inlay.masking.profile import Profile
from inlay.masking.reference import REFERENCES, MaskConfig, MaskState, keep_mask, scan

__all__ = [
    "CRITERIA",
    "REFERENCES",
    "MaskConfig",
    "MaskState",
    "Profile",
    "keep_mask",
    "latent_cosine",
    "latent_l1",
    "latent_l2",
    "pixel_grid",
    "scan",
]
