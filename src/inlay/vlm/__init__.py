# SPDX-License-Identifier: Apache-2.0
"""The last-kept rule on the visual tokens of a video language model, with an exact count."""

from inlay.vlm.contract import compute_retained_tokens_count, compute_retention_mask
from inlay.vlm.last_kept import CRITERIA, last_kept_mask

__all__ = ["CRITERIA", "compute_retained_tokens_count", "compute_retention_mask", "last_kept_mask"]
