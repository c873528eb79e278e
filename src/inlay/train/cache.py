# SPDX-License-Identifier: Apache-2.0
"""Latents of clips that come back unchanged, kept on disk: a frozen encoder need not see the same clip twice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from inlay.files import write_atomic
from inlay.train.checkpoint import explained
from inlay.train.data import Batch
from inlay.train.sampler import ClipEntry, Draw


class LatentCache:
    """One safetensors file a clip, found by the backbone's weights, the video and the way it was cut."""

    def __init__(self, folder: str | Path, *, weight_hash: str, entries: tuple[ClipEntry, ...]) -> None:
        self.folder, self.weight_hash, self.entries = Path(folder), weight_hash, entries
        self.hits = self.misses = 0

    def latents(self, batch: Batch, encode: Callable[[Tensor], Tensor]) -> Tensor:
        """[B, C, t, h, w]; clips are encoded one by one, so that a latent does not depend on its neighbours."""
        found = [self._latent(x, draw, encode) for x, draw in zip(batch.pixels, batch.draws, strict=True)]
        return torch.stack(found)

    def _latent(self, x_CTHW: Tensor, draw: Draw, encode: Callable[[Tensor], Tensor]) -> Tensor:
        path = self.path_of(draw)
        stored = _read(path)
        if stored is not None:
            self.hits += 1
            return stored.to(x_CTHW.device)
        self.misses += 1
        z_CTHW = encode(x_CTHW[None])[0]
        from safetensors.torch import save

        with explained(f"latents into {self.folder}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, save({"latents": z_CTHW.detach().cpu().contiguous()}), durable=True)
        return z_CTHW

    def path_of(self, draw: Draw) -> Path:
        e = self.entries[draw.clip]
        cut = (draw.start, draw.frames, draw.interval, draw.size, draw.zoom, draw.y, draw.x, draw.flip, draw.reverse)
        key = hashlib.sha256(repr((e.name, e.bytes, e.frames, cut)).encode()).hexdigest()
        return self.folder / self.weight_hash / key[:2] / f"{key[2:34]}.safetensors"


def _read(path: Path) -> Tensor | None:
    """The latents there, or None: a missing or damaged file is simply made again."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)["latents"]
    except (OSError, SafetensorError, KeyError):
        return None
