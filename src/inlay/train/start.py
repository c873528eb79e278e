# SPDX-License-Identifier: Apache-2.0
"""Begin a network from a weight file; blocks the file does not have begin as they were made."""

from __future__ import annotations

import re
from pathlib import Path

from torch import nn

from inlay.errors import UsageError
from inlay.weightfile import load_weights


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
