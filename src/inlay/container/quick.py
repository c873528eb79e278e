# SPDX-License-Identifier: Apache-2.0
"""The value section of precision q8-quick: the numbers of q8, coded so that a reader needs few large calls.

Every channel is a row of bytes, or of differences from the slot before, from the token before, or both. Blocks of
tokens are sorted into classes by how much happens in them, and all bytes of one width, whatever their channel, make a
lane: one Huffman-coded stream, which zlib or ISA-L reads at hundreds of megabytes a second. It takes a few per cent
more bits than q8, whose contexts follow every number.

Legend: N tokens, C channels, K classes, L lanes.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inlay.container.q8 import LARGEST, quantise, steps_for, stored_steps
from inlay.errors import TokenFileError
from inlay.kernels.inflate import inflate

Bytes = NDArray[np.int8]
Ints = NDArray[np.int64]

CLASSES = 8  # each half an octave wider than the one before
BLOCK = 8  # tokens that share a class
MOST_LANES = 64
FROM_SLOT, FROM_TOKEN = 64, 128  # flags beside a channel's base lane: what its bytes are differences from
_HEAD = struct.Struct("<HBBI")  # block, classes, lanes; patches. As long as that of q8, so that steps follow alike
_RUNS = 0.3  # share of bytes like the one before, from which on runs may be worth a try
_SHORTER = 0.98  # how much smaller differences must be than what they are of, to be worth their sums


def pack_quick(values: Tensor, mask_THW: NDArray[np.bool_], steps: Tensor | None) -> bytes:
    """The value section of a chunk."""
    steps = steps_for(values, steps)
    numbers = quantise(values, steps).numpy()
    if len(numbers) == 0:
        return b""
    small = np.clip(numbers, -128, 127).astype(np.int8)
    patched = np.flatnonzero(small != numbers)
    residual, from_slot, from_token = _differences(small, _whole_slots(mask_THW))
    classes, base = _fit(np.where(from_token, _before(residual), residual))
    order, counts = _sorted(classes, BLOCK, len(small))
    rows_CN = np.ascontiguousarray(residual[order].T)
    rows_CN[from_token] = np.diff(rows_CN[from_token], axis=1, prepend=np.int8(0))
    lanes: list[list[Bytes]] = [[] for _ in range(int(base.max()) + CLASSES)]
    for channel, parts in zip(base, _split(rows_CN, counts), strict=True):
        for number, part in enumerate(parts):
            lanes[channel + number].append(part)
    streams = [_deflate(b"".join(part.tobytes() for part in lane)) for lane in lanes]
    coded = _deflate(classes.tobytes())
    halves = (steps.numpy().astype("<f4").view("<u4") >> 16).astype("<u2")
    return b"".join([
        _HEAD.pack(BLOCK, CLASSES, len(lanes), len(patched)),
        halves.tobytes(),
        (base + FROM_SLOT * from_slot + FROM_TOKEN * from_token).astype("u1").tobytes(),
        np.array([len(stream) for stream in (coded, *streams)], dtype="<u4").tobytes(),
        patched.astype("<u4").tobytes(),
        numbers.ravel()[patched].astype("<i4").tobytes(),
        coded,
        *streams,
    ])  # fmt: skip


def unpack_quick(data: bytes, mask_THW: NDArray[np.bool_], channels: int) -> Tensor:
    """[N, C] float32: the inverse of `pack_quick`, bit for bit on every machine."""
    tokens = int(mask_THW.sum())
    if not tokens:
        if data:
            raise TokenFileError(f"the value section has {len(data)} bytes that nothing refers to")
        return torch.zeros(0, channels)
    section = _Section(data)
    block, kinds, lane_count, patch_count = _HEAD.unpack(section.take(_HEAD.size))
    if not block or not 0 < kinds <= lane_count <= MOST_LANES:
        raise TokenFileError(f"blocks of {block} tokens, {kinds} classes and {lane_count} lanes make no chunk")
    steps_C = stored_steps(data, channels)
    section.take(2 * channels)
    flags_C = np.frombuffer(section.take(channels), dtype="u1")
    base_C = (flags_C % FROM_SLOT).astype(np.int64)
    slots = _whole_slots(mask_THW)
    if not slots and bool((flags_C & FROM_SLOT).any()):
        raise TokenFileError("a channel has differences from the slot before, and not all cells are kept")
    if int(base_C.max()) + kinds > lane_count:
        raise TokenFileError(f"a channel asks for lane {int(base_C.max()) + kinds}, and there are {lane_count}")
    class_bytes, *sizes = np.frombuffer(section.take(4 + 4 * lane_count), dtype="<u4").tolist()
    places, patches = _patches(section, patch_count, tokens * channels)
    classes = np.frombuffer(_inflate(section.take(class_bytes), -(-tokens // block)), dtype="u1")
    if int(classes.max()) >= kinds:
        raise TokenFileError(f"there are {kinds} classes; the chunk asks for number {int(classes.max())}")
    order, counts = _sorted(classes, block, tokens, kinds)
    channels_with = np.bincount(base_C, minlength=lane_count)  # each base lane
    wanted = np.convolve(channels_with, counts)[:lane_count].tolist()  # bytes in each lane
    lanes = [_inflate(section.take(size), n) for size, n in zip(sizes, wanted, strict=True)]
    section.end()
    rows_CN = _rows(lanes, base_C, counts, tokens)
    for channel in np.flatnonzero(flags_C & FROM_TOKEN):
        rows_CN[channel] = rows_CN[channel].cumsum(dtype=np.int32).astype(np.int8)  # modulo 256, as differences are
    back = np.empty(tokens, dtype=np.int64)
    back[order] = np.arange(tokens)
    numbers_NC = np.ascontiguousarray(rows_CN.T).take(back, axis=0)
    if slots:
        _add_slots(numbers_NC.reshape(slots, -1, channels), flags_C)
    values_NC = torch.from_numpy(numbers_NC) * steps_C
    values_NC.view(-1)[places] = patches * steps_C[places % channels]
    return values_NC


def _patches(section: _Section, count: int, numbers: int) -> tuple[Tensor, Tensor]:
    """Where the numbers stand that no byte holds, and these numbers."""
    places = np.frombuffer(section.take(4 * count), dtype="<u4").astype(np.int64)
    patches = np.frombuffer(section.take(4 * count), dtype="<i4").astype(np.int64)
    if count and (int(places.max()) >= numbers or int(np.abs(patches).max()) > LARGEST):
        raise TokenFileError("a patch is outside the numbers of the chunk, or too large for one")
    return torch.from_numpy(places), torch.from_numpy(patches.astype(np.float32))


def _add_slots(numbers_TPC: Bytes, flags_C: NDArray[np.uint8]) -> None:
    """Add up the differences from the slot before, where they stand."""
    before_C = np.where(flags_C & FROM_SLOT, -1, 0).astype(np.int8)  # all bits, or none
    for t in range(1, len(numbers_TPC)):
        numbers_TPC[t] += numbers_TPC[t - 1] & before_C


def _rows(lanes: list[bytes], base_C: Ints, counts: Ints, tokens: int) -> Bytes:
    """[C, N]: each channel's bytes, class after class, from the lanes."""
    at, parts = [0] * len(lanes), []
    runs = [(number, count) for number, count in enumerate(counts.tolist()) if count]
    for base in base_C.tolist():
        for number, count in runs:
            lane = base + number
            first = at[lane]
            at[lane] = end = first + count
            parts.append(lanes[lane][first:end])
    return np.frombuffer(bytearray().join(parts), dtype=np.int8).reshape(len(base_C), tokens)


