# SPDX-License-Identifier: Apache-2.0
"""Remember what metrics compute of a reference that is compared with many videos, for as long as it lives."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

T = TypeVar("T")
_known: Any = WeakTensorKeyDictionary()  # tensor -> {name: what was computed}; an entry goes when its tensor does


def remember(x: Tensor) -> Tensor:
    """The same tensor, marked: what metrics compute of it alone is kept. It must not be written to afterwards."""
    if x not in _known:
        _known[x] = {}
    return x


def is_remembered(x: Tensor) -> bool:
    return x in _known


def recall(x: Tensor, name: Hashable, compute: Callable[[], T]) -> T:
    """What `compute` gives; of a marked tensor, what it gave the first time."""
    if not is_remembered(x):
        return compute()
    known = _known[x]
    if name not in known:
        known[name] = compute()
    return known[name]
