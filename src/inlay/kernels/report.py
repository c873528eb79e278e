# SPDX-License-Identifier: Apache-2.0
"""Which fast paths run on this machine, and why the others do not: the table of `rule` in words."""

from __future__ import annotations

from inlay.kernels.rule import PATHS, FastPath, why_not


def fast_paths() -> dict[str, str]:
    """Title of each fast path -> `on` or `off: why`; each has a plain twin that INLAY_FAST=0 takes instead."""
    reasons = {described(path): why_not(name) for name, path in PATHS.items()}
    return {title: f"off: {reason}" if reason else "on" for title, reason in reasons.items()}


def described(path: FastPath) -> str:
    """`LIT kernels (CUDA, bfloat16 or float16)`: the title and what tensors it is for."""
    dtypes = [str(dtype).removeprefix("torch.") for dtype in path.dtypes]
    return f"{path.title} ({', '.join([path.device.upper(), *([' or '.join(dtypes)] if dtypes else [])])})"