def _split(rows_CN: Bytes, counts: Ints) -> list[list[Bytes]]:
    """For each channel its bytes of each class."""
    ends = np.cumsum(counts)[:-1].tolist()
    return [np.split(row, ends) for row in rows_CN]


def _sorted(classes: NDArray[np.uint8], block: int, tokens: int, kinds: int = CLASSES) -> tuple[Ints, Ints]:
    """The tokens class by class, in their order within one; and how many each class has."""
    each = np.repeat(classes, block)[:tokens]
    return np.argsort(each, kind="stable"), np.bincount(each, minlength=kinds)


def _whole_slots(mask_THW: NDArray[np.bool_]) -> int:
    """Slots of a chunk with every cell kept, where a token has one in the slot before; else 0."""
    return len(mask_THW) if bool(mask_THW.all()) else 0


def _differences(small: Bytes, slots: int) -> tuple[Bytes, NDArray[np.bool_], NDArray[np.bool_]]:
    """The numbers, of some channels as differences from the slot before; which channels; and which ones are then better
    as differences from the token before. All modulo 256."""
    from_slot = np.zeros(small.shape[1], dtype=bool)
    if slots > 1:
        changed = np.diff(small.reshape(slots, -1), axis=0, prepend=np.int8(0)).reshape(small.shape)
        ways = [_size(small), _size(_before(small)), _size(changed), _size(_before(changed))]
        from_slot = np.minimum(ways[2], ways[3]) < _SHORTER * np.minimum(ways[0], ways[1])
        small = np.where(from_slot, changed, small)
    return small, from_slot, _size(_before(small)) < _SHORTER * _size(small)


