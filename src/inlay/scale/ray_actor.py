# SPDX-License-Identifier: Apache-2.0
"""Shards in, how they went out: a Ray actor with one worker process or more; torch is loaded there, not here.

Ray's own process stays small, and the workers of a machine are forks of one server that has loaded torch once; an actor
for each core would load everything as often. A worker that dies is replaced here, an actor that dies by Ray.
"""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from inlay.errors import InlayError
from inlay.scale.processes import STILLBORN, Hand, portable, warm_up

WATCH_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Orders:
    """What an actor is told once."""

    task: bytes  # pickled: only workers load what it is made of
    workers: int
    device: str
    threads: int


class ShardActor:
    """A row of shards in, how many videos were done and refused out; called by as many threads as it has workers."""

    def __init__(self, orders: Orders) -> None:
        _die_with_the_node()
        sys.modules["__main__"].__dict__.pop("__file__", None)  # Ray's own script, which workers would read again
        warm_up(orders.device, orders.threads)
        self.free: queue.SimpleQueue[Post] = queue.SimpleQueue()
        for slot in range(orders.workers):
            self.free.put(Post(orders, slot))

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Errors as rows, so that one line can be said about them."""
        done = refused = 0
        post = self.free.get()
        try:
            for shard in pickle.loads(row["shards"]):
                more, more_refused = post.run(shard)
                done, refused = done + more, refused + more_refused
            return {"done": done, "refused": refused, "error": ""}
        except Exception as error:
            return {"done": done, "refused": refused, "error": str(portable(error))}
        finally:
            self.free.put(post)


class Post:
    """The place of a worker, taken by another when it dies."""

    def __init__(self, orders: Orders, slot: int) -> None:
        self.orders, self.slot, self.stillborn = orders, slot, 0
        self.hand = self._start()

    def run(self, shard: bytes) -> tuple[int, int]:
        """Videos done, of which refused."""
        while True:
            try:
                return self._try(shard)
            except (EOFError, ConnectionError):
                self._replace()

    def _try(self, shard: bytes) -> tuple[int, int]:
        if not self.hand.ready:
            self._hear()
            self.hand.ready, self.stillborn = True, 0
        self.hand.pipe.send_bytes(shard)
        done = refused = 0
        while (message := self._hear())[0] == "told":
            done, refused = done + message[1], refused + message[2]
        return done, refused

    def _hear(self) -> tuple:
        message = self.hand.pipe.recv()
        if message[0] == "error":
            raise message[1]
        return message

    def _replace(self) -> None:
        self.hand.stop()
        if not self.hand.ready:
            self.stillborn += 1
            if self.stillborn >= STILLBORN:
                self.stillborn = 0
                raise self._given_up()
        self.hand = self._start()

    def _given_up(self) -> InlayError:
        error = self.hand.stillborn(self.orders.workers)
        self.hand = self._start()
        return error

    def _start(self) -> Hand:
        o = self.orders
        return Hand.start(o.task, self.slot, device=o.device, threads=o.threads)


def _die_with_the_node() -> None:
    """Actors of a Ray that was killed would take a minute to notice, with the cores of whoever goes on."""
    node = os.getppid()

    def watch() -> None:
        while os.getppid() == node:
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
