# SPDX-License-Identifier: Apache-2.0
"""`Spool`: the latents of a video wait on disk, to be read as often as wanted, so memory stays bounded."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from inlay.codec.latents import LatentChunk
from inlay.files import using_scratch

Place = tuple[int, tuple[int, ...]]  # offset, shape


class Spool:
    """Append chunks, then iterate over them as often as wanted; gone when closed."""

    def __init__(self) -> None:
        with using_scratch():
            self._file = tempfile.TemporaryFile(prefix="inlay-")  # noqa: SIM115 - closed in close()
        self._places: list[tuple[LatentChunk, Place, Place]] = []

    def close(self) -> None:
        with suppress(OSError):  # a full disk: nobody asks for what still waits to be written
            self._file.close()

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[LatentChunk]:
        for chunk, z, compared in self._places:
            z_BCTHW = self._read(z)
            yield replace(chunk, z_BCTHW=z_BCTHW, compared_BCTHW=z_BCTHW if compared == z else self._read(compared))

    @property
    def chunks(self) -> list[LatentChunk]:
        """All chunks without their latents."""
        return [chunk for chunk, _, _ in self._places]

    def append(self, chunk: LatentChunk) -> None:
        z = self._write(chunk.z_BCTHW)
        same = chunk.compared_BCTHW is chunk.z_BCTHW
        compared = z if same else self._write(chunk.compared_BCTHW)
        empty = torch.empty(0)
        self._places.append((replace(chunk, z_BCTHW=empty, compared_BCTHW=empty), z, compared))

    def _write(self, x: Tensor) -> Place:
        data = x.float().cpu().contiguous().numpy().tobytes()
        with using_scratch():
            offset = self._file.seek(0, 2)
            self._file.write(data)
            self._file.flush()
        return offset, tuple(x.shape)

    def _read(self, place: Place) -> Tensor:
        offset, shape = place
        self._file.seek(offset)
        data = bytearray(self._file.read(4 * int(np.prod(shape))))
        return torch.frombuffer(data, dtype=torch.float32).view(shape)
