# SPDX-License-Identifier: Apache-2.0
"""A call in, its warm time and memory out: by events on a GPU, by the wall and the process clock on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

SWEPT = 2**31  # bytes; about half a millisecond of writing, longer than it takes to launch a few kernels


def timed(
    call: Callable[[], Any], device: torch.device, *, repeats: int, warmup: int, queued: bool = False
) -> dict[str, float]:
    """Milliseconds of one call: median and quickest; on a CPU also of all its threads together.

    A GPU starts idle and with a warm cache, so the time until the host has launched the work counts, as it does for
    who waits; `queued`: it is busy until all is launched, and its cache is cold, so that its own time alone counts.
    """
    for _ in range(warmup):
        call()
    if device.type == "cuda":
        return on_cuda(call, repeats, queued=queued)
    wall, cpu = [], []
    for _ in range(repeats):
        begin, busy = time.perf_counter(), time.process_time()
        call()
        wall.append((time.perf_counter() - begin) * 1e3)
        cpu.append((time.process_time() - busy) * 1e3)
    return {"ms": median(wall), "best_ms": min(wall), "cpu_ms": median(cpu)}


def on_cuda(call: Callable[[], Any], repeats: int, *, queued: bool) -> dict[str, float]:
    swept = torch.empty(SWEPT if queued else 0, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    spans = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        swept.zero_()
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        spans.append(begin.elapsed_time(end))
    peak = torch.cuda.max_memory_allocated() - swept.numel()
    return {"ms": median(spans), "best_ms": min(spans), "peak_gb": peak / 1e9}


def resident_gb() -> float | None:
    """The most memory this process has held, where the system tells."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    import sys

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
