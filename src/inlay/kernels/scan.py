# SPDX-License-Identifier: Apache-2.0
"""The door to the mask kernel: says whether it can take these latents, and runs it."""

from __future__ import annotations

import torch
from torch import Tensor

from inlay.kernels.switch import has_triton, is_on

CRITERIA = {"latent-l1": "latent-l1", "latent-l2": "latent-l2", "latent-cosine": "latent-cosine"}
CRITERIA["pixel-l1"] = "latent-l1"  # on pooled pixels it is the same distance
REFERENCES = {"last-kept": False, "previous": True}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def is_safe(z_BCTHW: Tensor, criterion: str, reference: str) -> bool:
    """On CUDA, outside a graph that is being made, and of a kind the kernel knows."""
    return (
        z_BCTHW.is_cuda
        and z_BCTHW.dtype in DTYPES
        and criterion in CRITERIA
        and reference in REFERENCES
        and not z_BCTHW.requires_grad
        and not torch.compiler.is_compiling()
        and is_on()
        and has_triton()
    )


def fused_scan(
    z_BCTHW: Tensor, start_BCHW: Tensor | None, *, criterion: str, reference: str, tau: float
) -> tuple[Tensor, Tensor]:
    """[B, T, H, W] bool and the reference after the last slot, as `masking.scan` gives them."""
    from inlay.kernels.scan_triton import launch

    return launch(z_BCTHW, start_BCHW, criterion=CRITERIA[criterion], previous=REFERENCES[reference], tau=tau)
