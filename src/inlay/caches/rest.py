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

from inlay.caches.holes import CacheError

BLOCK = 4096
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
    return b"".join(
        [_HEAD.pack(_MAGIC, len(text), len(rest), zlib.crc32(rest)), text, bits, kept.tobytes(), rest[even:]]
    )


def unpack_rest(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The inverse of `pack_rest`; damage is an error."""
    try:
        magic, size, length, crc = _HEAD.unpack_from(data)
        if magic != _MAGIC or length > len(data) * BLOCK * 8:  # a bit may stand for a block of zeros
            raise ValueError
        at = _HEAD.size + size
        head: dict[str, Any] = json.loads(data[_HEAD.size : at])
        count = length // BLOCK
        bits = np.frombuffer(data, dtype=np.uint8, count=-(-count // 8), offset=at)
        full = np.unpackbits(bits, count=count).astype(bool)
        at += len(bits)
        blocks = np.zeros((count, BLOCK), dtype=np.uint8)
        stored = int(full.sum()) * BLOCK
        blocks[full] = np.frombuffer(data, dtype=np.uint8, count=stored, offset=at).reshape(-1, BLOCK)
        rest = blocks.tobytes() + data[at + stored :]
    except (struct.error, ValueError, KeyError) as error:
        raise CacheError("the part of a shard beside the tokens is damaged; fetch the shard again") from error
    if len(rest) != length or zlib.crc32(rest) != crc:
        raise CacheError("the part of a shard beside the tokens fails its checksum; fetch the shard again")
    return head, rest
