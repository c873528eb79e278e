# SPDX-License-Identifier: Apache-2.0
"""Tensors between CPU and GPU while the GPU goes on working: copies have a stream of their own."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


class Transfer:
    """Tensors on their way to the CPU: begins to copy when made, `arrived` waits for the end.

    What is on the CPU already stays where it is; what comes from a GPU lies in pinned memory.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._tensors = tensors
        if tensors[0].is_cuda:
            self._begin(tensors)

    def _begin(self, tensors: tuple[Tensor, ...]) -> None:
        stream = copy_stream(tensors[0].device, "down")
        stream.wait_stream(torch.cuda.current_stream())
        pinned = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
        with torch.cuda.stream(stream):
            for target, tensor in zip(pinned, tensors, strict=True):
                target.copy_(tensor, non_blocking=True)
                tensor.record_stream(stream)  # its memory must not be used again before it is copied
            self._event = torch.cuda.Event()
            self._event.record(stream)
        self._tensors = tuple(pinned)

    def arrived(self) -> tuple[Tensor, ...]:
        """The tensors on the CPU."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensors


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; from pinned memory it is copied while the device is at work."""
    if device.type != "cuda" or not tensor.is_pinned():
        return tensor.to(device)
    stream = copy_stream(device, "up")
    with torch.cuda.stream(stream):
        found = tensor.to(device, non_blocking=True)
    torch.cuda.current_stream().wait_stream(stream)
    found.record_stream(torch.cuda.current_stream())
    return found


@lru_cache(maxsize=16)
def copy_stream(device: torch.device, way: str) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
