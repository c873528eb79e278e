# SPDX-License-Identifier: Apache-2.0
"""A network in, its halves compiled in place out, where INLAY_FAST=compile asks for it and a GPU repays it."""

from __future__ import annotations

from typing import Any

import torch

from inlay.kernels.switch import compiles

HALVES = ("encoder", "decoder")


def compile_halves(network: Any, device: torch.device) -> bool:
    """Whether anything was compiled; the first call of each shape is slow, and shapes are not mixed."""
    parts = [part for name in HALVES if isinstance(part := getattr(network, name, None), torch.nn.Module)]
    if device.type != "cuda" or not compiles():
        return False
    for part in parts:
        part.compile(dynamic=False)
    return bool(parts)