def _before(numbers: Bytes) -> Bytes:
    return np.diff(numbers, axis=0, prepend=np.int8(0))


def _size(numbers: Bytes) -> NDArray[np.float32]:
    """[C]: about the bits of each channel: they grow with the logarithm of a number."""
    return np.log2(1 + np.abs(numbers.astype(np.float32))).sum(0)


def _fit(residual: Bytes) -> tuple[NDArray[np.uint8], Ints]:
    """The class of each block, and the base lane of each channel, from mean sizes in half octaves."""
    size = np.abs(residual.astype(np.float32))
    usual_C = size.mean(0) + 0.25
    blocks = -(-len(size) // BLOCK)
    each_N = (size / usual_C).mean(1)
    mean = np.pad(each_N, (0, blocks * BLOCK - len(size)), mode="edge").reshape(blocks, BLOCK).mean(1)
    classes = np.clip(np.rint(2 * np.log2(mean + 1e-3)) + CLASSES - 2, 0, CLASSES - 1).astype(np.uint8)
    width_C = np.rint(2 * np.log2(usual_C)).astype(np.int64)
    return classes, width_C - width_C.min()


def _deflate(data: bytes) -> bytes:
    """Raw deflate of Huffman codes, and with runs of one byte where that is shorter: other repetition is rare, and
    looking for it would be slow on both sides."""
    if not data:
        return b""
    found = np.frombuffer(data, dtype=np.uint8)
    alike = np.count_nonzero(found[1:] == found[:-1])
    kinds = [zlib.Z_HUFFMAN_ONLY, *([zlib.Z_RLE] if alike > _RUNS * len(found) else [])]
    coders = [zlib.compressobj(9, zlib.DEFLATED, -15, 9, kind) for kind in kinds]
    return min((coder.compress(data) + coder.flush() for coder in coders), key=len)


def _inflate(data: bytes, size: int) -> bytes:
    """Exactly `size` bytes."""
    if not size:
        if data:
            raise TokenFileError(f"an empty lane has {len(data)} bytes")
        return b""
    found = inflate(data, size)
    if found is None:
        raise TokenFileError(
            f"Huffman-coded data should hold exactly {size} bytes; these are damaged, or hold another number"
        )
    return found


class _Section:
    """The bytes of a value section, taken one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise TokenFileError(f"the value section ends early: {self.at + size} bytes needed, {len(self.data)} found")
        self.at += size
        return self.data[self.at - size : self.at]

    def end(self) -> None:
        if self.at != len(self.data):
            raise TokenFileError(f"the value section has {len(self.data) - self.at} bytes that nothing refers to")
