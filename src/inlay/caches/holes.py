# SPDX-License-Identifier: Apache-2.0
"""Where the latents lie in a safetensors or torch file: the file is its bytes, with a hole of known place and shape.

What is around the hole is never parsed further, so it comes back byte for byte; so does what lies between the numbers
of latents that are a view of a larger tensor, which torch.save writes whole. A torch file's pickle is read for places
and shapes alone: whatever else it names is passed over, and nothing of it runs.
"""

from __future__ import annotations

import io
import json
import math
import mmap
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inlay.errors import TokenFileError

FREE_BYTES = 1 << 28  # that may come back from nothing: zeros in the place of what is not stored
MOST_SIDES = 8  # of a tensor: [1, C, T, H, W], and some more to name in a message
_LARGEST = 1 << 48  # number in the record of a hole
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}  # as safetensors calls them
STORAGES = {"BFloat16Storage": "BF16", "HalfStorage": "F16", "FloatStorage": "F32"}
_LOCAL = struct.Struct("<4s2xH6xIIIHH")  # head of a zip member: flags, CRC-32, sizes, lengths of name and extra
_CENTRAL = struct.Struct("<4s12xI8xHHH8xI")  # its line in the directory: CRC-32, lengths, where its head is
_LOCAL_MAGIC, _CENTRAL_MAGIC, _AFTER_MAGIC = b"PK\x03\x04", b"PK\x01\x02", b"PK\x07\x08"
_AFTER_FLAG = 8  # the CRC-32 stands behind the data too


class CacheError(TokenFileError):
    """A file of a cache that cannot be used: cut short, of another kind, of another model."""


