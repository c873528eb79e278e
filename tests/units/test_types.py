# SPDX-License-Identifier: Apache-2.0
"""The nouns refuse what they cannot be, and their parts agree with each other."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from inlay.container.tokens import Tokens, run_lengths
from inlay.errors import ConfigError, ShapeError
from inlay.types import Recipe, Span, VideoInfo
from inlay.video.frames import Video
from tests.conftest import moving_square

RECIPE = Recipe(backbone="mini", weight_hash="0" * 16, tau=0.3)


def some_tokens(mask: torch.Tensor, frames: int | None = None, **changes: object) -> Tokens:
    n = int(mask.sum())
    info = VideoInfo(
        width=8 * mask.shape[2], height=8 * mask.shape[1], fps=Fraction(25), frames=frames or 4 * mask.shape[0] - 3
    )
    return Tokens(values=torch.arange(n * 16.0).view(n, 16), mask=mask, info=info, recipe=RECIPE, **changes)


def test_pixels_and_back_is_exact() -> None:
    video = moving_square(5, 24, 40)
    x = video.pixels()
    assert x.shape == (1, 3, 5, 24, 40)
    assert x.min() >= -1
    assert x.max() <= 1
    assert torch.equal(Video.from_pixels(x[0]).frames, video.frames)


@pytest.mark.parametrize(
    "frames", [torch.zeros(3, 8, 8, 3), torch.zeros(8, 8, 3).byte(), torch.zeros(0, 8, 8, 3).byte()]
)
def test_video_refuses_other_shapes(frames: torch.Tensor) -> None:
    with pytest.raises(ShapeError, match=r"uint8 \[T, H, W, 3\]"):
        Video(frames=frames)


def test_tokens_count_must_match_mask() -> None:
    mask = torch.ones(2, 3, 3).bool()
    tokens = some_tokens(mask)
    with pytest.raises(ShapeError, match="the mask keeps 18 cells, values has 17 rows"):
        replace(tokens, values=tokens.values[1:])


def test_positions_follow_the_mask_in_order() -> None:
    mask = torch.rand(5, 4, 3) < 0.4
    mask[0] = True
    tokens = some_tokens(mask)
    t, y, x = tokens.positions.unbind(1)
    dense = tokens.dense()[0]
    assert torch.equal(dense[:, t, y, x].t(), tokens.values)
    assert not dense.permute(1, 2, 3, 0)[~mask].any()
    assert tokens.keep_rate == pytest.approx(mask.float().mean().item())


def test_run_lengths_cover_every_slot() -> None:
    mask = torch.rand(9, 6, 7) < 0.3
    mask[0] = True
    tokens = some_tokens(mask)
    assert tokens.run_lengths.sum() == mask.numel()  # each cell is spoken for by exactly one token
    assert tokens.run_lengths.min() >= 1
    slow = torch.zeros_like(mask, dtype=torch.int64)
    for t in range(9):
        for y in range(6):
            for x in range(7):
                later = [s for s in range(t + 1, 9) if mask[s, y, x]]
                slow[t, y, x] = (later[0] if later else 9) - t
    assert torch.equal(run_lengths(mask), slow)


def test_chunks_and_join_are_inverse() -> None:
    mask = torch.rand(11, 4, 4) < 0.5
    spans = (Span(slots=9, frames=33), Span(slots=2, frames=3))
    tokens = some_tokens(mask, frames=36, spans=spans, seconds=torch.arange(36) / 25.0)
    parts = list(tokens.chunks())
    assert [p.info.frames for p in parts] == [33, 3]
    back = Tokens.join(parts)
    assert torch.equal(back.values, tokens.values)
    assert torch.equal(back.mask, tokens.mask)
    assert back.spans == spans
    assert back.info == tokens.info
    assert torch.equal(back.seconds, tokens.seconds)


def test_spans_must_add_up() -> None:
    mask = torch.ones(3, 2, 2).bool()
    with pytest.raises(ShapeError, match="the chunks have 2 slots, the mask 3"):
        some_tokens(mask, spans=(Span(slots=2, frames=9),))


def test_recipe_refuses_nonsense() -> None:
    with pytest.raises(ConfigError, match="cannot be negative"):
        replace(RECIPE, tau=-0.1)
    with pytest.raises(ConfigError, match="unknown precision"):
        replace(RECIPE, precision="q7")


def test_values_print_shapes_not_numbers() -> None:
    text = repr(some_tokens(torch.ones(9, 32, 32).bool()))
    assert "9,216 of 9,216 cells (100.0%, mode clips)" in text
    assert "tensor" not in text + repr(moving_square(2, 8, 8))
