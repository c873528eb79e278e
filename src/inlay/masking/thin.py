# SPDX-License-Identifier: Apache-2.0
"""Thin out a key slot: drop cells that their neighbours tell, and put them back.

Cells in even rows and even columns always stay. Those in odd rows and odd columns are guessed as the mean of the
diagonal ones around them, then all others as the mean of the four beside them, which are kept or guessed by then.

Legend: B batch, C channels, H W grid.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.masking.criteria import Distance

SHARE = 0.2  # of tau that a cell may be off: what is wrong in a key slot stays wrong until its cell changes
DIAGONAL = ((-1, -1), (-1, 1), (1, -1), (1, 1))
BESIDE = ((-1, 0), (1, 0), (0, -1), (0, 1))


def thinned(z_BCHW: Tensor, distance: Distance, limit: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which cells of a slot stay [B, H, W], how far each is from its guess, and the slot as a decoder has it.

    Args:
        distance: of latents from what was guessed.
        limit: the threshold of the scan; a cell stays that is at least SHARE of it away from its guess.
    """
    known_BCHW = z_BCHW
    keep_BHW = torch.ones_like(z_BCHW[:, 0], dtype=torch.bool)
    score_BHW = torch.full_like(z_BCHW[:, 0], torch.inf, dtype=torch.float32)
    for place_HW, around in _turns(z_BCHW):
        guess_BCHW = _mean(known_BCHW, around)
        apart_BHW = distance(z_BCHW, guess_BCHW)
        keep_BHW = keep_BHW & ~(place_HW & (apart_BHW < SHARE * limit))
        score_BHW = torch.where(place_HW, apart_BHW, score_BHW)
        known_BCHW = torch.where(keep_BHW[:, None], known_BCHW, torch.where(place_HW, guess_BCHW, known_BCHW))
    return keep_BHW, score_BHW, known_BCHW


def completed(z_BCHW: Tensor, keep_BHW: Tensor) -> Tensor:
    """The slot with its dropped cells guessed, as `thinned` had them; those that always stay are zeros if they are not
    there."""
    known_BCHW = torch.where(keep_BHW[:, None], z_BCHW, 0)
    for place_HW, around in _turns(z_BCHW):
        known_BCHW = torch.where(keep_BHW[:, None] | ~place_HW, known_BCHW, _mean(known_BCHW, around))
    return known_BCHW


def fewest(rows: int, columns: int) -> int:
    """Cells of a slot that always stay."""
    return -(-rows // 2) * -(-columns // 2)


def _turns(z_BCHW: Tensor) -> list[tuple[Tensor, tuple[tuple[int, int], ...]]]:
    """Where cells are guessed, and from which neighbours, in turn."""
    row_H1, column_W = (torch.arange(n, device=z_BCHW.device) % 2 == 1 for n in z_BCHW.shape[-2:])
    row_H1 = row_H1[:, None]
    return [(row_H1 & column_W, DIAGONAL), (row_H1 ^ column_W, BESIDE)]


def _mean(z_BCHW: Tensor, around: Sequence[tuple[int, int]]) -> Tensor:
    """Of the neighbours that lie on the grid, added in a fixed order."""
    height, width = z_BCHW.shape[-2:]
    padded = F.pad(torch.cat([z_BCHW, torch.ones_like(z_BCHW[:, :1])], dim=1), (1, 1, 1, 1))
    total = torch.stack([padded[..., 1 + y : 1 + y + height, 1 + x : 1 + x + width] for y, x in around]).sum(0)
    return total[:, :-1] / total[:, -1:].clamp_min(1)
