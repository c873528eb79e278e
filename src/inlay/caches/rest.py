# SPDX-License-Identifier: Apache-2.0
"""What a cache file holds besides its latents, as bytes: a JSON head and the rest of the file, less blocks of zeros.

Text embeddings that are padded to 512 rows are mostly zeros: 4 MB of a 100 kB prompt.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import numpy as np

from inlay.caches.holes import FREE_BYTES, CacheError

BLOCK = 4096
MOST_GAIN = 64  # times that a rest may shrink, where it has more than FREE_BYTES
_HEAD = struct.Struct("<4sIQI")  # magic, bytes of JSON, bytes of the rest, CRC-32 of the rest
_MAGIC = b"rst1"


def pack_rest(head: dict[str, Any], rest: bytes) -> bytes:
    """One member of a shard."""
    text = json.dumps(head, separators=(",", ":")).encode()
    whole = np.frombuffer(rest, dtype=np.uint8)
    even = len(rest) // BLOCK * BLOCK
    blocks = whole[:even].reshape(-1, BLOCK)
    full = blocks.view(np.uint64).any(axis=1)
    bits = np.packbits(full).tobytes()
    kept = blocks if full.all() else blocks[full]
    packed = b"".join(
        [_HEAD.pack(_MAGIC, len(text), len(rest), zlib.crc32(rest)), text, bits, kept.tobytes(), rest[even:]]
    )
    if len(rest) > most_bytes(len(packed)):
        raise CacheError(f"has {len(rest):,} bytes beside the latents, nearly all of them zeros; save it without them")
    return packed


def most_bytes(size: int) -> int:
    """That a member of so many bytes may come back as: of zeros anyone can promise a lot."""
    return max(FREE_BYTES, MOST_GAIN * size)


def unpack_rest(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The inverse of `pack_rest`; damage is an error."""
    try:
        magic, size, length, crc = _HEAD.unpack_from(data)
        if magic != _MAGIC or length > most_bytes(len(data)):
            raise ValueError
        at = _HEAD.size + size
        head = json.loads(data[_HEAD.size : at])
        if not isinstance(head, dict):
            raise ValueError
        count = length // BLOCK
        bits = np.frombuffer(data, dtype=np.uint8, count=-(-count // 8), offset=at)
        full = np.unpackbits(bits, count=count).astype(bool)
        at += len(bits)
        blocks = np.zeros((count, BLOCK), dtype=np.uint8)
        stored = int(full.sum()) * BLOCK
        blocks[full] = np.frombuffer(data, dtype=np.uint8, count=stored, offset=at).reshape(-1, BLOCK)
        rest = blocks.tobytes() + data[at + stored :]
    except (struct.error, ValueError, RecursionError) as error:
        raise CacheError("the part of a shard beside the tokens is damaged; fetch the shard again") from error
    if len(rest) != length or zlib.crc32(rest) != crc:
        raise CacheError("the part of a shard beside the tokens fails its checksum; fetch the shard again")
    return head, rest
