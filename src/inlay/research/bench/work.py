# SPDX-License-Identifier: Apache-2.0
"""A network and a shape in, the operations and the fewest bytes of one pass out; nothing is computed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from inlay.kernels.switch import at_level


def flops(network: torch.nn.Module, call: Callable[[Any], Any]) -> float:
    """Operations of `call` on a copy of the network without numbers: products and additions, matrices only."""
    from torch.utils.flop_counter import FlopCounterMode

    with at_level("0"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        call(copy.deepcopy(network).to("meta"))
    return float(counter.get_total_flops())


def weight_bytes(network: Any) -> int:
    return sum(p.numel() * p.element_size() for p in network.parameters()) if hasattr(network, "parameters") else 0


def tensor_bytes(*tensors: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