@dataclass(frozen=True, kw_only=True)
class Hole:
    """Numbers inside a file: `length` bytes at `offset`, seen as a tensor. What a file says of it may be anything."""

    offset: int
    length: int
    dtype: str  # of DTYPES
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int = 0  # element of the bytes that the tensor begins with
    checksums: tuple[int, ...] = ()  # where the CRC-32 of the bytes stands
    between: int = 0  # of the bytes, those that are no number of the tensor: they stay in the file

    def __post_init__(self) -> None:
        """Refuse numbers outside the bytes, or on top of one another."""
        if len(self.shape) > MOST_SIDES:
            raise CacheError(f"has latents of {len(self.shape):,} dimensions; is it of another trainer?")
        if self.dtype not in DTYPES:
            raise CacheError(
                f"has latents of {str(self.dtype)[:40]}; caches hold {', '.join(DTYPES)}: is it of another trainer?"
            )
        numbers = (self.offset, self.length, self.start, self.between, *self.shape, *self.stride, *self.checksums)
        if not all(type(number) is int and 0 <= number < _LARGEST for number in numbers):
            raise CacheError("is damaged: what it says of its latents makes no sense")
        sizes = sorted((stride, side) for stride, side in zip(self.stride, self.shape, strict=True) if side > 1)
        dense = all(stride >= 1 for stride, _ in sizes) and all(
            stride >= low * side for (low, side), (stride, _) in pairwise(sizes)
        )
        last = self.start + sum(stride * (side - 1) for stride, side in sizes)
        inside = (last + 1) * DTYPES[self.dtype].itemsize <= self.length
        if not dense or min(self.shape, default=0) < 1 or not inside or self.between > self.gaps:
            raise CacheError(f"has latents of shape {list(self.shape)} that its {self.length:,} bytes cannot hold")

    @property
    def gaps(self) -> int:
        """Bytes that are no number of the tensor; more than `between` in caches that were packed without them."""
        return self.length - math.prod(self.shape) * DTYPES[self.dtype].itemsize

    def read(self, data: bytes) -> Tensor:
        """The tensor, in memory of its own."""
        return self._seen(bytearray(memoryview(data)[self.offset : self.offset + self.length]))

    def cut(self, data: bytes) -> bytes:
        """All but the tensor, and zeros for the CRC-32."""
        end = self.offset + self.length
        between = np.frombuffer(data[self.offset : end], np.uint8)[self._outside()].tobytes() if self.between else b""
        around = bytearray(data[: self.offset] + between + data[end:])
        for place in self.checksums:
            place -= self.length - self.between if place > self.offset else 0
            around[place : place + 4] = bytes(4)
        return bytes(around)

    def fill(self, around: bytes, z: Tensor) -> bytes:
        """The inverse: the file with other numbers in the hole."""
        self.check(len(around), tuple(z.shape))
        part, kept_end = bytearray(self.length), self.offset + self.between
        if self.between:
            np.frombuffer(part, np.uint8)[self._outside()] = np.frombuffer(around[self.offset : kept_end], np.uint8)
        self._seen(part).copy_(z.reshape(self.shape))
        whole = bytearray().join([around[: self.offset], part, around[kept_end:]])
        if self.checksums:
            crc = struct.pack("<I", zlib.crc32(part))
            for place in self.checksums:
                whole[place : place + 4] = crc
        return bytes(whole)

    def check(self, around: int, shape: tuple[int, ...]) -> None:
        """Refuse to fill the hole of another file, and to take memory that its parts do not justify.

        Args:
            around: bytes that `cut` left.
            shape: of the latents.
        """
        if self.shape not in (shape, (1, *shape)):
            raise CacheError(f"is damaged: its latents are {list(self.shape)}, and its tokens make {list(shape)}")
        whole = around + self.length - self.between
        if self.offset + self.between > around or any(place + 4 > whole for place in self.checksums):
            raise CacheError(f"is damaged: its latents lie outside its {whole:,} bytes")
        if self.gaps - self.between > FREE_BYTES:
            raise CacheError(f"has {self.gaps:,} bytes between its latents that were not packed; pack the cache again")

    def _seen(self, part: bytearray) -> Tensor:
        """Bytes as the tensor, in place."""
        dtype = DTYPES[self.dtype]
        whole = torch.frombuffer(part, dtype=dtype, count=len(part) // dtype.itemsize)
        return whole.as_strided(self.shape, self.stride, self.start)

    def _outside(self) -> np.ndarray:
        """[length] which bytes are no number of the tensor."""
        size = DTYPES[self.dtype].itemsize
        numbers = torch.ones(self.length // size, dtype=torch.bool)
        numbers.as_strided(self.shape, self.stride, self.start).fill_(False)
        return np.concatenate([numbers.numpy().repeat(size), np.ones(self.length % size, dtype=bool)])

    def record(self) -> dict[str, Any]:
        """As JSON; without what is between where that is nothing, as earlier releases wrote it."""
        return {name: value for name, value in asdict(self).items() if name != "between" or value}

    @staticmethod
    def parse(record: Any) -> Hole:
        try:
            given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
            return Hole(**given)
        except (TypeError, ValueError, AttributeError) as error:
            raise CacheError("the part of a shard beside the tokens says nothing of its latents") from error


# --- safetensors ------------------------------------------------------------------------------------------------------


def safetensors_hole(data: bytes, wanted: Callable[[str], bool]) -> Hole:
    """The hole of the one tensor whose name is wanted."""
    header, begin = _safetensors_header(data)
    found = [name for name in header if name != "__metadata__" and wanted(name)]
    if len(found) != 1:
        names = ", ".join(sorted(name for name in header if name != "__metadata__")[:6]) or "nothing"
        raise CacheError(f"holds {len(found)} tensors of latents, and there is one in a cache file (it has {names})")
    entry = header[found[0]]
    try:
        shape, (first, last) = tuple(entry["shape"]), entry["data_offsets"]
        return with_gaps(
            Hole(
                offset=begin + first, length=last - first, dtype=entry["dtype"], shape=shape, stride=contiguous(shape)
            )
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise CacheError("is a damaged safetensors file: what it says of its latents makes no sense") from error


def _safetensors_header(data: bytes) -> tuple[dict[str, Any], int]:
    try:
        (size,) = struct.unpack_from("<Q", data)
        header = json.loads(data[8 : 8 + size])
        begin = 8 + size
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    except (struct.error, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CacheError("is not a whole safetensors file: it was cut short, or is still being written") from error
    if len(data) != begin + max(ends, default=0):
        raise CacheError(
            f"was cut short: it promises {begin + max(ends, default=0):,} bytes and has {len(data):,}; make it again"
        )
    return header, begin


def safetensors_metadata(data: bytes) -> dict[str, str]:
    """What the file says of itself."""
    found = _safetensors_header(data)[0].get("__metadata__")
    return found if isinstance(found, dict) else {}


# --- torch.save -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TensorPlace:
    """A tensor that a torch file describes: numbers of a storage, by name."""

    storage: str
    dtype: str | None  # None: no kind of number that latents come in
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Opaque:
    """Whatever else a pickle names: takes any arguments and is never looked at."""

    def __new__(cls, *args: object, **kwargs: object) -> Opaque:
        return object.__new__(cls)

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def __call__(self, *args: object, **kwargs: object) -> Opaque:
        return Opaque()

    def __setstate__(self, state: object) -> None: ...

    def __setitem__(self, key: object, value: object) -> None: ...

    def append(self, value: object) -> None: ...

    def extend(self, values: object) -> None: ...


class _Places(pickle.Unpickler):
    """Reads the pickle of a torch file; its tensors become places, its objects opaque."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _place
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda place, *rest: place
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if module in ("torch", "torch.storage") and name.endswith("Storage"):
            return STORAGES.get(name, "")
        return Opaque

    def persistent_load(self, pid: Any) -> Any:
        return (pid[1], pid[2]) if isinstance(pid, tuple) and len(pid) > 2 and pid[0] == "storage" else None


def _place(storage: Any, offset: int, shape: Any, stride: Any, *rest: object) -> TensorPlace | Opaque:
    if not isinstance(storage, tuple):
        return Opaque()
    kind, key = storage
    return TensorPlace(storage=str(key), dtype=kind or None, offset=offset, shape=tuple(shape), stride=tuple(stride))


def torch_contents(data: bytes) -> tuple[Any, Callable[[TensorPlace], Hole]]:
    """What a torch file holds, with places for its tensors; and what finds the hole of such a place."""
    try:
        archive = zipfile.ZipFile(data if isinstance(data, mmap.mmap) else io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
        raise CacheError(
            "is not a whole torch file: it was cut short, is still being written, or torch is older than 1.6"
        ) from error
    with archive:
        members = {info.filename: info for info in archive.infolist()}
        pickles = [name for name in members if name.endswith("/data.pkl")]
        if len(pickles) != 1 or members[pickles[0]].compress_type != zipfile.ZIP_STORED:
            raise CacheError("is a zip file, but none that torch.save wrote; is it a cache of another trainer?")
        prefix = pickles[0].removesuffix("data.pkl")
        try:
            contents = _Places(io.BytesIO(archive.read(pickles[0]))).load()
        except Exception as error:  # a damaged pickle may raise anything
            raise CacheError(f"has a damaged pickle ({type(error).__name__}); make it again") from error

    def hole(place: TensorPlace) -> Hole:
        info = members.get(f"{prefix}data/{place.storage}")
        if info is None or info.compress_type != zipfile.ZIP_STORED:
            raise CacheError("has latents that are compressed or missing; save it again with torch.save")
        if place.dtype is None:
            raise CacheError(f"has latents that are no numbers of {', '.join(DTYPES)}; is it of another trainer?")
        try:
            offset, checksums = _zip_places(data, info, archive.start_dir)
            return with_gaps(
                Hole(
                    offset=offset, length=info.file_size, dtype=place.dtype, shape=place.shape, stride=place.stride,
                    start=place.offset, checksums=checksums,
                )
            )  # fmt: skip
        except (struct.error, TypeError, ValueError) as error:
            raise CacheError("is a damaged torch file: what it says of its latents makes no sense") from error

    return contents, hole


def _zip_places(data: bytes, info: zipfile.ZipInfo, directory: int) -> tuple[int, tuple[int, ...]]:
    """Where a stored member's bytes begin, and every place where their CRC-32 stands."""
    at = info.header_offset
    magic, flags, crc, _, _, name, extra = _LOCAL.unpack_from(data, at)
    begin = at + 30 + name + extra
    if magic != _LOCAL_MAGIC or begin + info.file_size > len(data):
        raise CacheError("was cut short: its latents end behind its end; make it again")
    places = [at + 14] if crc else []
    if flags & _AFTER_FLAG:
        after = begin + info.file_size
        places.append(after + 4 if data[after : after + 4] == _AFTER_MAGIC else after)
    while data[directory : directory + 4] == _CENTRAL_MAGIC:
        _, _, name, extra, comment, header = _CENTRAL.unpack_from(data, directory)
        if header == at:
            places.append(directory + 16)
        directory += 46 + name + extra + comment
    return begin, tuple(places)


# --- both -------------------------------------------------------------------------------------------------------------


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a plain tensor."""
    strides = [1]
    for side in reversed(shape[1:]):
        strides.append(strides[-1] * side)
    return tuple(reversed(strides))


def with_gaps(hole: Hole) -> Hole:
    """The hole less what lies between its numbers."""
    return replace(hole, between=hole.gaps)
