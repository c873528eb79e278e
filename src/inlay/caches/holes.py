# SPDX-License-Identifier: Apache-2.0
"""Where the latents lie in a safetensors or torch file: the file is its bytes, with a hole of known place and shape.

What is around the hole is never parsed further, so it comes back byte for byte. A torch file's pickle is read for
places and shapes alone: whatever else it names is passed over, and nothing of it runs.
"""

from __future__ import annotations

import io
import json
import mmap
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from inlay.errors import TokenFileError

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
    """Numbers inside a file: `length` bytes at `offset`, seen as a tensor."""

    offset: int
    length: int
    dtype: str  # of DTYPES
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int = 0  # element of the bytes that the tensor begins with
    checksums: tuple[int, ...] = ()  # where the CRC-32 of the bytes stands

    def read(self, data: bytes) -> Tensor:
        """The tensor, in memory of its own."""
        part = bytearray(memoryview(data)[self.offset : self.offset + self.length])
        return torch.frombuffer(part, dtype=DTYPES[self.dtype]).as_strided(self.shape, self.stride, self.start)

    def cut(self, data: bytes) -> bytes:
        """All but the hole, and zeros for its CRC-32."""
        around = bytearray(data[: self.offset] + data[self.offset + self.length :])
        for place in self.checksums:
            place -= self.length if place > self.offset else 0
            around[place : place + 4] = bytes(4)
        return bytes(around)

    def fill(self, around: bytes, z: Tensor) -> bytes:
        """The inverse: the file with other numbers in the hole."""
        whole = bytearray(len(around) + self.length)
        whole[: self.offset] = around[: self.offset]
        whole[self.offset + self.length :] = around[self.offset :]
        part = torch.zeros(self.length // DTYPES[self.dtype].itemsize, dtype=DTYPES[self.dtype])
        part.as_strided(self.shape, self.stride, self.start).copy_(z.reshape(self.shape))
        whole[self.offset : self.offset + self.length] = part.view(torch.uint8).numpy().tobytes()
        if self.checksums:
            crc = struct.pack("<I", zlib.crc32(memoryview(whole)[self.offset : self.offset + self.length]))
            for place in self.checksums:
                whole[place : place + 4] = crc
        return bytes(whole)

    def record(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def parse(record: dict[str, Any]) -> Hole:
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
        return Hole(**given)


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
        return checked(
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
    except (struct.error, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise CacheError("is not a whole safetensors file: it was cut short, or is still being written") from error
    if len(data) != begin + max(ends, default=0):
        raise CacheError(
            f"was cut short: it promises {begin + max(ends, default=0):,} bytes and has {len(data):,}; make it again"
        )
    return header, begin


def safetensors_metadata(data: bytes) -> dict[str, str]:
    """What the file says of itself."""
    return dict(_safetensors_header(data)[0].get("__metadata__") or {})


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
            return checked(
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


def checked(hole: Hole) -> Hole:
    """Refuse a hole whose numbers would lie outside its bytes, or on top of one another."""
    if hole.dtype not in DTYPES:
        raise CacheError(f"has latents of {hole.dtype}; caches hold {', '.join(DTYPES)}: is it of another trainer?")
    sizes = sorted((stride, side) for stride, side in zip(hole.stride, hole.shape, strict=True) if side > 1)
    dense = all(stride >= 0 for stride, _ in sizes) and all(
        stride >= low * side for (low, side), (stride, _) in pairwise(sizes)
    )
    last = hole.start + sum(stride * (side - 1) for stride, side in sizes)
    inside = hole.start >= 0 and (last + 1) * DTYPES[hole.dtype].itemsize <= hole.length
    if not dense or min(hole.shape, default=0) < 1 or not inside:
        raise CacheError(f"has latents of shape {list(hole.shape)} that its {hole.length:,} bytes cannot hold")
    return hole
