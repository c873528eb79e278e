# SPDX-License-Identifier: Apache-2.0
"""Read checkpoints as others publish them: safetensors, PyTorch pickles, TorchScript; say which tensor is broken.

Pickles and TorchScript are programs. They are read only where the caller says they are trusted, and pickles even then
with PyTorch's reader that builds nothing but tensors and a few plain classes.
"""

from __future__ import annotations

import argparse
import collections
import json
import pathlib
import pickle
import pickletools
import re
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inlay.errors import MissingError, UsageError
from inlay.weightfile import Weights, fill_module, hash_weights

PICKLES = {".pt", ".pth", ".ckpt", ".bin", ".tar"}
SCRIPTS = {".jit", ".ts"}
HEADER_LIMIT = 100_000_000  # bytes, the format's own
# what checkpoints hold besides tensors: command-line settings, counters, paths
PLAIN: list[Any] = [
    argparse.Namespace,
    collections.OrderedDict,
    collections.defaultdict,
    pathlib.PosixPath,
    pathlib.PurePosixPath,
]
RECORD = re.compile(rb"PK\x03\x04.{22}(..)(..)[^/]+/(data\.pkl|data/(\d+))", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class PublishedCheckpoint:
    """Tensors by name, and whatever stood beside them."""

    tensors: dict[str, Tensor]
    beside: dict[str, Any] = field(default_factory=dict)
    source: str


def read_checkpoint(path: Path, *, trust: bool) -> PublishedCheckpoint:
    """One file; its suffix says what it is."""
    if not path.is_file():
        raise MissingError(f"no weights at {path}; give the path of a file, or fetch them: inlay fetch NAME")
    if path.suffix == ".safetensors":
        return _checked(PublishedCheckpoint(tensors=_read_safetensors(path), source=str(path)))
    if path.suffix not in PICKLES | SCRIPTS:
        known = ", ".join(sorted({".safetensors"} | PICKLES | SCRIPTS))
        raise UsageError(f"{path}: weights are recognised by their suffix ({known}); rename or convert the file")
    check_trust(path, trust=trust)
    check_sums(path)
    if path.suffix in SCRIPTS:
        return _checked(
            PublishedCheckpoint(tensors=dict(load_script(path, trust=trust).state_dict()), source=str(path))
        )
    return _checked(_read_pickle(path))


def check_trust(path: Path, *, trust: bool) -> None:
    if not trust:
        kind = "TorchScript" if path.suffix in SCRIPTS else "a pickle"
        raise UsageError(
            f"{path} is {kind}, which can run code of whoever made it; "
            "if you trust its maker, say so (trust=True); a safetensors file needs no trust",
            about="trust",
        )


def load_script(path: Path, *, trust: bool) -> torch.jit.ScriptModule:
    """A TorchScript module on the CPU."""
    check_trust(path, trust=trust)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript is what was published
            return torch.jit.load(str(path), map_location="cpu")
    except (RuntimeError, ValueError, OSError) as error:
        raise UsageError(f"{path} is not a readable TorchScript file{_first_line(error)}; fetch it again") from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        cut = cut_tensor(path)
        where = f": tensor {cut} is cut off" if cut else _first_line(error)
        raise UsageError(f"{path} is damaged{where}; fetch or copy it again") from error


def cut_tensor(path: Path) -> str | None:
    """The first tensor of a safetensors file that does not fit into it."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, HEADER_LIMIT)))
        spans = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
        inside = path.stat().st_size - 8 - length
        return next((n for n, (_, end) in sorted(spans.items(), key=lambda s: s[1]) if end > inside), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _read_pickle(path: Path) -> PublishedCheckpoint:
    try:
        with torch.serialization.safe_globals(PLAIN):
            tree = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UsageError(
            f"{path} asks for more than tensors{_refused(error)}; refused even where it is trusted"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise UsageError(f"{path} is damaged{broken_storage(path) or _first_line(error)}; fetch it again") from error
    if not isinstance(tree, Mapping):
        raise UsageError(f"{path} holds a {type(tree).__name__}, not tensors by name")
    inner = next((tree[key] for key in ("state_dict", "model") if isinstance(tree.get(key), Mapping)), tree)
    tensors = {str(name): value for name, value in inner.items() if isinstance(value, Tensor)}
    if not tensors:
        raise UsageError(f"{path} holds no tensors by name; is it a checkpoint of a model?")
    beside = {str(k): v for k, v in tree.items() if inner is not tree and v is not inner}
    return PublishedCheckpoint(tensors=tensors, beside=beside, source=str(path))


def _refused(error: Exception) -> str:
    found = re.search(r"GLOBAL ([\w.]+)", str(error))
    return f" ({found.group(1)})" if found else _first_line(error)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f" ({lines[0].split('. ')[0][:200]})" if lines else ""


def _checked(checkpoint: PublishedCheckpoint) -> PublishedCheckpoint:
    for name, tensor in checkpoint.tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise UsageError(f"{checkpoint.source}: tensor {name} has numbers that are not finite; fetch it again")
    return checkpoint


def strip_prefix(tensors: Mapping[str, Tensor], anchor: str) -> dict[str, Tensor]:
    """Names as the network has them: without what training wrappers put before them, and without their other parts."""
    prefixes = sorted((n.removesuffix(anchor) for n in tensors if n.endswith(anchor)), key=len)
    prefix = prefixes[0] if prefixes else ""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def fill_network(network: nn.Module, tensors: Mapping[str, Tensor], *, source: str, unused: Iterable[str] = ()) -> str:
    """Load into a network, or say which tensor is wrong; returns the identity of the weights.

    Names with one of the words of `unused` in them have no place in the network and are left out.
    """
    words = tuple(unused)
    want = network.state_dict()
    mine = {n: t.float() for n, t in tensors.items() if n in want or not any(word in n for word in words)}
    fill_module(network, Weights(tensors=mine, meta={}, hash=""), source=source)
    return hash_weights(mine)


def check_sums(path: Path) -> None:
    """Refuse an archive with a wrong byte: PyTorch's own reader does not look."""
    bad = _first_bad(path)
    if bad is not None:
        raise UsageError(f"{path} is damaged{broken_storage(path) or f': its part {bad}'}; fetch it again")


def broken_storage(path: Path) -> str | None:
    """`: tensor NAME is cut off` (or is damaged), as far as the file still tells."""
    data = path.read_bytes()
    records = list(RECORD.finditer(data))
    keys = [m.group(4).decode() for m in records if m.group(4)]
    head = next((m for m in records if not m.group(4)), None)
    if head is None or not keys:
        return None
    bad, how = _first_bad(path), "damaged"
    if bad is None:
        bad, how = keys[-1], "cut off"  # a file without its end stops inside the last record that began
    start = head.start() + 30 + sum(int.from_bytes(head.group(i), "little") for i in (1, 2))
    names = _names(data[start:])
    return f": tensor {names[bad]} is {how}" if bad in names else None


def _first_bad(path: Path) -> str | None:
    """The record whose checksum is wrong, if the archive has its end."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = archive.testzip()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return None
    return found.rsplit("/", 1)[-1] if found else None


def _names(data: bytes) -> dict[str, str]:
    """Storage key -> name of the tensor that lies there, from the pickle's opcodes: nothing of it is run.

    A tensor's name comes before its storage, a tuple ("storage", type, key, device, numbers) that BINPERSID ends.
    """
    found: dict[str, str] = {}
    words: list[str | None] = []  # None where a tuple begins
    memo: dict[Any, str] = {}
    last: str | None = None  # the string that the opcode before brought
    try:
        for code, value, _ in pickletools.genops(data):
            if code.name.endswith("BINPUT") and last is not None:
                memo[value] = last
            last = value if "UNICODE" in code.name else memo.get(value) if code.name.endswith("BINGET") else None
            if code.name == "MARK" or last is not None:
                words.append(last)
            elif code.name == "BINPERSID":
                start = max(i for i, word in enumerate(words) if word is None)
                key, words = words[start + 2], words[:start]
                found.setdefault(str(key), next(word for word in reversed(words) if word is not None))
    except (ValueError, IndexError, StopIteration, UnicodeError):  # a broken pickle names what comes before the break
        return found
    return found
