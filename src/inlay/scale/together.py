# SPDX-License-Identifier: Apache-2.0
"""Calls of several videos to one network in, one call for all of one shape out: who shares a call is never chance.

Each video is encoded by a thread of its own, with a `Seat` as its backbone. When every video still at work waits for
the network, the calls of one shape run as one; the outcome does not depend on which thread was first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from inlay.backbones import Backbone, BackboneSpec
from inlay.tokenizer import Tokenizer

R = TypeVar("R")
Room = dict[tuple[Any, ...], int]  # kind of call -> how many fit into memory together, where not all did


@dataclass(kw_only=True, eq=False)
class Call:
    """One encoder call that waits for its company."""

    name: str  # encode or encode_next
    x_BCTHW: Tensor
    state: Any = None
    answer: Any = None
    error: BaseException | None = None

    @property
    def kind(self) -> tuple[Any, ...]:
        return self.name, tuple(self.x_BCTHW.shape), self.x_BCTHW.dtype, shape_of(self.state)


class Together:
    """The table at which `seats` videos sit."""

    def __init__(self, tokenizer: Tokenizer, seats: int, room: Room | None = None) -> None:
        self.tokenizer, self.backbone = tokenizer, tokenizer.backbone
        self.room: Room = {} if room is None else room
        self._turn = threading.Condition()
        self._calls: dict[int, Call] = {}
        self._seated = set(range(seats))

    def run(self, jobs: Sequence[Callable[[Tokenizer], R]]) -> list[R]:
        """Each job with its own seat, all at once; the answers in order. A job must not raise."""
        answers: list[R | None] = [None] * len(jobs)

        def sit(number: int) -> None:
            try:
                answers[number] = jobs[number](self._tokenizer(number))
            finally:
                with self._turn:
                    self._seated.discard(number)
                    self._turn.notify_all()

        threads = [threading.Thread(target=sit, args=(n,), daemon=True) for n in range(len(jobs))]
        for thread in threads:
            thread.start()
        while self._serve():
            pass
        for thread in threads:
            thread.join()
        return answers  # type: ignore[return-value]

    def call(self, number: int, call: Call) -> Any:
        with self._turn:
            self._calls[number] = call
            self._turn.notify_all()
            self._turn.wait_for(lambda: call.answer is not None or call.error is not None)
        if call.error is not None:
            raise call.error
        return call.answer

    def _serve(self) -> bool:
        """Wait until nobody but the network is at work, then let it work; False when all have left."""
        with self._turn:
            self._turn.wait_for(lambda: set(self._calls) >= self._seated)
            if not self._seated:
                return False
            calls, self._calls = [self._calls[n] for n in sorted(self._calls)], {}
        groups: dict[tuple[Any, ...], list[Call]] = {}
        for call in calls:
            groups.setdefault(call.kind, []).append(call)
        for group in groups.values():
            answer(self.backbone, group, self.room)
        with self._turn:
            self._turn.notify_all()
        return True

    def _tokenizer(self, number: int) -> Tokenizer:
        t = self.tokenizer
        seat: Any = Seat(self, number)
        return Tokenizer(seat, profile=t.profile, lits=t.lits, fill=t.default_fill, device=t.device, dtype=t.dtype)


class Seat:
    """A backbone whose encoder is shared; the rest is the network's own."""

    def __init__(self, table: Together, number: int) -> None:
        self._table, self._number = table, number

    @property
    def spec(self) -> BackboneSpec:
        return self._table.backbone.spec

    def encode(self, x_BCTHW: Tensor) -> Tensor:
        return self._table.call(self._number, Call(name="encode", x_BCTHW=x_BCTHW))

    def encode_next(self, x_BCTHW: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self._table.call(self._number, Call(name="encode_next", x_BCTHW=x_BCTHW, state=state))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table.backbone, name)


@torch.inference_mode()
def answer(backbone: Backbone, calls: list[Call], room: Room) -> None:
    """Run calls of one shape as one. Where they do not fit into memory together, half of them at a time, now and from
    now on; where one of them fails, or carries a state that cannot be laid beside others, each by itself."""
    kind, state = calls[0].kind, calls[0].state
    most = 1 if state is not None and shape_of(state) is None else room.get(kind, len(calls))
    while calls:
        part, rest = calls[:most], calls[most:]
        error = _attempt(backbone, part)
        if error is None:
            calls = rest
        elif len(part) == 1:
            part[0].error, calls = error, rest
        elif isinstance(error, torch.OutOfMemoryError):
            most = room[kind] = (len(part) + 1) // 2
        else:
            most = 1


def _attempt(backbone: Backbone, calls: list[Call]) -> Exception | None:
    """What went wrong, without the frames it happened in: they hold the memory that a smaller batch needs."""
    try:
        _answer_all(backbone, calls)
        return None
    except Exception as error:
        found = error.with_traceback(None)
    if isinstance(found, torch.OutOfMemoryError) and torch.cuda.is_available():
        torch.cuda.empty_cache()
    return found


def _answer_all(backbone: Any, calls: list[Call]) -> None:
    x_BCTHW = torch.cat([call.x_BCTHW for call in calls])
    n = len(calls)
    if calls[0].name == "encode":
        for call, z in zip(calls, backbone.encode(x_BCTHW).chunk(n), strict=True):
            call.answer = z
        return
    state = joined([call.state for call in calls])
    z_BCTHW, after = backbone.encode_next(x_BCTHW, state)
    states = split(after, n)
    for call, z, own in zip(calls, z_BCTHW.chunk(n), states, strict=True):
        call.answer = (z, own)


def shape_of(state: Any) -> Any:
    """The shape of a state made of lists and tensors; None for any other, and for none at all."""
    if isinstance(state, Tensor):
        return tuple(state.shape)
    if isinstance(state, list | tuple):
        shapes = tuple(shape_of(part) for part in state)
        return None if None in shapes else shapes
    return None


def joined(states: list[Any]) -> Any:
    """States of single videos as the state of a batch: videos are the outermost axis of every tensor."""
    first = states[0]
    if first is None or len(states) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(states)
    return type(first)(joined(list(parts)) for parts in zip(*states, strict=True))


def split(state: Any, n: int) -> list[Any]:
    """The inverse of `joined`."""
    if n == 1:
        return [state]
    if isinstance(state, Tensor):
        return [part.clone() for part in state.chunk(n)]
    parts = [split(part, n) for part in state]
    return [type(state)(own) for own in zip(*parts, strict=True)]
