# SPDX-License-Identifier: Apache-2.0
"""Warm time and memory of a call, the operations and bytes of a network's pass, and what a device can do at best."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from inlay.kernels.switch import at_level

SWEPT = 2**31  # bytes; about half a millisecond of writing, longer than it takes to launch a few kernels
# name within the device's -> dense TFLOP/s of bfloat16 matrices, TFLOP/s of plain float32, TB/s of memory
SHEET: dict[str, tuple[float, float, float]] = {
    "H200": (989, 67, 4.8),
    "H100 PCIe": (756, 51, 2.0),
    "H100": (989, 67, 3.35),
    "A100": (312, 19.5, 2.0),
    "L40S": (362, 91.6, 0.864),
    "L4": (121, 30.3, 0.3),
    "RTX 4090": (165, 82.6, 1.008),
}


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
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def flops(network: torch.nn.Module, call: Callable[[Any], Any]) -> float:
    """Operations of `call` on a copy of the network without numbers: products and additions, matrices only."""
    from torch.utils.flop_counter import FlopCounterMode

    with at_level("0"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        call(copy.deepcopy(network).to("meta"))
    return float(counter.get_total_flops())


def weight_bytes(network: Any) -> int:
    return sum(p.numel() * p.element_size() for p in network.parameters()) if hasattr(network, "parameters") else 0


def tensor_bytes(*tensors: Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Ceilings of one device for one arithmetic."""

    flops: float  # a second
    bytes: float  # a second
    source: str

    def floor_ms(self, flops: float, moved: float) -> float:
        """No program that does this work and moves these bytes is quicker."""
        return max(flops / self.flops, moved / self.bytes) * 1e3


def sheet(name: str, dtype: torch.dtype) -> Peaks | None:
    """What the vendor says."""
    for known, (half, single, memory) in SHEET.items():
        if known in name:
            rate = single if dtype == torch.float32 else half
            return Peaks(flops=rate * 1e12, bytes=memory * 1e12, source=f"data sheet of {known}")
    return None


@torch.inference_mode()
def measured(device: torch.device, dtype: torch.dtype) -> Peaks:
    """One large product and one large copy on random numbers."""
    side, size = (8192, 2**30) if device.type == "cuda" else (1536, 2**25)
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    source = torch.randn(size // dtype.itemsize, device=device).to(dtype)
    target = torch.empty_like(source)
    product = timed(lambda: torch.matmul(a, b), device, repeats=3, warmup=1)["best_ms"]
    copy = timed(lambda: target.copy_(source), device, repeats=3, warmup=1)["best_ms"]
    return Peaks(flops=2 * side**3 / product * 1e3, bytes=2 * size / copy * 1e3, source="measured")
