# SPDX-License-Identifier: Apache-2.0
"""A function of tensors in, the same function replayed from a CUDA graph out: one launch in place of hundreds.

A shape is run plainly when it is first met, captured when it comes again, and replayed from then on. Answers are the
plain function's bit for bit: the same kernels on the same numbers. Anything a capture refuses stays plain. Threads take
turns: a recording has one set of tensors through which numbers come and go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from inlay.kernels.switch import is_on

KEPT = 4  # shapes whose graphs are held; each holds the memory of its activations
LARGEST = 64_000_000  # numbers that enter together; beyond that launches cost nothing beside the work
TURNS = RLock()  # one for all, so that what holds a Replay can still be sent to another process
WARM = 2  # runs on the capture's stream before it, so that libraries have chosen their kernels


@dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """A captured run: numbers go in and come out through its own tensors."""

    graph: Any
    inputs: tuple[Tensor, ...]
    output: Tensor

    def __call__(self, tensors: tuple[Tensor, ...]) -> Tensor:
        for mine, given in zip(self.inputs, tensors, strict=True):
            mine.copy_(given)
        self.graph.replay()
        return self.output.clone()


class Replay:
    """Wraps a function of tensors that gives one tensor, reads nothing else that changes, and never waits for it."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function
        self.recordings: OrderedDict[Any, Recording | None] = OrderedDict()
        self.refused: str = ""  # why a capture failed, for those who ask

    def __call__(self, *tensors: Tensor) -> Tensor:
        if not self.is_safe(tensors):
            return self.function(*tensors)
        with TURNS:
            return self.take_turn(tensors)

    def take_turn(self, tensors: tuple[Tensor, ...]) -> Tensor:
        inferring = torch.is_inference_mode_enabled()  # only in the mode that made them can tensors be written again
        key = inferring, *((t.shape, t.stride(), t.dtype, t.device) for t in tensors)
        if key not in self.recordings:
            self.recordings[key] = None
            return self.function(*tensors)
        self.recordings.move_to_end(key)
        recording = self.recordings[key]
        if recording is None and not self.refused:
            recording = self.recordings[key] = self.capture(tensors)
        return self.function(*tensors) if recording is None else recording(tensors)

    def is_safe(self, tensors: tuple[Tensor, ...]) -> bool:
        """On CUDA, without gradients or hooks, and not inside another capture or compilation."""
        return (
            not getattr(self.function, "_forward_pre_hooks", None)  # a replay would run without them
            and all(t.is_cuda for t in tensors)
            and sum(t.numel() for t in tensors) <= LARGEST
            and not torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
            and not torch.cuda.is_current_stream_capturing()
            and is_on()
        )

    def capture(self, tensors: tuple[Tensor, ...]) -> Recording | None:
        held = [k for k, r in self.recordings.items() if r is not None]
        for key in held[: max(0, len(held) - KEPT + 1)]:
            del self.recordings[key]
        inputs = tuple(t.clone() for t in tensors)
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM):
                    self.function(*inputs)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                output = self.function(*inputs)
        except RuntimeError as error:  # an operation that waits for the GPU, or memory that is not there
            self.refused = str(error).splitlines()[0]
            torch.cuda.synchronize()
            return None
        return Recording(graph=graph, inputs=inputs, output=output)
