# SPDX-License-Identifier: Apache-2.0
"""Whether a slot of a causal network is the one before over again: then so is its answer, to the bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inlay.kernels.rule import may_run

Call = tuple[Tensor, Sequence[Tensor] | None]  # a slot, and the state it meets


def repeats(call: Call, before: Call) -> bool:
    """Whether the two calls have the same numbers, so that the answer of the first is that of the second.

    The state must agree as well as the slot. What a slot answers depends on the whole past in reach of the network, so
    after a change a few still slots are computed until the state has settled.
    """
    (slot, state), (slot_before, state_before) = call, before
    if not may_run("still", tensors=(slot,)) or not torch.equal(slot, slot_before):
        return False
    if state is None or state_before is None:
        return state is state_before
    return all(torch.equal(a, b) for a, b in zip(state, state_before, strict=True))
