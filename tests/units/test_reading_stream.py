# SPDX-License-Identifier: Apache-2.0
"""Streams of tokens: each video once whatever the ranks and workers, the same order for the same seed, resumable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from inlay.container.tokens import Tokens
from inlay.errors import ConfigError, TokenFileError, UsageError
from inlay.pack import TokenBudgetSampler
from inlay.scale.reading import TokenDataset, TokenStream
from tests.units.test_reading import COUNT, clips, damage, loose, tables, tars, write_set  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more workers than cores

KEYS = sorted(f"{i:08d}" for i in range(COUNT))


def keys(samples: list[Any]) -> list[str]:
    return [s.key for s in samples]


def loader(data: TokenStream, workers: int = 0, batch: int = 3, **options: Any) -> DataLoader:
    return DataLoader(data, batch_size=batch, num_workers=workers, collate_fn=keys, **options)


def streams(folder: Path, world: int, **options: Any) -> list[TokenStream]:
    return [TokenStream(folder, rank=r, world=world, window=4, **options) for r in range(world)]


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_no_video_comes_twice_and_none_is_missing(tars: Path, world: int, workers: int) -> None:  # noqa: F811
    seen = [key for data in streams(tars, world) for batch in loader(data, workers) for key in batch]
    assert sorted(seen) == KEYS


@pytest.mark.parametrize("consumers", [(1, 40), (7, 5), (40, 1)])
def test_more_consumers_than_videos(tars: Path, consumers: tuple[int, int]) -> None:  # noqa: F811
    world, workers = consumers
    ranks = streams(tars, world)
    rows = [row for data in ranks for share in range(workers) for row in data.order(0, share, workers)]
    assert sorted(rows) == list(range(COUNT))


@pytest.mark.parametrize("world", [2, 3, 4])
def test_consumers_can_be_made_even(tars: Path, world: int) -> None:  # noqa: F811
    counts = [len(data.order(1, share, 2)) for data in streams(tars, world, tail="drop") for share in range(2)]
    assert set(counts) == {COUNT // (2 * world)}


def test_the_order_is_fixed_by_seed_and_epoch(tars: Path, tables: Path, loose: Path) -> None:  # noqa: F811
    for place in (tars, tables, loose):
        data = TokenStream(place, window=4)
        first = keys(list(data))
        assert keys(list(data)) == first, "without set_epoch the epoch is the same"
        data.set_epoch(1)
        second = keys(list(data))
        assert sorted(first) == sorted(second) and first != second
        assert keys(list(TokenStream(place, window=4, seed=1))) != first
        assert keys(list(TokenStream(place, window=4))) == first
        plain = TokenStream(place, shuffle=False)
        assert keys(list(plain)) == [m.key for m in plain.members]


def test_shards_are_read_in_stretches_and_mixed_in_windows(tars: Path) -> None:  # noqa: F811
    data = TokenStream(tars, window=5)
    order = data.order(0, 0, 1)
    shards = [{data.members[i].place for i in order[k : k + 5]} for k in range(0, COUNT, 5)]
    assert all(len(s) <= 2 for s in shards)
    assert order != sorted(order)


def test_workers_that_live_on_hear_of_a_new_epoch(tars: Path) -> None:  # noqa: F811
    data = TokenStream(tars, window=4)
    lasting = loader(data, 2, persistent_workers=True)
    first = list(lasting)
    data.set_epoch(1)
    assert list(lasting) != first
    data.set_epoch(0)
    assert list(lasting) == first


# --- resuming -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [0, 1, 4, 5, 22, 23])
def test_a_stream_without_workers_resumes_at_any_sample(tars: Path, stop: int) -> None:  # noqa: F811
    data = TokenStream(tars, window=4)
    data.set_epoch(3)
    whole = keys(list(data))
    steps = iter(data)
    begun = [next(steps).key for _ in range(stop)]
    again = TokenStream(tars, window=4)
    again.load_state_dict(data.state_dict())
    assert again.epoch == 3
    assert begun + keys(list(again)) == whole
    assert keys(list(again)) == whole, "a state serves one epoch"


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_plain_loader_resumes_after_any_batch(tars: Path, workers: int, rank: int) -> None:  # noqa: F811
    data = TokenStream(tars, rank=rank, world=2, window=4)
    whole = list(loader(data, workers))
    for done in range(0, len(whole) + 1, 2):
        again = TokenStream(tars, rank=rank, world=2, window=4)
        again.load_state_dict(data.state_after(done, batch_size=3, workers=workers))
        assert list(loader(again, workers)) == whole[done:]


@pytest.mark.parametrize("workers", [0, 2])
def test_after_a_resumed_epoch_comes_a_whole_one(tars: Path, workers: int) -> None:  # noqa: F811
    """Also where it is the same epoch again: workers are copies of a stream that still has the state."""
    data = TokenStream(tars, window=4)
    state = data.state_after(2, batch_size=3, workers=workers)
    for _ in range(2):
        data.load_state_dict(state)
        assert sum(len(b) for b in loader(data, workers)) == COUNT - 6
        assert sorted(k for b in loader(data, workers) for k in b) == KEYS
    data.set_epoch(1)
    assert sorted(k for b in loader(data, workers) for k in b) == KEYS


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_resumes_by_itself(tars: Path, workers: int) -> None:  # noqa: F811
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    options = {"batch_size": 3, "num_workers": workers, "collate_fn": keys}
    data = TokenStream(tars, window=4)
    data.set_epoch(2)
    first = stateful(data, **options)
    steps = iter(first)
    begun = [next(steps) for _ in range(3)]
    state = first.state_dict()
    rest = list(steps)
    again = stateful(TokenStream(tars, window=4), **options)
    again.load_state_dict(state)
    assert list(again) == rest
    assert sorted(k for b in begun + rest for k in b) == KEYS


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [1, 4])
def test_a_stateful_loader_resumes_a_budget_sampler(tars: Path, workers: int, stop: int) -> None:  # noqa: F811
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def built() -> Any:
        data = TokenDataset(tars)
        sampler = TokenBudgetSampler(data.token_counts, budget=24)
        return stateful(data, batch_sampler=sampler, num_workers=workers, collate_fn=keys)

    first = built()
    steps = iter(first)
    begun = [next(steps) for _ in range(stop)]
    state = first.state_dict()
    rest = list(steps)
    again = built()
    again.load_state_dict(state)
    assert list(again) == rest
    assert sorted(k for b in begun + rest for k in b) == KEYS


def test_a_state_of_another_stream_is_refused(tars: Path) -> None:  # noqa: F811
    state = TokenStream(tars, window=4).state_after(1, batch_size=3, workers=2)
    with pytest.raises(UsageError, match="another stream"):
        TokenStream(tars, window=5).load_state_dict(state)
    again = TokenStream(tars, window=4)
    again.load_state_dict(state)
    with pytest.raises(UsageError, match="2 workers"):
        list(again)
    with pytest.raises(UsageError, match="fewer than 9"):
        again.state_after(9, batch_size=3)


# --- damage and settings --------------------------------------------------------------------------------------------


def test_damage_ends_the_stream_or_is_skipped_and_counted(tmp_path: Path, clips: list[Tokens]) -> None:  # noqa: F811
    folder = write_set(tmp_path / "set", clips)
    damage(folder, 3)
    damage(folder, 12)
    with pytest.raises(TokenFileError, match="shard-0000"):
        list(TokenStream(folder))
    data = TokenStream(folder, damaged="skip", window=4)
    seen = [key for batch in loader(data, 2) for key in batch]
    assert sorted(seen) == [k for k in KEYS if int(k) not in (3, 12)]
    assert data.skipped == 2
    with pytest.raises(UsageError, match="damaged videos were skipped"):
        data.state_after(1, batch_size=3)


def test_settings_are_checked(tars: Path) -> None:  # noqa: F811
    for wrong in ({"rank": 2, "world": 2}, {"world": 0}, {"window": 0}):
        with pytest.raises(ConfigError):
            TokenStream(tars, **wrong)
    with pytest.raises(UsageError, match="choices"):
        TokenStream(tars, tail="split")
