# SPDX-License-Identifier: Apache-2.0
"""A second look: keep the dropped cells that a fill gets wrong.

The scan drops what barely changed. How well a fill guesses a dropped cell is another thing: some that changed a little
cannot be guessed, others could have changed much more. So the encoder fills the chunk once, as a decoder will. Under a
tau it then keeps what is off by too much; under a number of tokens the scan gets most of them, and the worst fills the
rest.

Legend: B batch, C channels, T slots, H W grid.
"""

from __future__ import annotations

from torch import Tensor

from inlay.masking.criteria import CRITERIA, Distance
from inlay.masking.scan import Limit, spread

SECOND_LOOK = 0.5  # of tau that a fill may be off: about what pairs of thresholds that keep the same number ask for
FIRST_LOOK = 0.9  # share of the tokens that the scan chooses
KEY_WEIGHT = 2.0  # of errors in a key slot, which last until their cell changes


def fill_error(z_BCTHW: Tensor, filled_BCTHW: Tensor, distance: Distance = CRITERIA["latent-l1"]) -> Tensor:
    """[B, T, H, W]: how far each cell is from its fill."""
    B, C, T, H, W = z_BCTHW.shape
    slots = (x.movedim(2, 1).reshape(B * T, C, H, W) for x in (z_BCTHW, filled_BCTHW))
    return distance(*slots).view(B, T, H, W)


def look_again(z_BCTHW: Tensor, filled_BCTHW: Tensor, limit: Limit) -> Tensor:
    """[B, T, H, W]: the cells whose fill is off by at least the limit, which may be one for each clip."""
    limit = spread(limit)
    return fill_error(z_BCTHW, filled_BCTHW) >= (limit[:, None] if isinstance(limit, Tensor) else limit)
