# SPDX-License-Identifier: Apache-2.0
"""Read published pickles of numpy arrays without running anything of them, and rename their arrays to our names."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from inlay.errors import MissingError

FORMATS = {"f2", "f4", "f8"}
BRANCHES = {
    "Branch_0/Conv3d_0a_1x1": "b0",
    "Branch_1/Conv3d_0a_1x1": "b1a",
    "Branch_1/Conv3d_0b_3x3": "b1b",
    "Branch_2/Conv3d_0a_1x1": "b2a",
    "Branch_2/Conv3d_0b_3x3": "b2b",
    "Branch_3/Conv3d_0b_1x1": "b3",
}
STEM = ("Conv3d_1a_7x7", "Conv3d_2b_1x1", "Conv3d_2c_3x3")
LOGITS = "Logits/Conv3d_0c_1x1"


KNOWN = {  # all that a pickle of arrays asks for
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


class ArrayUnpickler(pickle.Unpickler):
    """Knows the names that numpy's own arrays need, and refuses every other."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in KNOWN:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def read_pickle(file: IO[bytes], *, name: str) -> Mapping[str, Any]:
    """Nested dictionaries of arrays."""
    try:
        return _arrays(ArrayUnpickler(file).load())
    except pickle.UnpicklingError as error:
        raise MissingError(f"{name} asks for {error}, which weights never need; refused") from error
    except MissingError:
        raise
    except Exception as error:  # a crafted pickle can make the reader fail in any way
        raise MissingError(f"{name} cannot be read as weights ({type(error).__name__}: {error})") from error


def _arrays(tree: object) -> Any:
    if isinstance(tree, np.ndarray) and tree.dtype.str[1:] in FORMATS:
        return tree
    if isinstance(tree, dict) and all(isinstance(k, str) for k in tree):
        return {k: _arrays(v) for k, v in tree.items()}
    raise pickle.UnpicklingError(f"a {type(tree).__name__} among its arrays")


def lpips_tensors(tree: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """VGG16's thirteen convolutions and the five linear heads."""
    out: dict[str, np.ndarray] = {}
    for i in range(13):
        conv = _at(tree, "VGG16_0", f"Conv_{i}")
        out[f"conv{i}.weight"], out[f"conv{i}.bias"] = _kernel(conv), _at(conv, "bias")
    for i in range(5):
        out[f"lin{i}"] = _at(tree, f"NetLinLayer_{i}", "Conv_0", "kernel").reshape(-1)
    return out


def i3d_tensors(tree: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The stem, the nine mixed blocks under `body`, and the logits."""
    params, stats = _at(tree, "params"), _at(tree, "batch_stats")
    out: dict[str, np.ndarray] = {}
    for name in STEM:
        out |= _unit(name, _at(params, name), _at(stats, name))
    for block in sorted(k for k in params if k.startswith("Mixed_")):
        for theirs, ours in BRANCHES.items():
            out |= _unit(f"body.{block}.{ours}", _at(params, block, theirs), _at(stats, block, theirs))
    logits = _at(params, LOGITS, "Conv_0")
    out["Logits.weight"], out["Logits.bias"] = _kernel(logits), _at(logits, "bias")
    return out


def _unit(name: str, params: Mapping[str, Any], stats: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {  # the normalisation's numbers are kept as (1, 1, 1, 1, C) there
        f"{name}.weight": _kernel(_at(params, "Conv_0")),
        f"{name}.bias": _at(params, "BatchNorm_0", "bias").reshape(-1),
        f"{name}.mean": _at(stats, "BatchNorm_0", "mean").reshape(-1),
        f"{name}.var": _at(stats, "BatchNorm_0", "var").reshape(-1),
    }


def _kernel(conv: Mapping[str, Any]) -> np.ndarray:
    kernel = _at(conv, "kernel")
    return np.moveaxis(kernel, (-1, -2), (0, 1))


def _at(tree: Any, *path: str) -> Any:
    for step in path:
        if not isinstance(tree, Mapping) or step not in tree:
            raise MissingError(f"the weights have no {'/'.join(path)}; this is another network's file")
        tree = tree[step]
    return tree
