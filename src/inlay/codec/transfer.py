# SPDX-License-Identifier: Apache-2.0
"""Tensors between CPU and GPU while the GPU goes on working: copies have a stream of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock

import torch
from torch import Tensor

SPARE_BYTES = 2**28  # of pinned memory that waits to be used again


class Spare:
    """Memory that was read and may be written again. A driver that is asked for pinned memory keeps everyone waiting.

    Torch keeps freed memory too, but hands it out only when all copies are done that were launched before it was freed.

    Args:
        make: memory for a tensor like this one, where none is spare.
    """

    def __init__(self, make: Callable[[Tensor], Tensor], *, most: int = SPARE_BYTES) -> None:
        self._make, self._most = make, most
        self._tensors: list[Tensor] = []  # given back last comes last
        self._lock = Lock()

    def take(self, like: Tensor) -> Tensor:
        """Memory that nobody else has, of this shape and dtype."""
        with self._lock:
            for i, tensor in enumerate(self._tensors):
                if (tensor.shape, tensor.dtype) == (like.shape, like.dtype):
                    return self._tensors.pop(i)
        return self._make(like)

    def give(self, *tensors: Tensor) -> None:
        """What nobody reads or writes any more."""
        with self._lock:
            self._tensors += tensors
            while sum(tensor.nbytes for tensor in self._tensors) > self._most:
                self._tensors.pop(0)


@torch.inference_mode(False)  # else it could be written again in inference mode only
def pinned_like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


PINNED = Spare(pinned_like)


class Transfer:
    """Tensors on their way to the CPU: begins to copy when made, `arrived` and `lent` wait for the end.

    What is on the CPU already stays where it is; what comes from a GPU lies in pinned memory.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._tensors = tensors
        if tensors[0].is_cuda:
            self._begin(tensors)

    def _begin(self, tensors: tuple[Tensor, ...]) -> None:
        stream = copy_stream(tensors[0].device, "down")
        pinned = [PINNED.take(tensor) for tensor in tensors]
        with launching_on(stream) as before:
            stream.wait_stream(before)
            for target, tensor in zip(pinned, tensors, strict=True):
                target.copy_(tensor, non_blocking=True)
                tensor.record_stream(stream)  # its memory must not be used again before it is copied
            self._event = torch.cuda.Event()
            self._event.record(stream)
        self._tensors = tuple(pinned)

    @property
    def ready(self) -> bool:
        """Whether nobody has to wait for them any more."""
        return self._event is None or self._event.query()

    def arrived(self) -> tuple[Tensor, ...]:
        """The tensors on the CPU, for good: their memory is not used again by others."""
        assert self._tensors, "what was lent is gone"
        if self._event is not None:
            self._event.synchronize()
        return self._tensors

    @contextmanager
    def lent(self) -> Iterator[tuple[Tensor, ...]]:
        """The tensors on the CPU inside the block, once: after it their memory is used again."""
        tensors = self.arrived()
        yield tensors
        self._tensors = ()
        if self._event is not None:
            PINNED.give(*tensors)


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor where the device can fetch it while it is at work; the tensor itself where there is no such place."""
    return tensor.pin_memory() if device.type == "cuda" and not tensor.is_cuda else tensor


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; from pinned memory it is copied while the device is at work."""
    if device.type != "cuda" or not tensor.is_pinned():
        return tensor.to(device)
    stream = copy_stream(device, "up")
    with launching_on(stream) as before:
        found = tensor.to(device, non_blocking=True)
    before.wait_stream(stream)
    found.record_stream(before)
    return found


def upload_rows(rows: Sequence[Sequence[Tensor]], device: torch.device) -> Tensor:
    """[B, T, ...] on the device: each row joined from its pieces, all rows of one length.

    A GPU fetches every piece straight to its place, beside what it is at work on; it need not copy them once more.
    """
    first = rows[0][0]
    if device.type != "cuda" or first.is_cuda:
        joined = [row[0] if len(row) == 1 else torch.cat(list(row)) for row in rows]
        return (joined[0][None] if len(joined) == 1 else torch.stack(joined)).to(device)
    stream = copy_stream(device, "up")
    with launching_on(stream) as before:
        length = sum(len(piece) for piece in rows[0])
        found = torch.empty(len(rows), length, *first.shape[1:], dtype=first.dtype, device=device)
        for target, row in zip(found, rows, strict=True):
            for place, piece in zip(target.split([len(piece) for piece in row]), row, strict=True):
                place.copy_(piece, non_blocking=True)  # from memory that is not pinned it is waited for all the same
    before.wait_stream(stream)
    found.record_stream(before)
    return found


@contextmanager
def launching_on(stream: torch.cuda.Stream) -> Iterator[torch.cuda.Stream]:
    """`torch.cuda.stream`, which hands out the stream before; where the device stays, without asking for it: that
    takes as long as three launches."""
    before = torch.cuda.current_stream(stream.device_index)
    if torch.cuda.current_device() != stream.device_index:
        with torch.cuda.stream(stream):
            yield before
        return
    torch.cuda.set_stream(stream)
    try:
        yield before
    finally:
        torch.cuda.set_stream(before)


@lru_cache(maxsize=16)
def copy_stream(device: torch.device, way: str) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
