# SPDX-License-Identifier: Apache-2.0
"""A network and a shape in, the operations and the fewest bytes of one pass out; nothing is computed."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def path(level: str) -> Iterator[None]:
    """INLAY_FAST for a while."""
    before = os.environ.get("INLAY_FAST")
    os.environ["INLAY_FAST"] = level
    try:
        yield
    finally:
        if before is None:
            del os.environ["INLAY_FAST"]
        else:
            os.environ["INLAY_FAST"] = before


def flops(network: torch.nn.Module, call: Callable[[Any], Any]) -> float:
    """Operations of `call` on a copy of the network without numbers: products and additions, matrices only."""
    from torch.utils.flop_counter import FlopCounterMode

    with path("0"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        call(copy.deepcopy(network).to("meta"))
    return float(counter.get_total_flops())


def weight_bytes(network: Any) -> int:
    return sum(p.numel() * p.element_size() for p in network.parameters()) if hasattr(network, "parameters") else 0


def tensor_bytes(*tensors: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
