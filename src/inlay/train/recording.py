# SPDX-License-Identifier: Apache-2.0
"""Record a training step as one CUDA graph, and replay it.

A step of these networks is more than a thousand small launches, which keep Python busier than some GPUs. Recorded
once, it is played back with one launch. What a recording cannot hold stays outside: the choice of clips, noise drawn
by seed, the learning rate (a number on the device that the recording reads), averaging and the log.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Inputs = dict[str, Tensor]
Terms = dict[str, Tensor]
WARM_STEPS = 12  # taken as they are: compilers, kernel choices and optimiser state must be settled before a recording


class RecordedStep:
    """`update(inputs)`, taken as it is some times, then recorded, then played back."""

    def __init__(self, update: Callable[[Inputs], Terms], device: torch.device) -> None:
        self.update, self.stream = update, torch.cuda.Stream(device)
        self.taken = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: Inputs = {}
        self.terms: Terms = {}

    def __call__(self, inputs: Inputs) -> Terms:
        """The terms are overwritten by the next call."""
        self.taken += 1
        if self.taken <= WARM_STEPS:
            return self._on_own_stream(inputs)
        if self.graph is None:
            self._record(inputs)
            assert self.graph is not None, "it was recorded just now"
        for name, held in self.inputs.items():
            held.copy_(inputs[name])
        self.graph.replay()
        return self.terms

    def _on_own_stream(self, inputs: Inputs) -> Terms:
        """Where it will be recorded: autograd remembers the stream on which it first met a parameter."""
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            terms = self.update(inputs)
        current.wait_stream(self.stream)
        for tensor in (*inputs.values(), *terms.values()):
            tensor.record_stream(self.stream)
        return terms

    def _record(self, inputs: Inputs) -> None:
        """Nothing is computed here: a recorded step takes effect when it is played."""
        self.inputs = {name: tensor.clone() for name, tensor in inputs.items()}
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self.terms = self.update(self.inputs)
        self.graph = graph
