# SPDX-License-Identifier: Apache-2.0
"""This machine in, which fast paths run on it and why the others do not out."""

from __future__ import annotations

import torch

from inlay.kernels import int8
from inlay.kernels.switch import compiles, has_triton, is_on

OFF = "off: INLAY_FAST=0"


def fast_paths() -> dict[str, str]:
    """Name of each fast path -> `on ...` or `off: why`; each has a plain twin that INLAY_FAST=0 takes instead."""
    cuda = torch.cuda.is_available()
    gpu = "on" if cuda else "off: no CUDA device"
    kernel = gpu if not cuda or has_triton() else "off: triton is not installed"
    found = {
        "quick convolutions (CPU, float32)": "on",
        "LIT window by window (CPU)": "on",
        "8-bit products (CPU, LIT and coarse decoder)": "on" if int8.is_here() else "off: this CPU has no VNNI",
        "mask kernel (CUDA, all criteria)": kernel,
        "LIT kernels (CUDA, half precision)": kernel,
        "CUDA graphs (encode, LIT, decode)": gpu,
    }
    if not is_on():
        found = dict.fromkeys(found, OFF)
    asked = gpu if compiles() else "off: INLAY_FAST=compile turns it on; the first call of each shape takes a minute"
    return found | {"compiled networks (CUDA)": asked}
