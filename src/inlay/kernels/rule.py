# SPDX-License-Identifier: Apache-2.0
"""The one rule that says when a fast twin may run, and the table of fast paths it reads.

A kernel adds what only it knows, such as the sizes it was written for, in a test of its own beside it. `inlay doctor`
prints the same table (`fast_paths`), so what it lists is what runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from inlay.kernels import bf16, int8
from inlay.kernels.switch import compiles, has_cuda, has_isal, has_triton, is_on

Name = Literal[
    "winograd", "windows", "int8", "bf16", "still", "inflate", "pixels", "scan", "cuts", "norms", "taps", "lit",
    "graphs", "compiled"
]  # fmt: skip
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, kw_only=True)
class FastPath:
    """What a fast twin asks of this process and of the tensors it is given."""

    title: str  # what `inlay doctor` calls it
    device: str
    dtypes: tuple[torch.dtype, ...] = ()  # empty: any
    needs: tuple[str, ...] = ("on",)  # keys of NEEDS, the first unmet one is reported
    inference: bool = True  # gradients must be off altogether: it reads weights that the rule is not shown
    nests: bool = True  # may be part of a CUDA graph that is being captured


PATHS: dict[Name, FastPath] = {
    "winograd": FastPath(title="quick convolutions", device="cpu", dtypes=(torch.float32,), inference=False),
    "windows": FastPath(title="LIT window by window", device="cpu"),
    "int8": FastPath(
        title="8-bit products of LIT and the first part of the decoder",
        device="cpu", dtypes=(torch.float32,), needs=("on", "vnni"),
    ),
    "bf16": FastPath(
        title="16-bit products of LIT's attention and the last part of the decoder",
        device="cpu", dtypes=(torch.float32,), needs=("on", "avx512_bf16"),
    ),
    "still": FastPath(title="slots that repeat are copied", device="cpu"),
    "inflate": FastPath(title="caches read by ISA-L in place of zlib", device="cpu", needs=("on", "isal")),
    "pixels": FastPath(
        title="pixel kernels",
        device="cuda", dtypes=(torch.uint8, torch.float32, *HALF), needs=("on", "cuda", "triton"), inference=False,
    ),
    "scan": FastPath(
        title="mask kernels",
        device="cuda", dtypes=(torch.float32, *HALF), needs=("on", "cuda", "triton"), inference=False,
    ),
    "cuts": FastPath(
        title="cut kernels",
        device="cuda", dtypes=(torch.uint8, torch.float32), needs=("on", "cuda", "triton"), inference=False,
    ),
    "norms": FastPath(title="norm kernels of Cosmos", device="cuda", dtypes=HALF, needs=("on", "cuda", "triton")),
    "taps": FastPath(
        title="convolution kernels of Cosmos", device="cuda", dtypes=HALF, needs=("on", "cuda", "triton")
    ),
    "lit": FastPath(title="LIT kernels", device="cuda", dtypes=HALF, needs=("on", "cuda", "triton")),
    "graphs": FastPath(title="CUDA graphs", device="cuda", needs=("on", "cuda"), nests=False),
    "compiled": FastPath(title="compiled networks", device="cuda", needs=("cuda", "compile")),
}  # fmt: skip

NEEDS: dict[str, tuple[Callable[[], bool], str]] = {  # name -> whether it is met, and what to say where it is not
    "on": (is_on, "INLAY_FAST=0"),
    "compile": (compiles, "INLAY_FAST=compile turns it on; the first call of each shape takes a minute"),
    "cuda": (has_cuda, "no CUDA device"),
    "triton": (has_triton, "triton is not installed"),
    "isal": (has_isal, "isal is not installed"),
    "vnni": (int8.is_here, "this CPU has no VNNI"),
    "avx512_bf16": (bf16.is_here, "this CPU has no bfloat16 instructions"),
}


def may_run(name: Name, *, tensors: Sequence[Tensor]) -> bool:
    """Say whether a fast twin may stand in for its plain one in this call.

    Args:
        name: a key of PATHS.
        tensors: what the twin is given. All must be on its device and of its dtypes, and none may want a gradient.
            A twin that reads weights it is not shown (`FastPath.inference`) is refused while gradients are enabled,
            and under autocast, which would turn some of those weights into another dtype than others.

    Never while torch compiles, exports or traces: the graph is made of the plain form.
    """
    path = PATHS[name]
    return (
        bool(tensors)
        and all(t.device.type == path.device and (not path.dtypes or t.dtype in path.dtypes) for t in tensors)
        and not (torch.is_grad_enabled() and (path.inference or any(t.requires_grad for t in tensors)))
        and not (path.inference and torch.is_autocast_enabled(path.device))
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and (path.nests or path.device != "cuda" or not torch.cuda.is_current_stream_capturing())
        and not why_not(name)
    )


def why_not(name: Name) -> str:
    """The first thing this process lacks for a fast path; empty where it lacks nothing."""
    for need in PATHS[name].needs:
        met, missing = NEEDS[need]
        if not met():
            return missing
    return ""


def fast_paths() -> dict[str, str]:
    """Title of each fast path -> `on` or `off: why`; each has a plain twin that INLAY_FAST=0 takes instead."""
    reasons = {described(path): why_not(name) for name, path in PATHS.items()}
    return {title: f"off: {reason}" if reason else "on" for title, reason in reasons.items()}


def described(path: FastPath) -> str:
    """`LIT kernels (CUDA, bfloat16 or float16)`: the title and what tensors it is for."""
    dtypes = [str(dtype).removeprefix("torch.") for dtype in path.dtypes]
    return f"{path.title} ({', '.join([path.device.upper(), *([' or '.join(dtypes)] if dtypes else [])])})"


def compile_halves(network: object, device: torch.device, *, backend: str = "inductor") -> bool:
    """Compile encoder and decoder in place where INLAY_FAST=compile asks for it and a GPU repays it.

    Whether anything was compiled; the first call of each shape is slow, and shapes are not mixed. A test may name a
    backend that needs no compiler.
    """
    parts = [getattr(network, name, None) for name in ("encoder", "decoder")]
    found = [part for part in parts if isinstance(part, torch.nn.Module)]
    if device.type != PATHS["compiled"].device or why_not("compiled"):
        return False
    for part in found:
        part.compile(dynamic=False, backend=backend)
    return bool(found)
