# SPDX-License-Identifier: Apache-2.0
"""Token files (`*.inlay`): write them, read them, list what is in them. FORMAT.md is the written specification."""

from __future__ import annotations

from inlay.container.chunk import as_stored
from inlay.container.q8 import choose_steps, dequantise, quantise
from inlay.container.reader import TokenReader, summary, verify
from inlay.container.reader import open_tokens as open
from inlay.container.scan import Unfinished, part_of, unfinished
from inlay.container.writer import TokenWriter, save, to_bytes

__all__ = [
    "TokenReader",
    "TokenWriter",
    "Unfinished",
    "as_stored",
    "choose_steps",
    "dequantise",
    "open",
    "part_of",
    "quantise",
    "save",
    "summary",
    "to_bytes",
    "unfinished",
    "verify",
]
