# SPDX-License-Identifier: Apache-2.0
"""Write parts as files that are checked: ONNX against ONNX Runtime, torch.export against itself read back."""

from __future__ import annotations

import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inlay.errors import ConfigError, InlayError, UsageError, pick, require
from inlay.export.parts import PARTS, Part, Shape, build
from inlay.files import writing
from inlay.kernels.switch import at_level
from inlay.tokenizer import Tokenizer

TOLERANCE = 1e-3  # of the answer's size: float32 in another order


@dataclass(frozen=True, kw_only=True)
class ExportConfig(Shape):
    """Which parts, for which clips; a graph serves one shape."""

    parts: tuple[str, ...] = tuple(PARTS)
    form: str = "onnx"

    def __post_init__(self) -> None:
        pick("format", self.form, FORMATS)
        for part in self.parts:
            pick("part", part, PARTS)
        if not self.parts or min(self.height, self.width, self.frames, self.batch) < 1:
            raise ConfigError("a graph needs at least one part, and height, width, frames and batch of 1 or more")


def export(tokenizer: Tokenizer, folder: Path, config: ExportConfig, *, force: bool = False) -> dict[str, Any]:
    """Write one file a part; the record tells how far each is from PyTorch."""
    if tokenizer.device.type != "cpu" or tokenizer.dtype != torch.float32:
        raise UsageError(f"graphs are made on the CPU in float32; got {tokenizer.device}, {tokenizer.dtype}")
    targets = {name: folder / f"{tokenizer.spec.name}.{name}.{SUFFIX[config.form]}" for name in config.parts}
    there = [path for path in targets.values() if path.exists()]
    if there and not force:
        raise UsageError(f"{there[0]}: exists already; overwrite it, or give another folder", about="force")
    parts = {name: build(tokenizer, name, config) for name in targets}  # all, before anything is written
    rows = {name: write_checked(parts[name], path, config.form) for name, path in targets.items()}
    return {
        "backbone": tokenizer.spec.name,
        "weights": tokenizer.spec.weight_hash,
        "format": config.form,
        "parts": rows,
    }


def write_checked(part: Part, path: Path, form: str) -> dict[str, Any]:
    """A file that gives another answer than PyTorch, or was never finished, does not come to stand at `path`."""
    with writing(path), tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}.") as folder:
        fresh = Path(folder) / path.name
        answer = FORMATS[form](part, fresh)
        with at_level("0"):  # the graph is that of the plain form
            found = difference(answer, part())
        if not found["same"]:
            raise InlayError(f"{path}: the graph differs from PyTorch by {found['relative']:.2e} of its size; not kept")
        size = fresh.stat().st_size
        fresh.replace(path)
    inputs = {name: list(tensor.shape) for name, tensor in part.inputs.items()}
    return {"file": str(path), "inputs": inputs, "bytes": size, **found}


def to_onnx(part: Part, path: Path) -> Tensor:
    require("onnxscript", extra="export")
    runtime = require("onnxruntime", extra="export")
    with torch.inference_mode(), hushed():
        torch.onnx.export(
            part.module, tuple(part.inputs.values()), str(path), dynamo=True, external_data=False, verbose=False,
            input_names=list(part.inputs), output_names=[part.output],
        )  # fmt: skip
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (answer,) = session.run(None, {name: t.numpy() for name, t in part.inputs.items()})
    return torch.from_numpy(answer)


def to_program(part: Part, path: Path) -> Tensor:
    with torch.no_grad(), hushed():
        program = torch.export.export(part.module, tuple(part.inputs.values()), strict=False)
        buffer = io.BytesIO()  # torch's own writer takes the process down where a disk is full
        torch.export.save(program, buffer)
        path.write_bytes(buffer.getbuffer())
        return torch.export.load(path).module()(*part.inputs.values())


@contextmanager
def hushed() -> Iterator[None]:
    """Without what the exporters say about their own insides."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


FORMATS: dict[str, Callable[[Part, Path], Tensor]] = {"onnx": to_onnx, "torch": to_program}
SUFFIX = {"onnx": "onnx", "torch": "pt2"}


def difference(answer: Tensor, want: Tensor) -> dict[str, Any]:
    """Masks must be equal, numbers close."""
    if want.dtype == torch.bool:
        unlike = int((answer != want).sum())
        return {"relative": unlike / want.numel(), "same": unlike == 0}
    relative = float((answer - want).norm() / want.norm().clamp_min(1e-12))
    return {"relative": relative, "same": relative < TOLERANCE}
