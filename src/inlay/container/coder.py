# SPDX-License-Identifier: Apache-2.0
"""Range coding with integer frequencies: the only file that knows `constriction`.

Every model is a row of whole-number frequencies that add up to 2**24. `constriction` takes floating point weights
and gives each of n symbols one unit beyond its share of 2**24 - n; handed `frequency - 1` it meets a scale of
exactly 1.0, so the numbers it codes with are ours and the file does not depend on anyone's rounding.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from itertools import pairwise
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inlay.errors import MissingError, TokenFileError

TOTAL = 1 << 24  # the frequencies of one model add up to this
TABLES = 44  # bell curves from a standard width of 0.16 to about 200 steps, each 15 or 22 % wider than the one before


def constriction() -> Any:
    """The module, or an error that says how to get it."""
    try:
        return importlib.import_module("constriction")
    except ImportError as error:
        raise MissingError("constriction is not installed; run: pip install constriction") from error


def square_width(table: int) -> int:
    """80 times the squared width of a table: 2, 3, 4, 6, 8, 12, 16, ..."""
    return (2 + (table & 1)) << (table >> 1)


def reach(table: int) -> int:
    """Residuals from -reach to +reach have a symbol of their own; all others share the escape symbol."""
    return 8 + isqrt(square_width(table))


@lru_cache(maxsize=TABLES)
def frequencies(table: int) -> NDArray[np.int64]:
    """[2 * reach + 2]: the residuals in rising order, then the escape. A Student curve with five degrees of freedom.

    Heavier than a Gaussian and rounder than a Laplacian, it fitted real latents as well as either, and it is a ratio
    of whole numbers: no exponential that two machines could round differently.
    """
    a, r = square_width(table), reach(table)
    half = [(a**3 << 64) // (a + 16 * k * k) ** 3 for k in range(r + 1)]
    weights = [*half[:0:-1], *half, half[r]]
    spare, whole = TOTAL - len(weights), sum(weights)
    row = [1 + spare * w // whole for w in weights]
    row[r] += TOTAL - sum(row)
    return np.array(row, dtype=np.int64)


@lru_cache(maxsize=TABLES)
def bell(table: int) -> Any:
    """The `constriction` model of one table."""
    weights = (frequencies(table) - 1).astype(np.float32)
    return constriction().stream.model.Categorical(weights, perfect=False)


class SymbolEncoder:
    """Codes symbols, each with its model, as 32-bit words."""

    def __init__(self) -> None:
        stream = constriction().stream
        self._coder = stream.queue.RangeEncoder()
        self._family = stream.model.Categorical(perfect=False)

    def bits(self, bits: NDArray[np.bool_], ones: NDArray[np.int64]) -> None:
        """Bits, each with the frequency of a one in 1 .. 2**24 - 1."""
        self._coder.encode(bits.astype(np.int32), self._family, _pairs(ones))

    def bells(
        self, symbols: NDArray[np.int32], tables: NDArray[np.int64], ends: NDArray[np.int64] | None = None
    ) -> None:
        """Symbols, each with its table, in waves that end at `ends`, or in one; coded wave by wave, in a wave table by
        table, within one table in the order given: so the calls of a decoder for each wave find them."""
        ends = np.array([len(tables)]) if ends is None else ends
        key = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0)) * TABLES + tables
        if len(ends) * TABLES <= 1 << 16:
            key = key.astype(np.uint16)  # which are sorted in linear time
        order = np.argsort(key, kind="stable")
        symbols, tables = symbols[order], tables[order]
        for start, end in pairwise([0, *(np.flatnonzero(np.diff(key[order])) + 1).tolist(), len(key)]):
            self._coder.encode(symbols[start:end], bell(int(tables[start])))

    def words(self) -> bytes:
        return self._coder.get_compressed().astype("<u4").tobytes()


class SymbolDecoder:
    """Gives back the symbols that the same calls on a `SymbolEncoder` took."""

    def __init__(self, words: bytes) -> None:
        if len(words) % 4:
            raise TokenFileError(f"range-coded data come in words of 4 bytes; found {len(words)} bytes")
        stream = constriction().stream
        self._coder = stream.queue.RangeDecoder(np.frombuffer(words, dtype="<u4").astype(np.uint32))
        self._family = stream.model.Categorical(perfect=False)

    def bits(self, ones: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self._decode(self._family, _pairs(ones)).astype(bool)

    def bells(self, tables: NDArray[np.int64]) -> NDArray[np.int64]:
        order = np.argsort(tables, kind="stable")
        counts = np.bincount(tables, minlength=TABLES)
        parts = [self._decode(bell(int(table)), int(counts[table])) for table in counts.nonzero()[0]]
        symbols = np.empty(len(tables), dtype=np.int64)
        symbols[order] = np.concatenate(parts)
        return symbols

    def _decode(self, *model: Any) -> NDArray[np.int32]:
        try:
            return self._coder.decode(*model)
        except AssertionError as error:  # how constriction says that no symbol has this code
            raise TokenFileError("range-coded data hold a code that belongs to no symbol") from error


def _pairs(ones: NDArray[np.int64]) -> NDArray[np.float32]:
    pairs = np.empty((len(ones), 2), dtype=np.float32)
    pairs[:, 0], pairs[:, 1] = TOTAL - 1 - ones, ones - 1
    return pairs
