# SPDX-License-Identifier: Apache-2.0
"""The clips made by code that the page offers to those who have no video at hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

from inlay.errors import pick
from inlay.video import synthetic
from inlay.video.frames import Video

FRAMES, SIDE = 33, 256
CLIPS: dict[str, Callable[[int, int, int], Video]] = {
    "Mill, train and ball": synthetic.demo_clip,
    "Moving square": partial(synthetic.moving_square, step=(5, 3)),
    "Scene cut": synthetic.scene_cut,
}


@lru_cache(maxsize=len(CLIPS))  # painting the landscape takes seconds, and a clip is never written to
def built_in(name: str) -> Video:
    return pick("built-in clip", name, CLIPS)(FRAMES, SIDE, SIDE)
