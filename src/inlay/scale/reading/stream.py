# SPDX-License-Identifier: Apache-2.0
"""`TokenStream`: the samples of a data set in a shuffled order, by sequential reads, shared out, resumable.

The order of an epoch is a pure function of (seed, epoch, consumer); a place in it is a number. Shards are shuffled and
laid end to end; consumer c of n, one for each rank and worker, takes the c-th of n equal stretches, reads it a window
at a time and yields the window shuffled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from inlay.errors import ConfigError, UsageError, check_number, pick
from inlay.scale.layout import VideoRecord
from inlay.scale.reading.dataset import TokenSource
from inlay.scale.reading.dense import MAKERS_CHOICE
from inlay.scale.store import Place

MOST_WORKERS = 4096
TAILS = {
    "keep": "every video comes; consumers may differ by one",
    "drop": "fewer videos than there are consumers are left out, so that all have the same number",
}


class TokenStream(TokenSource, IterableDataset[Any]):
    """A data set as a stream; every video once an epoch, whatever the number of ranks and workers.

    data = TokenStream("s3://bucket/tokens", mode="dense", layout="ltx", rank=rank, world=world)
    for epoch in range(epochs):
        data.set_epoch(epoch)
        for batch in DataLoader(data, batch_size=4, num_workers=4, collate_fn=collate_dense): ...

    A StatefulDataLoader saves and resumes by itself; with a plain one, save `state_after(batches)` and give it to
    `load_state_dict`.

    Args:
        seed: of the order; shuffle=False keeps the order of the set.
        window: videos that are read and shuffled together.
        rank: of `world` ranks; those of torch.distributed where it runs.
        tail: "drop" leaves out videos so that all consumers make the same number of steps.

    The others are those of `TokenDataset`.
    """

    def __init__(
        self,
        source: Place | Sequence[Place],
        *,
        mode: str = "sparse",
        fill: str = MAKERS_CHOICE,
        layout: str = "plain",
        weights: Place | None = None,
        dtype: torch.dtype | None = None,
        device: str = "cpu",
        normalise: bool = False,
        damaged: str = "raise",
        also: Callable[[VideoRecord], dict[str, Any]] | None = None,
        seed: int = 0,
        shuffle: bool = True,
        window: int = 256,
        rank: int | None = None,
        world: int | None = None,
        tail: str = "keep",
    ) -> None:
        super().__init__(
            source, mode=mode, fill=fill, layout=layout, weights=weights, dtype=dtype, device=device,
            normalise=normalise, damaged=damaged, also=also,
        )  # fmt: skip
        pick("tail", tail, TAILS)
        self.rank, self.world = _place(rank, world)
        check_number("window", window, "a number of videos, 1 or more", lambda n: n >= 1, whole=True)
        self.seed, self.shuffle, self.window, self.tail = seed, shuffle, window, tail
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # workers that live on must see it change
        self._done = 0  # of this consumer's videos in this epoch
        self._resume: dict[str, Any] | None = None
        self._served = torch.zeros(MOST_WORKERS, dtype=torch.bool).share_memory_()  # who went on from it already

    @property
    def epoch(self) -> int:
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Another order. Call it before every epoch, as with a DistributedSampler."""
        self._epoch.fill_(epoch)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        share, self._done = self._begin(worker, workers)
        order = self.order(self.epoch, share, workers)
        for start in range(self._done - self._done % self.window, len(order), self.window):
            rows = order[start : start + self.window]
            fetched = self.fetcher.many([self.members[i] for i in sorted(rows)])
            data = dict(zip(sorted(rows), fetched, strict=True))
            for row in rows[self._done - start :]:
                self._done += 1
                sample = self.sample(self.members[row], data.pop(row))
                if sample is not None:
                    yield sample
        self._done = 0

    def order(self, epoch: int, share: int, workers: int) -> list[int]:
        """The members that worker `share` of this rank yields, in order."""
        rows = self._end_to_end(epoch)
        consumers, consumer = self.world * workers, self.rank * workers + share
        total = len(rows) - (len(rows) % consumers if self.tail == "drop" else 0)
        mine = rows[consumer * total // consumers : (consumer + 1) * total // consumers]
        if not self.shuffle:
            return mine.tolist()
        rng = self._generator(epoch, 1 + consumer)
        windows = (mine[i : i + self.window] for i in range(0, len(mine), self.window))
        return [int(row) for window in windows for row in rng.permutation(window)]

    def _end_to_end(self, epoch: int) -> np.ndarray:
        """Every member once, shard after shard, the shards shuffled."""
        rows = np.arange(len(self.members))
        if not self.shuffle:
            return rows
        starts = [i for i in rows if i == 0 or self.members[i].place != self.members[i - 1].place]
        shards = np.split(rows, starts[1:])
        rng = self._generator(epoch, 0)
        if len(shards) == len(rows):  # loose files: nothing is gained by keeping neighbours together
            return rng.permutation(rows)
        return np.concatenate([shards[i] for i in rng.permutation(len(shards))])

    def _generator(self, epoch: int, stream: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=[self.seed, stream], counter=[0, 0, 0, epoch]))

    # --- resuming ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where this copy stands: in a worker, that worker; without workers, the whole stream of this rank."""
        return {"epoch": self.epoch, "done": self._done, "plan": self._plan()}

    def state_after(
        self, batches: int, *, batch_size: int, workers: int = 0, drop_last: bool = False
    ) -> dict[str, Any]:
        """Where a plain DataLoader stands that has given so many batches of this epoch."""
        if self.skipped:
            raise UsageError(
                f"{self.skipped} damaged videos were skipped, so batches do not tell how far each worker came; "
                "use a StatefulDataLoader, or take these videos out"
            )
        shares = max(workers, 1)
        sizes = [len(self.order(self.epoch, share, shares)) for share in range(shares)]
        left = [n // batch_size if drop_last else -(-n // batch_size) for n in sizes]
        done, turn = [0] * shares, 0
        for _ in range(batches):
            if not any(left):
                raise UsageError(f"an epoch of this rank has fewer than {batches} batches of {batch_size}")
            while not left[turn]:
                turn = (turn + 1) % shares
            left[turn] -= 1
            done[turn] = min(done[turn] + batch_size, sizes[turn])
            turn = (turn + 1) % shares
        return {"epoch": self.epoch, "done": done, "turn": turn, "plan": self._plan()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there: the next iteration of that epoch yields what is left of it, in the same order."""
        if state.get("plan") != self._plan():
            raise UsageError(
                f"this state belongs to another stream: it was saved with {state.get('plan')}, and this is "
                f"{self._plan()}; resume with the same data, settings and number of ranks"
            )
        self.set_epoch(state["epoch"])
        self._resume = state
        info = get_worker_info()
        self._served[info.id if info else slice(None)] = False

    def _begin(self, worker: int, workers: int) -> tuple[int, int]:
        """(share, videos already done) of this worker; a state serves one epoch."""
        state, self._resume = self._resume, None
        if state is None or state["epoch"] != self.epoch or self._served[worker]:
            return worker, 0
        self._served[worker] = True  # the workers of the next iteration are copies of who still has the state
        if isinstance(state["done"], int):
            return worker, state["done"]
        if len(state["done"]) != workers:
            raise UsageError(
                f"this state was saved with {len(state['done'])} workers, the loader has {workers}; use the same number"
            )
        share = (worker + state["turn"]) % workers  # the loader asks worker 0 first: it goes on for the one due next
        return share, state["done"][share]

    def _plan(self) -> dict[str, Any]:
        names = ("seed", "shuffle", "window", "world", "tail")
        return {"videos": len(self.members), "rank": self.rank} | {name: getattr(self, name) for name in names}


def _place(rank: int | None, world: int | None) -> tuple[int, int]:
    if rank is None and world is None:
        spread = torch.distributed.is_available() and torch.distributed.is_initialized()
        return (torch.distributed.get_rank(), torch.distributed.get_world_size()) if spread else (0, 1)
    rank, world = 0 if rank is None else rank, 1 if world is None else world
    if not 0 <= rank < world:
        raise ConfigError(f"rank is counted from 0 and below world; got rank {rank} of {world}")
    return rank, world
