# SPDX-License-Identifier: Apache-2.0
"""The tokens of one chunk as bytes, and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inlay.container.consistent import fault_of_times, least_slots, most_slots
from inlay.container.header import FileHeader
from inlay.container.layout import CHUNK_HEAD_BYTES, CRC_BYTES, MAX_CELLS, MAX_SLOTS, MAX_VALUES, ChunkHead, seal
from inlay.container.mask import MASK_HEAD_BYTES, pack_mask, unpack_mask
from inlay.container.q8 import pack_q8, rounded_q8, stored_steps, unpack_q8
from inlay.container.quick import pack_quick, unpack_quick
from inlay.container.tokens import Tokens
from inlay.errors import TokenFileError, UsageError, pick
from inlay.types import Recipe, Span, VideoInfo

Mask = NDArray[np.bool_]

MOST_NUMBERS_PER_BYTE = 4096  # q8: the surest symbol of the narrowest table still costs 1/250 of a bit


@dataclass(frozen=True, kw_only=True)
class Precision:
    """How values become bytes: what they are rounded to, and the two directions."""

    as_stored: Callable[[Tensor, Tensor | None], Tensor]
    pack: Callable[[Tensor, Mask, Tensor | None], bytes]
    unpack: Callable[[bytes, Mask, int], Tensor]
    value_bytes: int | None  # of one number; None where that depends on the data


def finite(values: Tensor) -> bool:
    """Whether all are; a sum tells in a tenth of the time, unless it is too large itself."""
    return math.isfinite(float(values.sum())) or bool(values.isfinite().all())


def _raw(dtype: torch.dtype) -> Precision:
    size, whole = dtype.itemsize, f"<i{dtype.itemsize}"
    bits = torch.int16 if size == 2 else torch.int32

    def as_stored(values: Tensor, steps: Tensor | None) -> Tensor:
        rounded = values.to(dtype)
        if not finite(rounded):
            most = float(values.abs().max())
            raise UsageError(f"value {most:g} is beyond the range of {dtype}; save with precision fp32, bf16 or q8")
        return rounded.float()

    def pack(values: Tensor, mask_THW: Mask, steps: Tensor | None) -> bytes:
        return as_stored(values, steps).to(dtype).view(bits).numpy().astype(whole).tobytes()

    def unpack(data: bytes, mask_THW: Mask, channels: int) -> Tensor:
        numbers = np.frombuffer(data, dtype=whole).astype(whole[1:]).reshape(-1, channels)
        values = torch.from_numpy(numbers).view(dtype).float()
        if not finite(values):
            raise TokenFileError("a value is not a finite number")
        return values

    return Precision(as_stored=as_stored, pack=pack, unpack=unpack, value_bytes=size)


STORAGE = {
    "fp32": _raw(torch.float32),
    "fp16": _raw(torch.float16),
    "bf16": _raw(torch.bfloat16),
    "q8": Precision(as_stored=rounded_q8, pack=pack_q8, unpack=unpack_q8, value_bytes=None),
    "q8-quick": Precision(as_stored=rounded_q8, pack=pack_quick, unpack=unpack_quick, value_bytes=None),
}


def as_stored(tokens: Tokens) -> Tokens:
    """The tokens as a reader will get them: float32 on the CPU, rounded as their recipe says."""
    storage, steps = pick("precision", tokens.recipe.precision, STORAGE), _steps(tokens.recipe)
    parts = [replace(part, values=storage.as_stored(_plain(part.values), steps)) for part in tokens.chunks()]
    joined = Tokens.join(parts)
    return replace(joined, mask=joined.mask.cpu(), seconds=_times(joined))


def pack_chunk(tokens: Tokens, number: int, recipe: Recipe) -> tuple[ChunkHead, bytes]:
    """One chunk as (head, all its bytes), stored as the recipe of its file says; `tokens` has one span."""
    (span,) = tokens.spans
    mask_THW = tokens.mask.cpu().numpy()
    if span.slots > MAX_SLOTS or mask_THW.size > MAX_CELLS or mask_THW.size * tokens.channels > MAX_VALUES:
        raise UsageError(
            f"a chunk of {span.slots:,} slots, {mask_THW.size:,} cells and {tokens.channels} channels is more than "
            f"the format allows ({MAX_SLOTS:,} slots, {MAX_CELLS:,} cells); encode the video in shorter chunks"
        )
    seconds = _times(tokens)
    times = b"" if seconds is None else seconds.numpy().astype("<f8").tobytes()
    mask = pack_mask(mask_THW)
    values = pick("precision", recipe.precision, STORAGE).pack(_plain(tokens.values), mask_THW, _steps(recipe))
    head = ChunkHead(
        number=number, key=span.key, times=seconds is not None, slots=span.slots, frames=span.frames,
        tokens=len(tokens), mask_bytes=len(mask), value_bytes=len(values),
    )  # fmt: skip
    return head, seal(head.pack() + times + mask + values)


def _steps(recipe: Recipe) -> Tensor | None:
    return None if recipe.steps is None else torch.tensor(recipe.steps)


def _plain(values: Tensor) -> Tensor:
    plain = values.detach().float().cpu()
    if not finite(plain):
        raise UsageError(
            "token values hold NaN or infinite numbers; a token file does not, so find out where they arise"
        )
    return plain


def _times(tokens: Tokens) -> Tensor | None:
    if tokens.seconds is None:
        return None
    seconds = tokens.seconds.detach().double().cpu()
    fault = fault_of_times(seconds.numpy())
    if fault is not None:
        raise UsageError(f"{fault}; a token file holds times of frames in a row")
    return seconds


def check_head(head: ChunkHead, header: FileHeader) -> str | None:
    """Why this head cannot be true in a file with this header; None if it can. Nothing is allocated before."""
    cells = head.slots * header.cells
    size = STORAGE[header.recipe.precision].value_bytes
    if not 1 <= head.slots <= MAX_SLOTS or cells > MAX_CELLS or cells * header.channels > MAX_VALUES:
        return f"promises {head.slots} slots of {header.rows} x {header.columns} cells, more than the format allows"
    stride = header.recipe.time_stride
    if head.frames < 1 or not least_slots(head.frames, stride) <= head.slots <= most_slots(head.frames, stride):
        return f"promises {head.frames} frames in {head.slots} slots of {stride}"
    if head.tokens > cells:
        return f"promises {head.tokens} tokens in {cells} cells"
    if head.tokens == 0 and head.value_bytes:
        return f"has {head.value_bytes} bytes for the values of no tokens"
    if head.mask_bytes < MASK_HEAD_BYTES:
        return f"has {head.mask_bytes} bytes of mask, at least {MASK_HEAD_BYTES} are needed"
    if size is None and head.tokens * header.channels > MOST_NUMBERS_PER_BYTE * head.value_bytes:
        found = f"has {head.value_bytes} bytes for {head.tokens} tokens of {header.channels} channels"
        return f"{found}, too few to hold them"
    if size is not None and head.value_bytes != head.tokens * header.channels * size:
        return f"has {head.value_bytes} bytes for {head.tokens} tokens of {header.channels} {header.recipe.precision}"
    return None


def unpack_times(data: bytes, head: ChunkHead) -> NDArray[np.float64]:
    """[frames] the presentation times of a chunk that has them."""
    seconds = np.frombuffer(data, "<f8", head.frames, CHUNK_HEAD_BYTES).astype(np.float64)
    fault = fault_of_times(seconds)
    if fault is not None:
        raise TokenFileError(fault)
    return seconds


def unpack_chunk(data: bytes, head: ChunkHead, header: FileHeader) -> Tokens:
    """The inverse of `pack_chunk`; checksum and head have been checked."""
    at = CHUNK_HEAD_BYTES
    seconds = None
    if head.times:
        seconds = torch.from_numpy(unpack_times(data, head))
        at += head.time_bytes
    shape = (head.slots, header.rows, header.columns)
    if head.tokens == 0:  # which says all of the mask
        mask_THW = np.zeros(shape, dtype=bool)
    else:
        mask_THW = unpack_mask(data[at : at + head.mask_bytes], shape)
    kept = int(mask_THW.sum())
    if kept != head.tokens:
        raise TokenFileError(f"the mask keeps {kept} cells, the head promises {head.tokens} tokens")
    at += head.mask_bytes
    section, steps = data[at:-CRC_BYTES], _steps(header.recipe)
    if kept and steps is not None and not torch.equal(stored_steps(section, header.channels), steps):
        raise TokenFileError("has other steps than the header says")
    values = STORAGE[header.recipe.precision].unpack(section, mask_THW, header.channels)
    return Tokens(
        values=values,
        mask=torch.from_numpy(mask_THW),
        info=VideoInfo(width=header.width, height=header.height, fps=header.frame_rate, frames=head.frames),
        recipe=header.recipe,
        spans=(Span(slots=head.slots, frames=head.frames, key=head.key),),
        seconds=seconds,
    )
