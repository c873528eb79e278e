# SPDX-License-Identifier: Apache-2.0
"""Kept cells to `Tokens`: the one place where they are gathered."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from inlay.codec.latents import LatentChunk
from inlay.codec.packing import Packed, pack_kept
from inlay.codec.transfer import Transfer
from inlay.container.tokens import Tokens
from inlay.types import Recipe


class Gathering:
    """The tokens of chunks of one shape, on their way from the device: one transfer for all."""

    def __init__(self, chunks: Sequence[LatentChunk], keep_BTHW: Tensor, packed: Packed, recipe: Recipe) -> None:
        self.chunks, self.recipe = chunks, recipe
        self._transfer = Transfer(keep_BTHW, *packed)

    def tokens(self) -> list[Tokens]:
        """One for each chunk, to be asked for once; waits for the transfer."""
        with self._transfer.lent() as (keep_BTHW, values_BNC, counts_B):
            rows = zip(self.chunks, values_BNC, keep_BTHW, counts_B.tolist(), strict=True)
            return [
                Tokens(
                    values=values_NC[:count].clone(),
                    mask=keep_THW.clone(),
                    info=chunk.info,
                    recipe=self.recipe,
                    spans=(chunk.span,),
                    seconds=chunk.seconds,
                )
                for chunk, values_NC, keep_THW, count in rows
            ]


def gather(chunk: LatentChunk, keep_BTHW: Tensor, recipe: Recipe) -> Tokens:
    """The tokens of one chunk, with the cells that a mask keeps."""
    return Gathering([chunk], keep_BTHW, pack_kept(chunk.z_BCTHW, keep_BTHW), recipe).tokens()[0]
