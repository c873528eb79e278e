# SPDX-License-Identifier: Apache-2.0
"""A device in, how fast it can multiply and copy out: from the vendor's sheet where we know it, and measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from inlay.research.bench.timing import timed

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


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Ceilings of one device for one arithmetic."""

    flops: float  # a second
    bytes: float  # a second
    source: str

    def floor_ms(self, flops: float, moved: float) -> float:
        """No program that does this work and moves these bytes is quicker."""
        return max(flops / self.flops, moved / self.bytes) * 1e3

    def record(self) -> dict[str, Any]:
        return asdict(self)


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
