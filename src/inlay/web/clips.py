# SPDX-License-Identifier: Apache-2.0
"""A name in, a clip made by code out: what the page offers to those who have no video at hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from inlay.errors import pick
from inlay.video.frames import Video

FRAMES, SIDE = 33, 256


def _landscape() -> Video:
    from inlay.video.synthetic import demo_clip

    return demo_clip(FRAMES, SIDE, SIDE)


def _square() -> Video:
    from inlay.video.synthetic import moving_square

    return moving_square(FRAMES, SIDE, SIDE, step=(5, 3))


def _cut() -> Video:
    from inlay.video.synthetic import scene_cut

    return scene_cut(FRAMES, SIDE, SIDE)


CLIPS: dict[str, Callable[[], Video]] = {
    "Mill, train and ball": _landscape,
    "Moving square": _square,
    "Scene cut": _cut,
}


@lru_cache(maxsize=len(CLIPS))  # painting the landscape takes seconds, and a clip is never written to
def built_in(name: str) -> Video:
    return pick("built-in clip", name, CLIPS)()
