# SPDX-License-Identifier: Apache-2.0
"""Clips made by code: the same every time, any size, and moving where they say they move."""

from __future__ import annotations

import pytest
import torch

from inlay.errors import UsageError
from inlay.video import synthetic

CLIPS = {
    "demo": synthetic.demo_clip,
    "still": synthetic.still,
    "moving_square": synthetic.moving_square,
    "scene_cut": synthetic.scene_cut,
    "pan": synthetic.pan,
}


@pytest.mark.parametrize("name", CLIPS)
@pytest.mark.parametrize("size", [(1, 16, 16), (5, 33, 47), (2, 40, 24)])
def test_shape_and_determinism(name: str, size: tuple[int, int, int]) -> None:
    first, second = CLIPS[name](*size), CLIPS[name](*size)
    assert tuple(first.frames.shape) == (*size, 3)
    assert torch.equal(first.frames, second.frames)
    assert first.frames.float().std() > 5
    with pytest.raises(UsageError):
        CLIPS[name](0, 16, 16)


def changed(frames: torch.Tensor) -> torch.Tensor:
    """[T - 1] the share of pixels that differ from the frame before."""
    return (frames[1:] != frames[:-1]).any(-1).float().mean((1, 2))


def test_they_move_as_they_say() -> None:
    assert changed(synthetic.still(4).frames).max() == 0
    square = changed(synthetic.moving_square(9, 64, 64).frames)
    assert 0 < square.min() <= square.max() < 0.2
    cut = changed(synthetic.scene_cut(9, at=4).frames)
    assert (cut > 0).nonzero().flatten().tolist() == [3]
    assert changed(synthetic.pan(5).frames).min() > 0.5
    x = synthetic.pan(5, 32, 32, step=3).frames
    assert torch.equal(x[1][:, :-3], x[0][:, 3:])
    back = synthetic.pan(5, 32, 32, step=-3).frames
    assert torch.equal(back.flip(0), x)


def test_the_demo_stands_still_and_then_pans() -> None:
    moving = changed(synthetic.demo_clip(30, 64, 64).frames)
    assert moving[:18].max() < 0.35
    assert moving[22:26].min() > 0.6


def test_wrong_parameters() -> None:
    with pytest.raises(UsageError, match="square"):
        synthetic.moving_square(3, 16, 16, side=17)
    with pytest.raises(UsageError, match="cut"):
        synthetic.scene_cut(3, 16, 16, at=4)
