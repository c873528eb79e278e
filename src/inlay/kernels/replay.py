# SPDX-License-Identifier: Apache-2.0
"""Replay a function from a CUDA graph: one launch in place of hundreds.

    call ── taken apart ──► tensors ── one copy ──► graph's inputs ── replay ──► graph's outputs ── one copy ──► answer
                    └─► structure, shapes, layouts: which recording

A call is run plainly when its like is first met, captured when it comes again, and replayed from then on. Answers are
the plain function's bit for bit: the same kernels on the same numbers. Anything a capture refuses stays plain. Threads
take turns: a recording has one set of tensors through which numbers come and go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import RLock
from typing import Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from inlay.kernels.nested import put_together, take_apart
from inlay.kernels.rule import may_run

P = ParamSpec("P")
R = TypeVar("R")
Run = Callable[[], list[Tensor]]
Capture = Callable[[Run], tuple[Callable[[], None], list[Tensor]]]

KEPT = 4  # recordings that are held; each holds the memory of its activations
MET = 64  # kinds of calls that are remembered: a state that grows makes a new one every time
LARGEST = 128_000_000  # numbers that enter together; a state of Cosmos has 100 million a clip, and is copied in 0.1 ms
TURNS = RLock()  # one for all, so that what holds a Replay can still be sent to another process
WARM = 2  # runs on the capture's stream before it, so that libraries have chosen their kernels


@dataclass(frozen=True, kw_only=True, eq=False)
class Recording:
    """A captured run: numbers enter and leave through its own tensors."""

    play: Callable[[], None]
    inputs: list[Tensor]
    outputs: list[Tensor]
    structure: Hashable  # of the answer
    groups: list[list[int]]  # outputs of one dtype: they have no gaps, so one launch copies a group

    def __call__(self, tensors: list[Tensor]) -> object:
        copy_all(self.inputs, tensors)
        self.play()
        answer = [torch.empty_like(t) for t in self.outputs]  # the next replay writes to its own outputs again
        for group in self.groups:
            copy_group([answer[i] for i in group], [self.outputs[i] for i in group])
        return put_together(self.structure, iter(answer))


def cuda_graph(run: Run) -> tuple[Callable[[], None], list[Tensor]]:
    """Capture a run: what replays it, and the tensors in which it leaves its answer."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = run()
    return graph.replay, outputs


