# SPDX-License-Identifier: Apache-2.0
"""The mask kernel as torch code calls it: Triton is imported when it first runs."""

from __future__ import annotations

from torch import Tensor

FUSED_CRITERIA = {"latent-l1": "latent-l1", "latent-l2": "latent-l2", "latent-cosine": "latent-cosine"}
FUSED_CRITERIA["pixel-l1"] = "latent-l1"  # on pooled pixels it is the same distance
FUSED_REFERENCES = {"last-kept": False, "previous": True}


def knows(criterion: str, reference: str) -> bool:
    """Whether the kernel has this criterion and this reference."""
    return criterion in FUSED_CRITERIA and reference in FUSED_REFERENCES


def fused_scan(
    z_BCTHW: Tensor, start_BCHW: Tensor | None, *, criterion: str, reference: str, tau: float
) -> tuple[Tensor, Tensor]:
    """[B, T, H, W] bool and the reference after the last slot, as `masking.scan` gives them."""
    from inlay.kernels.scan_triton import launch

    return launch(
        z_BCTHW, start_BCHW, criterion=FUSED_CRITERIA[criterion], previous=FUSED_REFERENCES[reference], tau=tau
    )
