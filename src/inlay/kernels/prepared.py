# SPDX-License-Identifier: Apache-2.0
"""Weights of a layer in the form that a fast twin wants, made once for weights that stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import Tensor, nn

L = TypeVar("L", bound=nn.Module)
R = TypeVar("R")
MADE: WeakKeyDictionary[nn.Module, dict[Any, tuple[object, Any]]] = WeakKeyDictionary()


def prepared(layer: L, make: Callable[[L], R]) -> R:
    """What `make` makes of the layer; made anew where its weights were written to or replaced."""
    mark = [stamp(p) for p in layer.parameters()]
    found = MADE.setdefault(layer, {})
    if make not in found or found[make][0] != mark:
        found[make] = (mark, make(layer))
    return found[make][1]


def stamp(p: Tensor) -> tuple[int, int | None]:
    """Where a tensor lies and how often it was written to; what is made in inference mode has no count."""
    return p.data_ptr(), None if p.is_inference() else p._version
