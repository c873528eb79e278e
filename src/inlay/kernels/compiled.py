# SPDX-License-Identifier: Apache-2.0
"""Compile a network's halves in place, where INLAY_FAST=compile asks for it and a GPU repays it."""

from __future__ import annotations

import torch

from inlay.kernels.rule import PATHS, why_not

HALVES = ("encoder", "decoder")


def compile_halves(network: object, device: torch.device) -> bool:
    """Whether anything was compiled; the first call of each shape is slow, and shapes are not mixed."""
    parts = [part for name in HALVES if isinstance(part := getattr(network, name, None), torch.nn.Module)]
    if device.type != PATHS["compiled"].device or why_not("compiled"):
        return False
    for part in parts:
        part.compile(dynamic=False)
    return bool(parts)
