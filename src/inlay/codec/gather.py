# SPDX-License-Identifier: Apache-2.0
"""Latents and a mask to `Tokens`: the one place where kept cells are gathered.

Legend: B batch, C channels, T slots, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inlay.codec.latents import LatentChunk
from inlay.codec.transfer import Transfer
from inlay.container.tokens import Tokens
from inlay.types import Recipe


class Gathering:
    """The tokens of chunks of one shape, on their way from the device: one transfer for all."""

    def __init__(self, chunks: Sequence[LatentChunk], keep_BTHW: Tensor, recipe: Recipe) -> None:
        rows = [chunk.z_BCTHW for chunk in chunks]
        self.chunks, self.recipe = chunks, recipe
        self._transfer = Transfer(rows[0] if len(rows) == 1 else torch.cat(rows), keep_BTHW)

    def tokens(self) -> list[Tokens]:
        """One for each chunk; waits for the transfer."""
        z_BCTHW, keep_BTHW = self._transfer.arrived()
        return [
            Tokens(
                values=kept_values(z_CTHW, keep_THW),
                mask=keep_THW.clone(),
                info=chunk.info,
                recipe=self.recipe,
                spans=(chunk.span,),
                seconds=chunk.seconds,
            )
            for chunk, z_CTHW, keep_THW in zip(self.chunks, z_BCTHW, keep_BTHW, strict=True)
        ]


def kept_values(z_CTHW: Tensor, keep_THW: Tensor) -> Tensor:
    """[N, C] the kept cells in (t, y, x) order."""
    cells = keep_THW.flatten().nonzero()[:, 0]
    return z_CTHW.flatten(1).index_select(1, cells).t().contiguous()


def gather(chunks: Sequence[LatentChunk], keep_BTHW: Tensor, recipe: Recipe) -> list[Tokens]:
    """The tokens of chunks of one shape, one for each row of the mask."""
    return Gathering(chunks, keep_BTHW, recipe).tokens()
