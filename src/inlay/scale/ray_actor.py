# SPDX-License-Identifier: Apache-2.0
"""The Ray actor that makes shards with one worker process or more; torch is loaded there, not here.

Ray's own process stays small, and the workers of a machine are forks of one server that has loaded torch once; an actor
for each core would load everything as often. A worker that dies is replaced here, an actor that dies by Ray.
"""

from __future__ import annotations

import os
import pickle
import queue
import sys
import time
from typing import Any

from inlay.scale.workers import WorkerConfig, WorkerSlot, exit_when, portable, warm_up

WATCH_SECONDS = 0.5


class ShardActor:
    """Makes rows of shards; called by as many threads as it has workers."""

    def __init__(self, config: WorkerConfig) -> None:
        exit_when(_orphaned)
        sys.modules["__main__"].__dict__.pop("__file__", None)  # Ray's own script, which workers would read again
        warm_up(config.device, config.threads)
        self.free: queue.SimpleQueue[WorkerSlot] = queue.SimpleQueue()
        for slot in range(config.workers):
            self.free.put(WorkerSlot(config, slot))

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """How many videos were done and refused; an error as text, so that one line can be said about it."""
        result: dict[str, Any] = {"done": 0, "refused": 0, "error": ""}

        def count(done: int, refused: int) -> None:
            result["done"] += done
            result["refused"] += refused

        slot = self.free.get()
        try:
            for shard in pickle.loads(row["shards"]):
                slot.run(shard, count)
        except Exception as error:
            result["error"] = str(portable(error))
        finally:
            self.free.put(slot)
        return result


def _orphaned() -> None:
    """Wait for the end of the node; actors of a Ray that was killed would take a minute to notice."""
    node = os.getppid()
    while os.getppid() == node:
        time.sleep(WATCH_SECONDS)
