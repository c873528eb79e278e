# SPDX-License-Identifier: Apache-2.0
"""Take nested arguments and answers apart into their tensors, and put them together again.

torch has such a thing, but not as a public name, and there None counts as a leaf.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from torch import Tensor

LEAF = "tensor"
CONSTANTS = (bool, int, float, str, type(None))


def take_apart(value: object, tensors: list[Tensor]) -> Hashable:
    """The structure of nested lists, tuples and dicts; appends the tensors they hold, in order.

    Numbers, words and None are part of the structure. Raises a TypeError on anything else, which might change unseen.
    """
    if isinstance(value, Tensor):
        tensors.append(value)
        return LEAF
    if type(value) in (list, tuple):
        return type(value), *[take_apart(v, tensors) for v in value]  # type: ignore[attr-defined]
    if type(value) is dict:
        return dict, *[(name, take_apart(v, tensors)) for name, v in value.items()]
    if type(value) in CONSTANTS:
        return type(value), value
    raise TypeError(f"{type(value).__name__} is neither a tensor nor a list, tuple or dict of tensors")


def put_together(structure: Any, tensors: Iterator[Tensor]) -> Any:
    """What `take_apart` took apart, with other tensors."""
    if structure is LEAF:
        return next(tensors)
    kind, *parts = structure
    if kind is dict:
        return {name: put_together(part, tensors) for name, part in parts}
    if kind in (list, tuple):
        return kind(put_together(part, tensors) for part in parts)
    return parts[0]
