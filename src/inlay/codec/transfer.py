# SPDX-License-Identifier: Apache-2.0
"""Tensors on their way from a GPU to the CPU while it goes on working."""

from __future__ import annotations

import torch
from torch import Tensor


class Transfer:
    """Begins to copy when made; `arrived` waits for the end. What is on the CPU already stays where it is."""

    def __init__(self, *tensors: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._tensors = tensors
        if tensors[0].is_cuda:
            self._tensors = tuple(self._begin(tensor) for tensor in tensors)
            self._event = torch.cuda.Event()
            self._event.record()

    @staticmethod
    def _begin(tensor: Tensor) -> Tensor:
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return pinned.copy_(tensor, non_blocking=True)

    def arrived(self) -> tuple[Tensor, ...]:
        """The tensors on the CPU."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensors
