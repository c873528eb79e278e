# SPDX-License-Identifier: Apache-2.0
"""Nested arguments taken apart and put together again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from inlay.kernels.nested import put_together, take_apart

A, B, C = torch.zeros(1), torch.ones(2), torch.ones(3)
VALUES = {
    "a tensor": A,
    "no state": (A, None),
    "a list": (A, [B, C]),
    "a list of lists": (A, [[B], [C, None], []]),
    "constants": [A, 1, 0.5, "word", False],
    "names": ((A,), {"keep": True, "state": {"k": B}}),
}


@pytest.mark.parametrize("name", VALUES)
def test_there_and_back(name: str) -> None:
    tensors: list[Tensor] = []
    structure = take_apart(VALUES[name], tensors)
    back = put_together(structure, iter(tensors))
    again: list[Tensor] = []
    assert type(back) is type(VALUES[name]) and take_apart(back, again) == structure
    assert all(a is b for a, b in zip(tensors, again, strict=True))
    hash(structure)


def test_structures_differ_where_calls_do() -> None:
    calls = [A, (A,), [A], (A, None), (A, 1), (A, True), (A, 1.0), (A, A), ((A,), A), {"x": A}, {"y": A}, "tensor"]
    assert len({take_apart(call, []) for call in calls}) == len(calls)


@pytest.mark.parametrize("odd", [object(), {1, 2}, torch.Size([1]), torch.float32, [A, lambda: None]])
def test_what_might_change_unseen_is_refused(odd: object) -> None:
    with pytest.raises(TypeError, match="neither a tensor nor"):
        take_apart(odd, [])
