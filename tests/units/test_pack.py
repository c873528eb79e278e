# SPDX-License-Identifier: Apache-2.0
"""Packing: nothing lost between tokens and batch, positions that turn as they should, attention inside clips only."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from inlay.container.tokens import Tokens
from inlay.errors import ConfigError, InlayError, ShapeError, UsageError
from inlay.pack import (
    ATTENTIONS,
    Packed,
    RopeConfig,
    attend,
    flex_mask,
    grid_positions,
    pack,
    pack_kept,
    pack_latents,
    rope_angles,
    rotate,
    same_clip,
    sdpa_mask,
    slot_seconds,
    timed_positions,
    unpack,
)
from inlay.types import Recipe, Span, VideoInfo

SHAPES = [(5, 8, 8, 0.2), (3, 4, 6, 0.5), (9, 4, 4, 0.0), (1, 2, 2, 1.0)]


def tokens(T: int, H: int, W: int, keep: float, *, channels: int = 6, seed: int = 0, **recipe: Any) -> Tokens:
    rng = torch.Generator().manual_seed(seed)
    mask = torch.rand(T, H, W, generator=rng) < keep
    mask[0] = True
    return Tokens(
        values=torch.randn(int(mask.sum()), channels, generator=rng),
        mask=mask,
        info=VideoInfo(width=W * 8, height=H * 8, fps=Fraction(24), frames=1 + 4 * (T - 1)),
        recipe=Recipe(backbone="none", weight_hash="0", tau=0.1, **recipe),
    )


def clips() -> list[Tokens]:
    return [tokens(*shape, seed=i) for i, shape in enumerate(SHAPES)]


def query_key_value(batch: Packed, heads: int = 2, size: int = 12, **options: Any) -> tuple[Tensor, ...]:
    return tuple(torch.randn(len(batch.values), heads, size, **options) for _ in range(3))


def test_every_clip_comes_back_from_the_batch() -> None:
    made = clips()
    batch = pack(made)
    assert len(batch) == len(made) and batch.cu_seqlens.dtype == torch.int32
    assert batch.cu_seqlens.tolist()[-1] == len(batch.values) == sum(map(len, made))
    for one, clip in zip(batch, made, strict=True):
        assert torch.equal(one.values, clip.values)
        assert torch.equal(one.positions, clip.positions)
        assert torch.equal(one.run_lengths, clip.run_lengths)
        assert tuple(one.grids[0].tolist()) == tuple(clip.mask.shape)
    for dense, clip in zip(unpack(batch), made, strict=True):
        assert torch.equal(dense, clip.dense()[0])


def test_run_lengths_of_a_clip_add_up_to_all_its_cells() -> None:
    batch = pack(clips())
    for one in batch:
        assert int(one.run_lengths.sum()) == int(one.grids[0].prod())


def test_dense_latents_pack_as_tokens_that_keep_everything() -> None:
    z = torch.randn(2, 6, 3, 4, 5)
    batch = pack_latents(z)
    assert torch.equal(torch.stack(unpack(batch)), z)
    assert torch.equal(batch[1].positions, grid_positions(3, 4, 5))
    kept = tokens(3, 4, 5, 1.0)
    assert torch.equal(batch[0].positions, kept.positions)


def test_kept_cells_of_dense_latents_pack_as_their_tokens_do() -> None:
    made = [tokens(5, 4, 6, keep, seed=i) for i, keep in enumerate((0.2, 0.9, 0.0))]
    z, keep = torch.cat([t.dense() for t in made]), torch.stack([t.mask for t in made])
    z = torch.where(keep[:, None], z, 7.0)  # what was dropped is not read
    batch, wanted = pack_kept(z, keep), pack(made)
    for name in ("values", "positions", "run_lengths", "cu_seqlens", "grids"):
        assert torch.equal(getattr(batch, name), getattr(wanted, name)), name
    for wrong in (keep[:, :3], keep[0]):
        with pytest.raises(ShapeError, match=r"masks bool"):
            pack_kept(z, wrong)


def test_nested_and_padded_hold_the_same_clips() -> None:
    made = clips()
    batch = pack(made)
    rows, here = batch.padded()
    for i, (part, clip) in enumerate(zip(batch.nested().unbind(), made, strict=True)):
        assert torch.equal(part, clip.values)
        assert torch.equal(rows[i][here[i]], clip.values)
        assert not rows[i][~here[i]].any()


def test_expand_and_mean_stay_inside_their_clip() -> None:
    made = clips()
    batch = pack(made)
    number = torch.arange(len(made)).float()[:, None]
    assert torch.equal(batch.mean(batch.expand(number)), number)
    assert torch.allclose(batch.mean(batch.values)[1], made[1].values.mean(0))
    weighted = batch.mean(batch.values, batch.run_lengths)[0]
    share = made[0].run_lengths[:, None] / made[0].run_lengths.sum()
    assert torch.allclose(weighted, (made[0].values * share).sum(0), atol=1e-6)


def test_a_clip_with_no_tokens_has_its_place_in_the_batch() -> None:
    """A chunk of a stream may keep nothing."""
    mask = torch.zeros(2, 2, 2, dtype=torch.bool)
    empty = replace(tokens(2, 2, 2, 1.0), values=torch.zeros(0, 6), mask=mask)
    batch = pack([tokens(2, 2, 2, 1.0), empty, tokens(3, 2, 2, 0.5)])
    assert batch.lengths.tolist()[1] == 0 and len(batch[1].values) == 0
    assert not batch.mean(batch.values)[1].any()
    q, k, v = query_key_value(batch)
    for how in ATTENTIONS:
        assert torch.allclose(attend(q, k, v, batch, how=how), attend(q, k, v, batch, how="masked"), atol=1e-5)


def test_a_batch_prints_shapes_and_moves_its_values() -> None:
    batch = pack(clips()).to("cpu", torch.float16)
    assert batch.values.dtype == torch.float16 and batch.positions.dtype == torch.int64
    assert "4 clips" in repr(batch) and "tensor" not in repr(batch)


@pytest.mark.parametrize("wrong", [[], [tokens(2, 2, 2, 1.0), tokens(2, 2, 2, 1.0, channels=3)]])
def test_a_batch_needs_clips_with_the_same_channels(wrong: list[Tokens]) -> None:
    with pytest.raises(UsageError, match="same number of channels"):
        pack(wrong)


def test_shapes_that_do_not_agree_are_refused() -> None:
    batch = pack(clips())
    with pytest.raises(ShapeError, match="run lengths"):
        replace(batch, run_lengths=batch.run_lengths[1:])
    with pytest.raises(ShapeError, match="int32"):
        replace(batch, cu_seqlens=batch.cu_seqlens.long())
    with pytest.raises(ShapeError, match="cells"):
        attend(*(torch.randn(3, 2, 6) for _ in range(3)), batch)
    with pytest.raises(IndexError):
        batch[4]


# --- attention ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", list(ATTENTIONS))
def test_attention_over_the_batch_equals_attention_clip_by_clip(how: str) -> None:
    batch = pack(clips())
    q, k, v = query_key_value(batch)
    want, got = (attend(q, k, v, batch, how=h) for h in ("per-clip", how))
    assert torch.allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("how", ["masked", "nested"])
def test_so_do_its_gradients(how: str) -> None:
    batch = pack(clips())
    q, k, v = query_key_value(batch, requires_grad=True)
    want, got = (attend(q, k, v, batch, how=h) for h in ("per-clip", how))
    seed = torch.randn_like(want)
    for mine, theirs in zip(*(torch.autograd.grad(x, (q, k, v), seed) for x in (got, want)), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("how", list(ATTENTIONS))
def test_what_one_clip_says_does_not_reach_another(how: str) -> None:
    batch = pack(clips())
    q, k, v = query_key_value(batch)
    before = attend(q, k, v, batch, how=how)
    start, stop = batch.cu_seqlens[1:3].tolist()
    k[start:stop], v[start:stop] = 100.0, 100.0
    after = attend(q, k, v, batch, how=how)
    assert torch.equal(before[:start], after[:start]) and torch.equal(before[stop:], after[stop:])
    assert not torch.allclose(before[start:stop], after[start:stop])


def test_the_masks_of_sdpa_and_flex_attention_say_the_same() -> None:
    batch = pack(clips())
    n = len(batch.values)
    q, k = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    zero = torch.zeros((), dtype=torch.int64)
    dense = same_clip(batch)(zero, zero, q, k)
    assert torch.equal(dense, sdpa_mask(batch))
    assert int(dense.sum()) == sum(len(c) ** 2 for c in clips())


def test_the_block_mask_leaves_out_blocks_between_clips() -> None:
    batch = pack([tokens(2, 8, 16, 1.0), tokens(2, 8, 16, 1.0, seed=1)])  # two clips of two blocks each
    assert flex_mask(batch).to_dense()[0, 0].tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", list(ATTENTIONS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_on_a_gpu_equals_attention_clip_by_clip(how: str, dtype: torch.dtype) -> None:
    batch = pack(clips()).to("cuda")
    q, k, v = query_key_value(batch, size=16, device="cuda", dtype=dtype, requires_grad=True)
    want, got = (attend(q, k, v, batch, how=h) for h in ("per-clip", how))
    tolerance = 1e-2 if how == "flex" or dtype == torch.bfloat16 else 1e-4  # flex multiplies in TF32
    assert torch.allclose(got, want, atol=tolerance)
    seed = torch.randn_like(want)
    for mine, theirs in zip(*(torch.autograd.grad(x, (q, k, v), seed) for x in (got, want)), strict=True):
        assert torch.allclose(mine, theirs, atol=4 * tolerance)


def test_flex_attention_says_that_it_cannot_train_here() -> None:
    batch = pack(clips())
    with pytest.raises(UsageError, match="no backward pass on the CPU"):
        attend(*query_key_value(batch, requires_grad=True), batch, how="flex")


def test_an_unknown_attention_lists_the_choices() -> None:
    batch = pack(clips())
    with pytest.raises(InlayError, match="per-clip, masked, nested, flex"):
        attend(*query_key_value(batch), batch, how="flash")


# --- positions ------------------------------------------------------------------------------------------------------


def test_scores_depend_on_the_difference_of_positions_alone() -> None:
    config = RopeConfig(head_dim=32)
    place = torch.tensor([[0, 0, 0], [3, 5, 1]])
    q, k = torch.randn(2, 1, 1, 32).unbind()
    scores = []
    for shift in ([0, 0, 0], [2, 7, 4], [-1, 3, -6]):
        angles = rope_angles(place + torch.tensor(shift), config)
        scores.append((rotate(q, angles[:1]) * rotate(k, angles[1:])).sum())
    assert torch.allclose(torch.stack(scores), scores[0].expand(3), atol=1e-4)
    assert torch.allclose(rotate(q, rope_angles(place[1:], config)).norm(), q.norm())


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_each_axis_turns_its_own_pairs(axis: int) -> None:
    config = RopeConfig(head_dim=20, pairs=(4, 3, 3))
    place = torch.zeros(1, 3)
    place[0, axis] = 5
    turned = rope_angles(place, config)[0] != 0
    want = torch.repeat_interleave(torch.tensor(config.axes)) == axis
    assert torch.equal(turned, want)


def test_the_pairs_of_a_head_are_shared_out() -> None:
    assert RopeConfig(head_dim=128).axes == (22, 21, 21)
    for wrong in (
        {"head_dim": 7},
        {"head_dim": 12.0},
        {"head_dim": 32, "pairs": (4, 4, 4)},
        {"head_dim": 32, "base": 0.5},
    ):
        with pytest.raises(ConfigError):
            RopeConfig(**wrong)
    with pytest.raises(ShapeError):
        rope_angles(torch.zeros(4, 2), RopeConfig(head_dim=12))
    with pytest.raises(ShapeError):
        rotate(torch.zeros(4, 1, 12), torch.zeros(4, 5))


def chunked(mode: str) -> Tokens:
    """A key chunk of 9 frames and one more of 8 that begins a new slot 0, or goes on."""
    slots = 2 if mode == "stateful" else 3
    one = tokens(3 + slots, 2, 2, 0.5, streaming=mode)
    spans = (Span(slots=3, frames=9), Span(slots=slots, frames=8, key=False))
    info = VideoInfo(width=16, height=16, fps=Fraction(8), frames=17)
    return Tokens(values=one.values, mask=one.mask, info=info, recipe=one.recipe, spans=spans)


def test_slots_know_their_time() -> None:
    assert (slot_seconds(chunked("dual-cache")) * 8).tolist() == [0, 1, 5, 9, 10, 14]
    assert (slot_seconds(chunked("stateful")) * 8).tolist() == [0, 1, 5, 9, 13]
    made = chunked("stateful")
    given = replace(made, seconds=torch.arange(17).double() ** 2)
    assert slot_seconds(given).tolist() == [0, 1, 25, 81, 169]
    timed = timed_positions(given)
    assert torch.equal(timed[:, 1:].long(), given.positions[:, 1:])
    assert torch.equal(timed[:, 0].double(), slot_seconds(given)[given.positions[:, 0]])
