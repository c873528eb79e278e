# SPDX-License-Identifier: Apache-2.0
"""Tensors and their description <-> one safetensors file; fp16, or 8 bits a number with a scale a row (and tap)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inlay.errors import ConfigError, MissingError, UsageError
from inlay.files import atomic

SCALE = "::scale"  # the scales of an 8- or 10-bit tensor stand beside it under its name and this suffix
LOW = "::low"  # so do the two low bits of a 10-bit tensor, four weights a byte
STORED = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What a weight file holds: float32 tensors, the description they were saved with, and their identity."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]
    hash: str


def save_weights(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any], *, stored: str = "fp16") -> None:
    """Write atomically. `stored`: fp32, fp16, bf16, int8 or int10 (matrices only; the rest stays fp16)."""
    from safetensors.torch import save_file

    if stored not in (*STORED, "int8", "int10"):
        raise ConfigError(f"weights are stored as fp32, fp16, bf16, int8 or int10; got {stored!r}")
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        t = tensor.detach().float().cpu().contiguous()
        if stored == "int8" and t.ndim >= 2:
            whole, packed[name + SCALE] = _to_whole(t, most=127)
            packed[name] = whole.to(torch.int8)
        elif stored == "int10" and t.ndim >= 2:
            whole, packed[name + SCALE] = _to_whole(t, most=511)
            packed[name], packed[name + LOW] = _split(whole)
        else:
            packed[name] = t.to(STORED.get(stored, torch.float16))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic(path) as part:
        save_file(packed, part, metadata={"inlay": json.dumps(dict(meta), sort_keys=True)})


def load_weights(path: Path) -> Weights:
    """Read a file written by `save_weights`; every tensor comes back as float32."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise MissingError(f"no weights at {path}; give another path, or train them: inlay train --help")
    try:
        with safe_open(path, framework="pt") as file:
            raw = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no iterator)
            meta = json.loads((file.metadata() or {}).get("inlay", "{}"))
        if not isinstance(meta, dict):
            raise ValueError(f"its description is {type(meta).__name__}, not a JSON object")
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        why = " ".join(str(error)[:200].split())
        raise UsageError(f"{path} is not a readable safetensors file ({why}); fetch or copy it again") from error
    names = [name for name in raw if not name.endswith((SCALE, LOW))]
    try:
        tensors = {name: _restored(name, raw) for name in names}
    except RuntimeError as error:
        raise UsageError(f"{path}: parts of a tensor do not fit together ({error}); fetch or copy it again") from error
    return Weights(tensors=tensors, meta=meta, hash=hash_weights(raw))


def fill_module(module: torch.nn.Module, weights: Weights, *, source: str) -> None:
    """Load into a module, or say which tensor is missing, superfluous, or of the wrong shape."""
    want = module.state_dict()
    for name in sorted(want.keys() | weights.tensors.keys()):
        if name not in weights.tensors:
            raise UsageError(f"{source}: tensor {name} is missing; the file belongs to another network")
        if name not in want:
            raise UsageError(f"{source}: tensor {name} has no place in this network; the file belongs to another one")
        have, need = tuple(weights.tensors[name].shape), tuple(want[name].shape)
        if have != need:
            raise UsageError(f"{source}: tensor {name} has shape {have}, the network needs {need}")
    module.load_state_dict(weights.tensors)


def hash_weights(tensors: Mapping[str, Tensor]) -> str:
    """A short digest of names, shapes, types and bytes: the identity of a set of weights on any machine."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        t = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}|{t.dtype}|{tuple(t.shape)}|".encode())
        digest.update(t.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _to_whole(t: Tensor, *, most: int) -> tuple[Tensor, Tensor]:
    """Whole numbers in [-most, most], and a scale for each output and each tap of a kernel: corners are weaker than
    the centre by far."""
    scale = (t.abs().amax(1, keepdim=True).clamp_min(1e-12) / most).to(torch.float32)
    if t.shape[1] == 1:  # depthwise: as many scales as weights would save nothing
        scale = scale.flatten(1).amax(1).view(-1, *[1] * (t.ndim - 1))
    return (t / scale).round().clamp(-most, most).to(torch.int16), scale


def _split(whole: Tensor) -> tuple[Tensor, Tensor]:
    """The high eight bits in the tensor's shape, and the low two in a row, four weights a byte."""
    low = (whole & 3).flatten().to(torch.uint8)
    low = torch.nn.functional.pad(low, (0, -len(low) % 4)).view(-1, 4)
    return (whole >> 2).to(torch.int8), low[:, 0] | low[:, 1] << 2 | low[:, 2] << 4 | low[:, 3] << 6


def _restored(name: str, raw: Mapping[str, Tensor]) -> Tensor:
    t = raw[name].float()
    if name + LOW in raw:
        low = torch.stack([raw[name + LOW] >> shift & 3 for shift in (0, 2, 4, 6)], dim=1).flatten()
        t = t * 4 + low[: t.numel()].view_as(t)
    return t * raw[name + SCALE].float() if name + SCALE in raw else t
