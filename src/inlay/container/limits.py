# SPDX-License-Identifier: Apache-2.0
"""What a file may ask of its reader, in numbers (FORMAT.md, section 9); counted before anything is allocated."""

from __future__ import annotations

from collections.abc import Sequence

from inlay.container.header import FileHeader
from inlay.container.layout import Entry
from inlay.errors import TokenFileError

FREE_WORK = 1 << 22  # what the smallest file may ask for
WORK_PER_BYTE = 512  # and what each of its bytes adds
FREE_CELLS = 1 << 18  # that one chunk of the smallest file may have, for a network holds a chunk in memory at once
CELLS_PER_BYTE = 16  # and what each byte of the file adds
EMPTY_CELLS = 8  # cells of a chunk without tokens that count as one
WAVE_WORK = 256  # of a wave of the mask, however few cells it has
VALUE_WAVE_WORK = 512  # of a wave of q8 numbers
TOKEN_WORK = 8  # of a token besides its numbers, in numbers


def work(chunk: Entry, header: FileHeader) -> int:
    """The units of work that a chunk asks for: one is about a cell of its mask."""
    cells = chunk.slots * header.cells
    if chunk.tokens == 0:
        return cells // EMPTY_CELLS
    waves = 4 * chunk.slots + 2 * header.rows + header.columns
    numbers = chunk.tokens * (header.channels + TOKEN_WORK)
    return cells + WAVE_WORK * waves + VALUE_WAVE_WORK * min(waves, chunk.tokens) + 2 * numbers


def check_work(header: FileHeader, entries: Sequence[Entry], size: int) -> None:
    """Refuse a file that asks for more than its size justifies."""
    largest, may = max(entry.slots for entry in entries) * header.cells, FREE_CELLS + CELLS_PER_BYTE * size
    if largest > may:
        raise TokenFileError(
            f"has a chunk of {largest:,} cells, and a file of {size:,} bytes may have chunks of {may:,}; if you know "
            "where it comes from, allow it",
            about="large",
        )
    asked, most = sum(work(entry, header) for entry in entries), FREE_WORK + WORK_PER_BYTE * size
    if asked > most:
        frames = sum(entry.frames for entry in entries)
        raise TokenFileError(
            f"asks for {asked:,} units of work ({frames:,} frames of {header.rows} x {header.columns} cells), and a "
            f"file of {size:,} bytes may ask for {most:,}; if you know where it comes from, allow it",
            about="large",
        )
