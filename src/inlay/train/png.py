# SPDX-License-Identifier: Apache-2.0
"""Pixels in, a PNG file out: pictures of a run need no image library."""

from __future__ import annotations

import struct
import zlib

from torch import Tensor

from inlay.errors import ShapeError
from inlay.types import describe


def png_bytes(image_HWC: Tensor) -> bytes:
    """An 8-bit RGB image as a PNG file."""
    if image_HWC.ndim != 3 or image_HWC.shape[2] != 3 or str(image_HWC.dtype) != "torch.uint8":
        raise ShapeError(f"a picture is uint8 [H, W, 3]; got {describe(image_HWC)}")
    height, width, _ = image_HWC.shape
    pixels = image_HWC.cpu().contiguous().numpy()
    rows = b"".join(b"\x00" + row.tobytes() for row in pixels)  # each row begins with its filter: 0, none
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = _part(b"IHDR", head) + _part(b"IDAT", zlib.compress(rows, 6)) + _part(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def _part(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
