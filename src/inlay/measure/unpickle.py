# SPDX-License-Identifier: Apache-2.0
"""Read a pickle of numpy arrays without running anything of it; one that asks for anything else is refused."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from inlay.errors import MissingError

FORMATS = {"f2", "f4", "f8"}


class Dtype:
    """Stands for numpy.dtype: remembers which of a few number formats is meant."""

    def __init__(self, code: object = "", *flags: object) -> None:
        if code not in FORMATS:
            raise pickle.UnpicklingError(f"a number format {code!r}")
        self.code, self.order = str(code), "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        if order not in ("<", ">", "="):
            raise pickle.UnpicklingError(f"a byte order {order!r}")
        self.order = order


class Shell:
    """Stands for an array under construction; filled by the state that follows it."""

    array: np.ndarray | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, by_column, data = state
        if not (isinstance(dtype, Dtype) and isinstance(data, bytes) and isinstance(shape, tuple)):
            raise pickle.UnpicklingError("an array that is not plain numbers")
        flat = np.frombuffer(data, np.dtype(dtype.order + dtype.code))
        if not all(type(n) is int and n >= 0 for n in shape) or math.prod(shape) != flat.size:
            raise pickle.UnpicklingError(f"an array of shape {shape} from {flat.size} numbers")
        self.array = flat.reshape(shape, order="F" if by_column else "C")


class NdArray:
    """Stands for the name numpy.ndarray, which array pickles pass along and which nothing needs to call."""


def reconstruct(*_: object) -> Shell:
    return Shell()


KNOWN = {
    ("numpy.core.multiarray", "_reconstruct"): reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): reconstruct,
    ("numpy", "ndarray"): NdArray,
    ("numpy", "dtype"): Dtype,
}


class ArrayUnpickler(pickle.Unpickler):
    """Knows four names and gives harmless stand-ins for them, so no code of another library is ever called."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in KNOWN:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return KNOWN[module, name]


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
    if isinstance(tree, Shell) and tree.array is not None:
        return tree.array
    if isinstance(tree, dict) and all(isinstance(k, str) for k in tree):
        return {k: _arrays(v) for k, v in tree.items()}
    raise pickle.UnpicklingError(f"a {type(tree).__name__} among its arrays")
