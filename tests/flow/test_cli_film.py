# SPDX-License-Identifier: Apache-2.0
"""What the film shows: the right cells dark, at the right frames, however the pieces were cut."""

from __future__ import annotations

import pytest
import torch

from inlay.app.film import EDGE, compose, frame_keep_rates, lit, shots, slot_of_frame
from inlay.app.letters import bitmap
from inlay.errors import ShapeError
from inlay.types import Recipe, Span, Tokens, Video, VideoInfo
from tests.conftest import moving_square


def make_tokens(mask_THW: torch.Tensor, *, frames: int, height: int, width: int, key: bool = True) -> Tokens:
    return Tokens(
        values=torch.zeros(int(mask_THW.sum()), 16),
        mask=mask_THW,
        info=VideoInfo(width=width, height=height, fps=moving_square(1, 8, 8).fps, frames=frames),
        recipe=Recipe(backbone="x", weight_hash="x", tau=0.1),
        spans=(Span(slots=len(mask_THW), frames=frames, key=key),),
    )


def left_half(slots: int) -> torch.Tensor:
    """Slot 0 kept whole, afterwards only the left of two columns."""
    mask = torch.ones(slots, 2, 2, dtype=torch.bool)
    mask[1:, :, 1] = False
    return mask


def test_slot_0_of_a_key_chunk_shows_one_frame() -> None:
    key = make_tokens(left_half(3), frames=9, height=16, width=16)
    assert slot_of_frame(key).tolist() == [0, 1, 1, 1, 1, 2, 2, 2, 2]
    carried = make_tokens(left_half(2), frames=7, height=16, width=16, key=False)
    assert slot_of_frame(carried).tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert frame_keep_rates(key).tolist() == [1.0] + [0.5] * 8


def test_dropped_cells_turn_dark_and_kept_ones_stay() -> None:
    video = Video(frames=torch.full((5, 15, 13, 3), 200, dtype=torch.uint8))  # odd: the grid is cropped
    out = lit(video.frames, make_tokens(left_half(2), frames=5, height=15, width=13))
    assert out[0].equal(video.frames[0])
    assert out[1:, :, :8].equal(video.frames[1:, :, :8])
    assert (out[1:, :, 8] == EDGE).all()
    assert (out[1:, :, 9:] == 80).all()


def test_shots_do_not_depend_on_how_the_pieces_are_cut() -> None:
    video = moving_square(14, 16, 16)
    size = {"height": 16, "width": 16}
    tokens = [make_tokens(left_half(3), frames=9, **size), make_tokens(left_half(2), frames=5, **size)]
    whole = list(shots(tokens, [video], [video]))
    cut = list(shots(tokens, [video[:4], video[4:]], [video[:1], video[1:11], video[11:]]))
    for a, b in zip(whole, cut, strict=True):
        assert compose(a).frames.equal(compose(b).frames)
    assert [len(compose(s)) for s in whole] == [9, 5]


def test_a_shorter_video_is_refused() -> None:
    tokens = [make_tokens(left_half(3), frames=9, height=16, width=16)]
    with pytest.raises(ShapeError, match="original video has 2 frames fewer"):
        list(shots(tokens, [moving_square(9, 16, 16)], [moving_square(7, 16, 16)]))


@pytest.mark.parametrize(("height", "width"), [(16, 16), (15, 13), (300, 400), (601, 777)])
def test_film_sides_are_even_and_legible(height: int, width: int) -> None:
    video = moving_square(1, height, width)
    mask = torch.ones(1, -(-height // 8), -(-width // 8), dtype=torch.bool)
    film = compose(next(shots([make_tokens(mask, frames=1, height=height, width=width)], [video], [video])))
    assert film.width % 2 == film.height % 2 == 0
    assert 240 <= film.height <= 600


def test_letters_differ_and_unknown_signs_are_blank() -> None:
    drawn = [bitmap(sign, scale=1) for sign in "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%./:-"]
    assert len({tuple(d.flatten().tolist()) for d in drawn}) == len(drawn)
    assert bitmap("kept", scale=2).equal(bitmap("KEPT", scale=2))
    assert not bitmap("§").any()
