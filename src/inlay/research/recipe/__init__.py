# SPDX-License-Identifier: Apache-2.0
"""Feed the training of our own weights: AV1 without a video library, whole data sets in memory, photographs."""

from inlay.research.recipe.ivf import PlanarVideo, decode_ivf, i420_to_rgb, remux_to_ivf
from inlay.research.recipe.photos import PhotoClips
from inlay.research.recipe.resident import MixedClips, ResidentClips

__all__ = ["MixedClips", "PhotoClips", "PlanarVideo", "ResidentClips", "decode_ivf", "i420_to_rgb", "remux_to_ivf"]
