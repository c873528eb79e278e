# SPDX-License-Identifier: Apache-2.0
"""Where tests of Triton kernels run: on a GPU, or in Triton's interpreter on a CPU. Import it before any kernel."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is first imported
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None and os.environ.get("INLAY_REQUIRE_GPU") != "1",
    reason="triton is not installed; pip install '.[kernels]'",
)
