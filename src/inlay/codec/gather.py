# SPDX-License-Identifier: Apache-2.0
"""Latents and a mask to `Tokens`: the one place where kept cells are gathered.

Legend: B batch, C channels, T slots, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inlay.codec.latents import LatentChunk
from inlay.container.tokens import Tokens
from inlay.types import Recipe


def gather(chunks: Sequence[LatentChunk], keep_BTHW: Tensor, recipe: Recipe) -> list[Tokens]:
    """The tokens of chunks of one shape, one for each row of the mask; one transfer from the device for all."""
    rows = [chunk.z_BCTHW for chunk in chunks]
    z_BCTHW = (rows[0] if len(rows) == 1 else torch.cat(rows)).cpu()
    return [
        Tokens(
            values=z_CTHW.permute(1, 2, 3, 0)[keep_THW],
            mask=keep_THW,
            info=chunk.info,
            recipe=recipe,
            spans=(chunk.span,),
            seconds=chunk.seconds,
        )
        for chunk, z_CTHW, keep_THW in zip(chunks, z_BCTHW, keep_BTHW.cpu(), strict=True)
    ]
