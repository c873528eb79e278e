# SPDX-License-Identifier: Apache-2.0
"""Run the encoder for several streams at once: calls of one shape become one, states are laid side by side.

Who shares a call is never chance: it goes by shape alone. A batch that does not fit into memory is halved, now and from
then on; where one call of a batch fails, each runs by itself, and only its own stream learns of the error.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inlay.backbones import State
from inlay.codec.parts import Parts

BatchLimits = dict[Hashable, int]  # shape of a call -> the largest batch that fits into memory, where not all did


@dataclass(kw_only=True, eq=False)
class Call:
    """What one stream asks of the encoder, and what it got."""

    x_BCTHW: Tensor
    carries: bool  # the network's own state goes from chunk to chunk
    state: State = None
    z_BCTHW: Tensor | None = None
    error: Exception | None = None

    @property
    def kind(self) -> Hashable:
        return self.carries, tuple(self.x_BCTHW.shape), self.x_BCTHW.dtype, shape_of(self.state)


def run_calls(parts: Parts, calls: Sequence[Call], limits: BatchLimits, *, most: int) -> None:
    """Answer every call: latents and the state after them, or the error it met."""
    groups: dict[Hashable, list[Call]] = {}
    for call in calls:
        groups.setdefault(call.kind, []).append(call)
    for kind, group in groups.items():
        state = group[0].state
        joins = state is None or shape_of(state) is not None  # else it cannot be laid beside others
        _run_group(parts, group, kind, limits, min(limits.get(kind, most), most) if joins else 1)


def _run_group(parts: Parts, calls: list[Call], kind: Hashable, limits: BatchLimits, size: int) -> None:
    while calls:
        part, rest = calls[:size], calls[size:]
        error = _attempt(parts, part)
        if error is None:
            calls = rest
        elif len(part) == 1:
            part[0].error, calls = error, rest
        elif isinstance(error, torch.OutOfMemoryError):
            size = limits[kind] = (len(part) + 1) // 2
        else:
            size = 1


def _attempt(parts: Parts, calls: list[Call]) -> Exception | None:
    """What went wrong, without the frames it happened in: they hold the memory that a smaller batch needs."""
    try:
        _run(parts, calls)
        return None
    except Exception as error:
        found = error.with_traceback(None)
    if isinstance(found, torch.OutOfMemoryError) and torch.cuda.is_available():
        torch.cuda.empty_cache()
    return found


def _run(parts: Parts, calls: list[Call]) -> None:
    n = len(calls)
    x_BCTHW = calls[0].x_BCTHW if n == 1 else torch.cat([call.x_BCTHW for call in calls])
    if not calls[0].carries:
        for call, z in zip(calls, parts.encode_pixels(x_BCTHW).float().chunk(n), strict=True):
            call.z_BCTHW, call.state = z, None
        return
    z_BCTHW, after = parts.encode_next(x_BCTHW, join_states([call.state for call in calls]))
    states = split_state(after, n)
    for call, z, own in zip(calls, z_BCTHW.float().chunk(n), states, strict=True):
        call.z_BCTHW, call.state = z, own


def shape_of(state: State) -> Hashable:
    """The shape of a state made of lists and tensors; None for any other, and for none at all."""
    if isinstance(state, Tensor):
        return tuple(state.shape)
    if isinstance(state, list | tuple):
        shapes = tuple(shape_of(part) for part in state)
        return None if None in shapes else shapes
    return None


def join_states(states: Sequence[State]) -> State:
    """States of single streams as the state of a batch: streams are the outermost axis of every tensor."""
    first = states[0]
    if first is None or len(states) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat([state for state in states if isinstance(state, Tensor)])
    rows = [state for state in states if isinstance(state, list | tuple)]
    joined = [join_states(parts) for parts in zip(*rows, strict=True)]
    return joined if isinstance(first, list) else tuple(joined)


def split_state(state: State, n: int) -> list[State]:
    """The inverse of `join_states`."""
    if n == 1 or state is None:
        return [state] * n
    if isinstance(state, Tensor):
        return [part.clone() for part in state.chunk(n)]
    parts = [split_state(part, n) for part in state]
    rows: list[State] = []
    for own in zip(*parts, strict=True):
        rows.append(list(own) if isinstance(state, list) else own)
    return rows
