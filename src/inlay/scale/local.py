# SPDX-License-Identifier: Apache-2.0
"""Shards in, made by a pool of processes on this machine; a process that dies is replaced, and its shard made again."""

from __future__ import annotations

import contextlib
import pickle
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import wait

from inlay.scale.engine import RunConfig, gpus, worker_count
from inlay.scale.plan import Shard
from inlay.scale.processes import STILLBORN, Hand, warm_up
from inlay.scale.worker import Task, Told


class Pool:
    """As many workers as there are slots, while there are shards."""

    def __init__(self, task: Task, shards: list[Shard], run: RunConfig, told: Told) -> None:
        self.task, self.told = task, told
        self.todo = deque(shards)
        self.size = min(worker_count(run, task.device), len(shards))
        self.hands: list[Hand] = []
        self.stillborn = 0
        self.counted: dict[int, tuple[int, int]] = {}  # shard -> what was told of it: it is told anew after a death

    def run(self) -> None:
        try:
            self.hands = [self._start(slot) for slot in range(self.size)]
            while self.todo or any(hand.shard for hand in self.hands):
                self._turn()
        finally:
            for hand in self.hands:
                hand.stop()

    def _start(self, slot: int) -> Hand:
        task = self.task
        if task.device == "cuda" and gpus() > 1:
            task = replace(task, device=f"cuda:{slot % gpus()}")
        return Hand.start(pickle.dumps(task), slot, device=task.device, threads=task.threads)

    def _turn(self) -> None:
        """Hear whoever has something to say, or has died."""
        heard = wait([hand.pipe for hand in self.hands])
        for hand in [hand for hand in self.hands if hand.pipe in heard]:
            try:
                self._hear(hand, hand.pipe.recv())
            except (EOFError, ConnectionError):
                self._bury(hand)

    def _hear(self, hand: Hand, message: tuple) -> None:
        kind, *rest = message
        if kind == "told":
            assert hand.shard is not None
            self._count(hand.shard, *rest)
        elif kind == "error":
            raise rest[0]
        else:  # ready, or done with a shard
            self.stillborn = 0
            hand.ready, hand.shard = True, None
            self._give(hand)

    def _give(self, hand: Hand) -> None:
        if self.todo:
            hand.shard = self.todo.popleft()
            with contextlib.suppress(ConnectionError):  # it has died: the pipe will say so
                hand.pipe.send(hand.shard)

    def _count(self, shard: Shard, done: int, refused: int) -> None:
        before = self.counted.get(shard.number, (0, 0))
        self.counted[shard.number] = (before[0] + done, before[1] + refused)
        self.told(done, refused)

    def _bury(self, hand: Hand) -> None:
        hand.stop()
        self.hands.remove(hand)
        if not hand.ready:
            self.stillborn += 1
            if self.stillborn >= STILLBORN:
                raise hand.stillborn(self.size)
        if hand.shard is not None:
            done, refused = self.counted.pop(hand.shard.number, (0, 0))
            self.told(-done, -refused)
            self.todo.appendleft(hand.shard)
        if self.todo:
            self.hands.append(self._start(hand.slot))


@contextlib.contextmanager
def local_ahead(run: RunConfig, device: str, threads: int) -> Iterator[Callable[[], None]]:
    """Have what workers need loaded while the job is still being planned."""
    warm_up(device, threads)
    yield lambda: None


def run_local(task: Task, shards: list[Shard], run: RunConfig, told: Told) -> None:
    Pool(task, shards, run, told).run()
