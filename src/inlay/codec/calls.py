# SPDX-License-Identifier: Apache-2.0
"""Run the encoder for several streams at once: calls of one shape become one, states are laid side by side.

Who shares a call is never chance: it goes by shape alone. A batch that does not fit into memory is halved, now and from
then on; where one call of a batch fails, each runs by itself, and only its own stream learns of the error.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from inlay.backbones import State
from inlay.codec.cuts import Evidence
from inlay.codec.parts import Carry, Parts
from inlay.codec.transfer import upload_rows

BatchLimits = dict[Hashable, int]  # shape of a call -> the largest batch that fits into memory, where not all did


@dataclass(frozen=True, kw_only=True, eq=False)
class Row:
    """One stream's share of what a batch left behind; laid beside the same others again it costs nothing."""

    joint: Carry
    index: int
    count: int

    @property
    def joins(self) -> bool:
        """Whether its state can be laid beside others."""
        return self.joint[0] is None or self.kind is not None

    @cached_property
    def kind(self) -> Hashable:
        return shape_of(self.joint[0], self.count)

    def own(self) -> Carry:
        state, seen = self.joint
        rows = None if seen is None else [tensor[self.index, None] for tensor in seen]
        return split_state(state, self.count)[self.index], rows


@dataclass(kw_only=True, eq=False)
class Call:
    """What one stream asks of the encoder, and what it got."""

    pieces: Sequence[Tensor]  # [T, H, W, 3] uint8 each, wherever they lie: together they are the chunk
    carries: bool  # the network's own state goes from chunk to chunk
    continued: bool = False  # frames that follow others: there is no first slot
    looks: bool = False  # for cuts
    before: Row | None = None  # state of the network and what was seen last
    frames_THWC: Tensor | None = None  # on the device
    z_BCTHW: Tensor | None = None
    after: Row | None = None
    evidence: tuple[Evidence, int] | None = None  # and the row in it
    error: Exception | None = None

    @property
    def kind(self) -> Hashable:
        before = self.before and self.before.kind
        shape = sum(len(piece) for piece in self.pieces), *self.pieces[0].shape[1:]
        return self.carries, self.continued, self.looks, shape, before


def run_calls(parts: Parts, calls: Sequence[Call], limits: BatchLimits, *, most: int) -> None:
    """Answer every call: latents and the state after them, or the error it met."""
    groups: dict[Hashable, list[Call]] = {}
    for call in calls:
        groups.setdefault(call.kind, []).append(call)
    for kind, group in groups.items():
        joins = all(call.before is None or call.before.joins for call in group)
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
    first, n = calls[0], len(calls)
    frames = upload_rows([call.pieces for call in calls], parts.device)
    before = join_rows([call.before for call in calls])
    z_BCTHW, after, numbers = parts.encode_frames(frames, first.continued, first.carries, first.looks, before)
    evidence = None if numbers is None else Evidence(numbers, z_BCTHW.shape[2])
    for row, (call, z) in enumerate(zip(calls, z_BCTHW.chunk(n), strict=True)):
        call.frames_THWC, call.z_BCTHW, call.after = frames[row], z, Row(joint=after, index=row, count=n)
        call.evidence = None if evidence is None else (evidence, row)


def join_rows(rows: Sequence[Row | None]) -> Carry | None:
    """The state of a batch; where the same streams shared the last one, just as it was left."""
    first = rows[0]
    if first is None:
        return None
    found = [row for row in rows if row is not None]
    if all(row.joint is first.joint and row.index == i for i, row in enumerate(found)) and first.count == len(found):
        return first.joint
    states, seen = zip(*[row.own() for row in found], strict=True)
    looked = [tensors for tensors in seen if tensors is not None]
    return join_states(states), [torch.cat(parts) for parts in zip(*looked, strict=True)] if looked else None


def shape_of(state: State, streams: int = 1) -> Hashable:
    """The shape of one stream's share of a state made of lists and tensors; None for any other, and for none at all."""
    if isinstance(state, Tensor):
        return len(state) // streams, *state.shape[1:]
    if isinstance(state, list | tuple):
        shapes = tuple(shape_of(part, streams) for part in state)
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