class Replay(Generic[P, R]):
    """Call a function as ever; calls that repeat are replayed from a CUDA graph.

    Args:
        function: reads nothing that changes but its arguments, leaves those as they are, and never waits for the GPU.
            Arguments and answer are tensors, or nested lists, tuples and dicts of tensors, numbers, words and None:
            `encode(x) -> z` as well as `encode_next(x, state) -> (z, state)`. With anything else it runs plainly.
        capture: makes a recording; tests give one that needs no GPU.

    Answers belong to the caller: no later call writes to them, and a state may be kept, or fed back at any time.
    """

    def __init__(self, function: Callable[P, R], *, capture: Capture = cuda_graph) -> None:
        self.function = function
        self.capture = capture
        self.recordings: OrderedDict[Hashable, Recording | None] = OrderedDict()  # the one met last comes last
        self.refused: str = ""  # why a capture failed, for those who ask

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        tensors: list[Tensor] = []
        try:
            structure = take_apart((args, kwargs), tensors)
        except TypeError:
            return self.function(*args, **kwargs)
        if not self.fits(tensors) or not may_run("graphs", tensors=tensors):
            return self.function(*args, **kwargs)
        with TURNS:
            recording = self.find(structure, tensors)
            return self.function(*args, **kwargs) if recording is None else recording(tensors)  # type: ignore[return-value]

    def fits(self, tensors: list[Tensor]) -> bool:
        """Whether the function has no hooks, which a replay would leave out, and the call is small enough to gain."""
        hooked = bool(getattr(self.function, "_forward_pre_hooks", None))
        return not hooked and sum(t.numel() for t in tensors) <= LARGEST

    def find(self, structure: Hashable, tensors: list[Tensor]) -> Recording | None:
        """The recording for calls of this kind; None where there is none, or not yet."""
        inferring = torch.is_inference_mode_enabled()  # only in the mode that made them can tensors be written again
        key = inferring, structure, *((t.shape, layout(t), t.dtype, t.device) for t in tensors)
        recording = self.recordings.get(key)
        if recording is None:
            if not self.refused and self.has_place(key):
                recording = self.record(structure, tensors)
            self.recordings[key] = recording
            if len(self.recordings) > MET:
                self.recordings.popitem(last=False)
        self.recordings.move_to_end(key)
        return recording

    def has_place(self, key: Hashable) -> bool:
        """Whether to record a call of this kind: it was met before, and a recording's place is free or can be freed.

        What was used last before this kind was last met goes. So kinds that take turns push nobody out: capturing
        anew at every turn would cost more than it saves.
        """
        met = list(self.recordings)
        held = [k for k in met if self.recordings[k] is not None]
        if key not in self.recordings or (len(held) >= KEPT and met.index(held[0]) > met.index(key)):
            return False
        if len(held) >= KEPT:
            del self.recordings[held[0]]
        return True

    def record(self, structure: Hashable, tensors: list[Tensor]) -> Recording | None:
        inputs = [t.clone() for t in tensors]
        answer: Hashable = None

        def run() -> list[Tensor]:
            nonlocal answer
            args, kwargs = put_together(structure, iter(inputs))
            outputs: list[Tensor] = []
            answer = take_apart(self.function(*args, **kwargs), outputs)
            return [t if t.stride() == layout(t) else t.clone() for t in outputs]  # without gaps: copied together

        try:
            play, outputs = self.capture(run)
        except (RuntimeError, TypeError) as error:  # an operation that waits for the GPU, memory or tensors not there
            self.refused = (str(error) or repr(error)).splitlines()[0]
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            return None
        dtypes = [t.dtype for t in outputs]
        groups = [[i for i, own in enumerate(dtypes) if own == dtype] for dtype in dict.fromkeys(dtypes)]
        return Recording(play=play, inputs=inputs, outputs=outputs, structure=answer, groups=groups)


class Branch:
    """Work of a recording that runs beside the rest of it: `with branch: ...`, then `branch.join()` before its use.

    Outside of a capture the block simply runs first: only there no other thread can be using the second stream.
    """

    def __init__(self, tensor: Tensor) -> None:
        captured = tensor.is_cuda and torch.cuda.is_current_stream_capturing()
        self._side = _side_stream(tensor.device) if captured else None
        self._block = torch.cuda.stream(self._side)

    def __enter__(self) -> None:
        if self._side is not None:
            self._side.wait_stream(torch.cuda.current_stream())
        self._block.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._block.__exit__(kind, error, trace)

    def join(self) -> None:
        """What follows comes after the block."""
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)


@lru_cache(maxsize=16)
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def layout(t: Tensor) -> tuple[int, ...]:
    """The strides that a copy has: the tensor's own, or those of the same order where it has gaps."""
    return copied_strides(tuple(t.shape), t.stride())


@lru_cache(maxsize=4096)
def copied_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    return torch.empty_like(torch.empty_strided(shape, strides, device="meta")).stride()


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source to its target, with one launch for all that agree in dtype and lie alike in memory."""
    together: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        if target.stride() == source.stride():
            group = together.setdefault(target.dtype, ([], []))
            group[0].append(target)
            group[1].append(source)
        else:
            target.copy_(source)
    for group in together.values():
        copy_group(*group)


def copy_group(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensors of one dtype and layout; one alone is copied as plain memory, which is quicker."""
    if len(targets) == 1:
        targets[0].copy_(sources[0])
    else:
        torch._foreach_copy_(targets, sources)
