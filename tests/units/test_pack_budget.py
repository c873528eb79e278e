# SPDX-License-Identifier: Apache-2.0
"""Batches under a token budget: under it, full, complete, shared out among ranks, repeatable, resumable."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from inlay.errors import ConfigError, UsageError
from inlay.pack import ShapeSampler, TokenBudgetSampler

LENGTHS = [int(n) for n in torch.randint(20, 900, (500,), generator=torch.Generator().manual_seed(3))]


def batches(world: int = 1, epoch: int = 0, **options: object) -> list[list[list[int]]]:
    """[rank][step] -> clips."""
    ranks = [TokenBudgetSampler(LENGTHS, budget=2048, rank=r, world=world, **options) for r in range(world)]  # type: ignore[arg-type]
    for sampler in ranks:
        sampler.set_epoch(epoch)
    return [list(sampler) for sampler in ranks]


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_each_clip_comes_once_and_ranks_keep_step(world: int) -> None:
    ranks = batches(world)
    seen = Counter(i for rank in ranks for batch in rank for i in batch)
    assert seen == Counter(range(len(LENGTHS)))
    assert len({len(rank) for rank in ranks}) == 1
    assert all(sum(LENGTHS[i] for i in batch) <= 2048 for rank in ranks for batch in rank)


def test_batches_are_nearly_full() -> None:
    assert TokenBudgetSampler(LENGTHS, budget=2048).fill_rate() > 0.97
    assert TokenBudgetSampler(LENGTHS, budget=2048, window=64).fill_rate() > 0.9


def test_the_order_is_fixed_by_seed_and_epoch() -> None:
    assert batches() == batches()
    assert batches() != batches(epoch=1)
    assert batches() != batches(seed=1)
    plain = batches(shuffle=False)
    assert plain == batches(shuffle=False, epoch=5)


@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize("stop", [0, 1, 9])
def test_a_resumed_epoch_goes_on_where_it_stopped(world: int, stop: int) -> None:
    whole = batches(world, epoch=2)[world - 1]
    options = {"budget": 2048, "rank": world - 1, "world": world}
    first = TokenBudgetSampler(LENGTHS, **options)
    first.set_epoch(2)
    begun = [batch for _, batch in zip(range(stop), first, strict=False)]
    again = TokenBudgetSampler(LENGTHS, **options)
    again.load_state_dict(first.state_dict(done=stop))
    assert begun + list(again) == whole
    assert list(again) == whole, "after the end the sampler stands at the beginning again"


def test_a_loader_with_workers_resumes_by_the_batches_that_are_done() -> None:
    sampler = TokenBudgetSampler(LENGTHS, budget=2048)
    loader = DataLoader(range(len(LENGTHS)), batch_sampler=sampler, num_workers=1, collate_fn=list)  # type: ignore[arg-type]
    steps = iter(loader)
    seen = [next(steps) for _ in range(3)]
    state = sampler.state_dict(done=len(seen))
    del steps
    again = TokenBudgetSampler(LENGTHS, budget=2048)
    again.load_state_dict(state)
    assert seen + list(again) == list(TokenBudgetSampler(LENGTHS, budget=2048))


def test_a_state_of_other_batches_is_refused() -> None:
    state = TokenBudgetSampler(LENGTHS, budget=2048).state_dict()
    with pytest.raises(UsageError, match="other batches"):
        TokenBudgetSampler(LENGTHS, budget=1024).load_state_dict(state)
    with pytest.raises(UsageError, match="other batches"):
        TokenBudgetSampler(LENGTHS[:-1], budget=2048).load_state_dict(state)
    shapes = list(range(1000))
    with pytest.raises(UsageError, match="with batch_size 2 and not 3; resume"):
        ShapeSampler(shapes, batch_size=3).load_state_dict(ShapeSampler(shapes, batch_size=2).state_dict())
    with pytest.raises(UsageError, match="other batches") as caught:
        ShapeSampler(shapes[1:], batch_size=2).load_state_dict(ShapeSampler(shapes, batch_size=2).state_dict())
    assert len(str(caught.value)) < 300


def test_tails() -> None:
    ones = [100] * 10
    with pytest.raises(UsageError, match="evenly"):
        list(TokenBudgetSampler(ones, budget=100, world=4))
    kept = [list(TokenBudgetSampler(ones, budget=100, world=4, rank=r, tail="keep")) for r in range(4)]
    assert [len(k) for k in kept] == [3, 3, 2, 2]
    dropped = [list(TokenBudgetSampler(ones, budget=100, world=4, rank=r, tail="drop")) for r in range(4)]
    assert [len(d) for d in dropped] == [2, 2, 2, 2]


def test_a_clip_over_the_budget_is_refused_or_goes_alone() -> None:
    with pytest.raises(UsageError, match="clip 1 has 300 tokens"):
        TokenBudgetSampler([10, 300, 20], budget=100)
    found = list(TokenBudgetSampler([10, 300, 20], budget=100, alone=True))
    assert sorted(map(sorted, found)) == [[0, 2], [1]]


@pytest.mark.parametrize("wrong", [{"rank": 2, "world": 2}, {"budget": 0}, {"window": 0}])
def test_settings_are_checked(wrong: dict) -> None:
    with pytest.raises(ConfigError):
        TokenBudgetSampler([1, 2], **{"budget": 10, **wrong})
    with pytest.raises(UsageError):
        TokenBudgetSampler([], budget=10)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 50), min_size=1, max_size=40), world=st.integers(1, 4), window=st.integers(1, 50)
)
def test_any_lengths_any_ranks(lengths: list[int], world: int, window: int) -> None:
    ranks = [
        list(TokenBudgetSampler(lengths, budget=50, world=world, rank=r, window=window, tail="keep"))
        for r in range(world)
    ]
    assert sorted(i for rank in ranks for batch in rank for i in batch) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in batch) <= 50 for rank in ranks for batch in rank)


def test_samplers_print_what_they_are() -> None:
    shapes = ShapeSampler([(9, 32, 32)] * 5 + [(17, 32, 32)], batch_size=2, rank=1, world=2)
    assert repr(shapes) == (
        "ShapeSampler(6 clips, 2 different shapes, batches of 2, rank 1 of 2; epoch 0, batch 0 is next)"
    )
    lengths = TokenBudgetSampler([500, 700], budget=1000)
    next(iter(lengths))
    assert repr(lengths) == "TokenBudgetSampler(2 clips, 1,200 tokens, budget 1,000; epoch 0, batch 1 is next)"


@pytest.mark.parametrize("world", [1, 3])
def test_batches_of_one_shape(world: int) -> None:
    shapes = [(9, 32, 32 if i % 3 else 48) for i in range(50)]
    samplers = [ShapeSampler(shapes, batch_size=8, world=world, rank=r, seed=1) for r in range(world)]
    ranks = [list(sampler) for sampler in samplers]
    assert sorted(i for rank in ranks for batch in rank for i in batch) == list(range(50))
    assert all(len({shapes[i] for i in batch}) == 1 and len(batch) <= 8 for rank in ranks for batch in rank)
    assert len({len(rank) for rank in ranks}) == 1
    samplers[0].set_epoch(1)
    assert list(samplers[0]) != ranks[0]
    with pytest.raises(ConfigError):
        ShapeSampler(shapes, batch_size=0)
