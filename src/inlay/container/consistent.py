# SPDX-License-Identifier: Apache-2.0
"""Do the chunks of a file decode to what they say? Each may be intact, and still the file make no sense."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inlay.container.header import FileHeader
from inlay.container.layout import Entry

STREAMING = ("clips", "dual-cache", "stateful")
LONGEST_SECONDS = 10**9  # of a video: 31 years
LONGEST_GAP_SECONDS = 20_000  # between two frames: longer ones no mp4 can hold


def least_slots(frames: int, stride: int) -> int:
    """Slots that hold these frames where a chunk goes on from the one before."""
    return -(-frames // stride)


def most_slots(frames: int, stride: int) -> int:
    """Slots that hold these frames where the first slot stands for one frame."""
    return 1 + -(-(frames - 1) // stride)


def inconsistencies(header: FileHeader, entries: Sequence[Entry]) -> list[str]:
    """Why these chunks, though each can be read, do not decode to what they say; empty if they do."""
    found = []
    stride, streaming = header.recipe.time_stride, header.recipe.streaming
    if streaming not in STREAMING:
        found.append(f"the header's 'streaming' should be one of {', '.join(STREAMING)}; found {streaming!a}")
    if entries and entries[0].number == 0 and not entries[0].key:
        found.append("chunk 1 goes on from a chunk before it, and there is none")
    for entry in entries:
        where = f"chunk {entry.number + 1}"
        if streaming == "clips" and not entry.key and entry.number > 0:
            found.append(f"{where} goes on from the one before, in a file of clips on their own")
        goes_on = not entry.key and streaming != "dual-cache"
        slots = (least_slots if goes_on else most_slots)(entry.frames, stride)
        if entry.slots != slots:
            found.append(f"{where} has {entry.slots} slots, and its {entry.frames} frames make {slots}")
    return found


def fault_of_times(seconds: NDArray[np.float64], before: float | None = None) -> str | None:
    """Why these cannot be the presentation times of frames in a row; `before` is the time of the frame before them."""
    if not bool(np.isfinite(seconds).all()):
        return "a presentation time is not a finite number"
    if float(seconds.min()) < 0 or float(seconds.max()) > LONGEST_SECONDS:
        return f"presentation times lie from 0 to {LONGEST_SECONDS:,} s; found {seconds.min():g} to {seconds.max():g}"
    steps = np.diff(seconds) if before is None else np.diff(seconds, prepend=before)
    if len(steps) and float(steps.min()) < 0:
        return "presentation times run backwards"
    if len(steps) and float(steps.max()) > LONGEST_GAP_SECONDS:
        return f"two frames are {steps.max():g} s apart, at most {LONGEST_GAP_SECONDS:,} are allowed"
    return None
