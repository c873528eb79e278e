# SPDX-License-Identifier: Apache-2.0
"""How coarsely kept cells are rounded: a ladder in grey levels of the picture, the same for every backbone.

A step of X on the ladder is, in every channel, the change of a latent that moves the picture by X grey levels (root
mean square). With equal steps in the picture no channel spends bits that another would put to better use.
"""

from __future__ import annotations

from collections.abc import Sequence

from inlay.errors import ConfigError
from inlay.types import LARGEST_STEP, checked_steps

LADDER = {"lossless-ish": 0.5, "fine": 1.0, "normal": 2.0, "coarse": 4.0, "small": 8.0}
OWN = "deviation"  # no place on the ladder: a sixteenth of each channel's deviation, chunk by chunk
CACHE = "cache"  # the place that the profile has for caches of all cells
_DEAD = 1e-3  # of the largest gain: a channel that hardly reaches the picture has no finite step of its own


def step_size(step: str | float) -> float | None:
    """The place on the ladder that a name or a number stands for; None for steps from the deviations."""
    if step == OWN:
        return None
    try:
        size = LADDER[step] if step in LADDER else float(step)
    except (ValueError, TypeError) as error:
        raise _wrong(step) from error
    if isinstance(step, bool) or not 0 < size <= LARGEST_STEP:  # NaN compares false, and so is refused
        raise _wrong(step)
    return size


def channel_steps(gains: Sequence[float], step: float) -> tuple[float, ...]:
    """The step of each channel that changes the picture by `step` grey levels, as a file holds it."""
    least = max(gains) * _DEAD
    return checked_steps([step / max(gain, least) for gain in gains])


def _wrong(step: object) -> ConfigError:
    names = ", ".join([*LADDER, CACHE, OWN])
    return ConfigError(
        f"a step is one of {names}, or a number above 0 and at most {LARGEST_STEP:g}; got {str(step)[:40]!r}",
        about="step",
    )
