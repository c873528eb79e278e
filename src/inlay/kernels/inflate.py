# SPDX-License-Identifier: Apache-2.0
"""Inflate by ISA-L where it is installed: twice as fast as zlib, which stays the oracle."""

from __future__ import annotations

import zlib
from typing import Any

from inlay.kernels.rule import why_not


def inflate(data: bytes, size: int) -> bytes | None:
    """The `size` bytes of a raw deflate stream, which is all that is ever held; None where it is not just that."""
    library: Any = zlib
    if not why_not("inflate"):
        from isal import isal_zlib as library  # not on every platform
    coder = library.decompressobj(-15)
    try:
        found: bytes = coder.decompress(data, size)
        ended = coder.eof or not coder.decompress(coder.unconsumed_tail, 1)
    except library.error:
        return None
    return found if len(found) == size and ended and coder.eof and not coder.unused_data else None
