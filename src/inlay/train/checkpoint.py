# SPDX-License-Identifier: Apache-2.0
"""The state of a run as two files: tensors as safetensors, the rest as JSON, never half of either.

The JSON file names its tensor file and is replaced last: until then the old pair stands, whatever happens.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from inlay.errors import OutputError, UsageError
from inlay.files import write_atomic
from inlay.train.config import TrainError
from inlay.weightfile import load_weights

FORMAT = 1
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything a run needs to go on."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]  # JSON values; `step` is always there

    @property
    def step(self) -> int:
        return int(self.facts["step"])


def save_checkpoint(folder: Path, name: str, checkpoint: Checkpoint) -> None:
    """Write `<name>.json` and `<name>-<step>.safetensors`; then remove the tensors of the one before."""
    from safetensors.torch import save

    data = save({k: t.detach().cpu().contiguous() for k, t in checkpoint.tensors.items()})
    tensors = folder / f"{name}-{checkpoint.step:08d}.safetensors"
    facts = {"format": FORMAT, "tensors": tensors.name, "bytes": len(data), **checkpoint.facts}
    before = folder / f"{name}.json"
    comfort = f"the one before it, {before}, is intact" if before.is_file() else ""
    with explained(f"the checkpoint of step {checkpoint.step}", len(data), comfort):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(tensors, data, durable=True)
        write_atomic(before, json.dumps(facts).encode(), durable=True)
    for old in folder.glob(f"{name}-*.safetensors"):
        if old != tensors:
            old.unlink(missing_ok=True)


def load_checkpoint(folder: Path, name: str) -> Checkpoint | None:
    """The checkpoint of that name, or None where there is none."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / f"{name}.json"
    if not path.is_file():
        return None
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        tensors = folder / facts["tensors"]
        if tensors.stat().st_size != facts["bytes"]:
            raise TrainError(f"{tensors}: {tensors.stat().st_size} bytes, {facts['bytes']} were written; copy it again")
        return Checkpoint(tensors=load_file(tensors), facts=facts)
    except (ValueError, KeyError, OSError, SafetensorError) as error:
        raise TrainError(f"{path}: not a readable checkpoint ({error}); copy the run's folder again") from error


@contextmanager
def explained(what: str, size_bytes: int = 0, comfort: str = "") -> Iterator[None]:
    """Turn a failed write into an error that says what could not be written, why, and what is left."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError, OutputError) as error:
        cause = error.__cause__ if isinstance(error, OutputError) else error
        code = cause.errno if isinstance(cause, OSError) else None
        full = code in DISK_FULL or "No space left" in str(error)
        reason = "the disk is full" if full else (os.strerror(code) if code else str(error))
        size = f" ({size_bytes / 1e6:.1f} MB)" if size_bytes else ""
        cure = "make room, then resume" if full else "name a place that can be written to"
        raise OutputError("; ".join(filter(None, [f"cannot write {what}{size}: {reason}", comfort, cure]))) from error


def pack_optimizers(optimizers: list[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Optimiser state as named tensors: `optim.<which>.<parameter>.<name>`."""
    return {
        f"optim.{k}.{index}.{name}": torch.as_tensor(value)
        for k, optimizer in enumerate(optimizers)
        for index, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
    }


def unpack_optimizers(optimizers: list[torch.optim.Optimizer], tensors: dict[str, Tensor]) -> None:
    """Put the state back; settings such as the learning rate come from the configuration."""
    for k, optimizer in enumerate(optimizers):
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            parts = key.split(".", 3)
            if parts[0] == "optim" and parts[1] == str(k):
                state.setdefault(int(parts[2]), {})[parts[3]] = tensor
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        for parameter, values in optimizer.state.items():
            for name, value in values.items():
                if value.shape == parameter.shape:  # fused kernels want the parameter's own memory layout
                    values[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def random_state() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The generators of torch, numpy and Python, as (tensors, JSON values)."""
    kind, keys, place, gauss, cached = np.random.get_state()  # noqa: NPY002 (the global one is what others may use)
    tensors = {"random.torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    numpy = [str(kind), np.asarray(keys).tolist(), int(place), int(gauss), float(cached)]
    return tensors, {"python": random.getstate(), "numpy": numpy}


def restore_random(tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    torch.set_rng_state(tensors["random.torch"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
    kind, keys, place, gauss, cached = facts["numpy"]
    np.random.set_state((kind, np.asarray(keys, dtype=np.uint32), place, gauss, cached))  # noqa: NPY002
    version, inner, last = facts["python"]
    random.setstate((version, tuple(inner), last))


def seed_random(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)


def start_from(module: nn.Module, path: str | Path) -> tuple[str, ...]:
    """Fill `module`; returns the names of the blocks that are new.

    A block more than the file has is welcome: residual blocks begin as the identity, so a trained network may grow and
    still give what it gave. Anything else that does not fit is an error.
    """
    file = load_weights(Path(path))
    want = module.state_dict()
    for name, tensor in file.tensors.items():
        if name not in want:
            raise UsageError(f"{path}: tensor {name} has no place in this network; only smaller ones can be grown")
        if tensor.shape != want[name].shape:
            have, need = tuple(tensor.shape), tuple(want[name].shape)
            raise UsageError(f"{path}: tensor {name} has shape {have}, the network needs {need}")
    new = sorted({_block(name) for name in want.keys() - file.tensors.keys()})
    known = {_block(name) for name in file.tensors}
    strays = [name for name in new if name in known or not re.search(r"\.\d+$", name)]
    if strays:
        raise UsageError(f"{path}: tensors of {strays[0]} are missing; the file belongs to another network")
    module.load_state_dict(file.tensors, strict=False)
    return tuple(new)


def _block(name: str) -> str:
    """`decoder.coarse.3.conv1.weight` belongs to the block `decoder.coarse.3`."""
    found = re.match(r"(.*?\.\d+)\.", name)
    return found.group(1) if found else name
