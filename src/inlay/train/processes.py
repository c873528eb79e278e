# SPDX-License-Identifier: Apache-2.0
"""The processes of one run: who am I, which clips are mine, and the mean of everyone's gradients.

A batch is divided by place, never by process: with more processes each does less, and the step stays the same step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from inlay.errors import ConfigError, UsageError, require


class Processes:
    """One process alone; `Joined` is the same for several."""

    rank = 0
    world = 1

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    @property
    def first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def share(self, batch: int, accumulate: int) -> slice:
        """The places of a batch that this process works on."""
        if batch % (self.world * accumulate):
            raise ConfigError(
                f"a batch of {batch} clips cannot be divided among {self.world} processes x {accumulate} accumulated "
                f"parts; use a multiple of {self.world * accumulate}"
            )
        mine = batch // self.world
        return slice(self.rank * mine, (self.rank + 1) * mine)

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over all processes."""

    def wait(self) -> None:
        """Go on when every process is here."""


class Joined(Processes):
    """Several processes, started by `accelerate launch`."""

    def __init__(self, accelerator: Any) -> None:
        super().__init__(accelerator.device)
        self._accelerator = accelerator
        self.rank, self.world = accelerator.process_index, accelerator.num_processes

    def mean_(self, tensors: Sequence[Tensor]) -> None:
        if not tensors:
            return
        flat = torch.cat([t.detach().reshape(-1).float() for t in tensors])  # one message is quicker than many
        flat = self._accelerator.reduce(flat, reduction="mean")
        for t, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            t.copy_(part.view_as(t))

    def wait(self) -> None:
        self._accelerator.wait_for_everyone()


def join_processes(device: torch.device | str = "cpu") -> Processes:
    """This process alone, or with the others where a launcher has started several."""
    wanted = torch.device(device)
    try:
        world = int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError as error:
        raise UsageError(f"WORLD_SIZE must be a number; got {os.environ['WORLD_SIZE']!r}") from error
    if world <= 1:
        return Processes(wanted)
    accelerate = require("accelerate", extra="train")
    return Joined(accelerate.Accelerator(cpu=wanted.type == "cpu"))
