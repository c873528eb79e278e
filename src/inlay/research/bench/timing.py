# SPDX-License-Identifier: Apache-2.0
"""Warm time and memory of a call, the operations and bytes of a network's pass, and what a device can do at best."""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from inlay.kernels import int8
from inlay.kernels.rule import why_not
from inlay.kernels.switch import at_level

SWEPT = 2**31  # bytes; about half a millisecond of writing, longer than it takes to launch a few kernels
FEWER = 4  # times: operations of a 3x3 convolution over those of its quick form
TRIES = 40  # calls of which the quickest counts
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
    call: Callable[[], Any],
    device: torch.device,
    *,
    repeats: int,
    warmup: int,
    queued: bool = False,
    seconds: float = math.inf,
) -> dict[str, float]:
    """Milliseconds of one call: median and quickest; on a CPU also of all its threads together.

    After `seconds` nothing more is begun but what a number needs: one call to warm up and one that is timed.

    A GPU starts idle and with a warm cache, so the time until the host has launched the work counts, as it does for
    who waits; `queued`: it is busy until all is launched, and its cache is cold, so that its own time alone counts.
    """
    until = time.perf_counter() + seconds
    for n in range(warmup):
        if n == 0 or time.perf_counter() < until:
            call()
    if device.type == "cuda":
        return on_cuda(call, repeats, queued=queued)
    wall: list[float] = []
    cpu: list[float] = []
    for n in range(repeats):
        if n and time.perf_counter() >= until:
            break
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
    """Ceilings of one device: what no stage on it can exceed."""

    flops: float  # a second, products and additions one by one
    quick: float  # a second, as counted for the plain form, where an algorithm does with fewer or with fewer bits
    bytes: float  # a second
    source: str

    def floor_ms(self, flops: float, moved: float, *, quick: bool = False) -> float:
        """No program that does this work and moves these bytes is quicker."""
        return max(flops / (self.quick if quick else self.flops), moved / self.bytes) * 1e3

    def over(self, other: Peaks) -> Peaks:
        """The higher of each: of two measurements the slower one was disturbed."""
        return replace(
            self, flops=max(self.flops, other.flops), quick=max(self.quick, other.quick),
            bytes=max(self.bytes, other.bytes),
        )  # fmt: skip


def sheet(name: str, dtype: torch.dtype) -> Peaks | None:
    """What the vendor says."""
    for known, (half, single, memory) in SHEET.items():
        if known in name:
            rate = single if dtype == torch.float32 else half
            return Peaks(flops=rate * 1e12, quick=rate * 1e12, bytes=memory * 1e12, source=f"data sheet of {known}")
    return None


@torch.inference_mode()
def measured(device: torch.device, dtype: torch.dtype) -> Peaks:
    """Large products, and copies that do and do not fit into caches, on random numbers: the quickest of many.

    Each call takes a millisecond or two, so that some of them run undisturbed on a machine with other work too.
    """
    on_gpu = device.type == "cuda"
    side, sizes = (8192, (2**30,)) if on_gpu else (512, (2**18, 2**22, 2**25))
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    flops = 2 * side**3 / quickest(lambda: torch.matmul(a, b), device)
    rates = [flops] if on_gpu else [flops * FEWER, *rates_of_8_bits(a)]
    moved = max(2 * size / copy_seconds(size, device) for size in sizes)
    return Peaks(flops=flops, quick=max(rates), bytes=moved, source="measured")


def copy_seconds(size: int, device: torch.device) -> float:
    source = torch.zeros(size, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    return quickest(lambda: target.copy_(source), device)


def quickest(call: Callable[[], Any], device: torch.device) -> float:
    return timed(call, device, repeats=3 if device.type == "cuda" else TRIES, warmup=1)["best_ms"] / 1e3


def rates_of_8_bits(x_NC: Tensor) -> list[float]:
    """Operations a second of an 8-bit product, where this CPU has them."""
    if why_not("int8"):
        return []
    weights, (whole, step, zero) = int8.pack_linear(x_NC.float(), None), int8.in_range(x_NC.float())
    seconds = quickest(lambda: int8.multiply(whole, step, zero, weights), x_NC.device)
    return [2 * x_NC.numel() * len(x_NC) / seconds]
