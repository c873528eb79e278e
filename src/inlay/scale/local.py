# SPDX-License-Identifier: Apache-2.0
"""Shards in, made by a pool of processes on this machine; a process that dies is replaced, and its shard made again."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from inlay.errors import InlayError
from inlay.scale.engine import STOP_GRACE_SECONDS, RunConfig, gpus, worker_count
from inlay.scale.plan import Shard
from inlay.scale.worker import Task, Told, Worker

STILLBORN = 3  # workers in a row that died before they were ready
LOADED = ["inlay.scale.local", "av", "constriction"]  # by the server that workers are forked from


@dataclass(kw_only=True, eq=False)
class Hand:
    """A worker process, seen from here."""

    process: BaseProcess
    pipe: Connection
    slot: int
    shard: Shard | None = None
    ready: bool = False

    def stop(self) -> None:
        self.process.terminate()
        self.process.join(STOP_GRACE_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


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
        context: Any = multiprocessing.get_context(start_method(task.device))
        ours, theirs = context.Pipe()
        if task.device == "cuda" and gpus() > 1:
            task = replace(task, device=f"cuda:{slot % gpus()}")
        process = context.Process(target=work, args=(task, theirs), name=f"inlay worker {slot}", daemon=True)
        with threads_in_environment(task.threads):
            begin(process)
        theirs.close()
        return Hand(process=process, pipe=ours, slot=slot)

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
                code = hand.process.exitcode
                raise InlayError(
                    f"workers die before they begin (exit code {code}); is there memory for {self.size} of them? "
                    "give fewer (--workers), then run the same command again; in a script of your own, call tokenize "
                    'under: if __name__ == "__main__"'
                )
        if hand.shard is not None:
            done, refused = self.counted.pop(hand.shard.number, (0, 0))
            self.told(-done, -refused)
            self.todo.appendleft(hand.shard)
        if self.todo:
            self.hands.append(self._start(hand.slot))


def start_method(device: str) -> str:
    """A fork of the job would share torch's threads. A server that has loaded the libraries, and no more, has none yet,
    and its forks need not load them again. With a GPU, and where there are no forks, a worker begins from nothing."""
    return "forkserver" if device == "cpu" and sys.platform == "linux" else "spawn"


def warm_up(device: str, threads: int) -> None:
    """Have the libraries loaded that workers need, while the job is still being planned."""
    if start_method(device) == "forkserver":
        from multiprocessing import forkserver

        multiprocessing.get_context("forkserver").set_forkserver_preload(LOADED)
        with threads_in_environment(threads):
            forkserver.ensure_running()


def begin(process: BaseProcess) -> None:
    """Start it; should the server it is forked from be killed at this very moment, from the next one."""
    try:
        process.start()
    except (OSError, EOFError):
        try:
            process.start()
        except (OSError, EOFError) as error:
            raise InlayError(f"no worker can be started ({error!r}); run the same command again to go on") from error


def run_local(task: Task, shards: list[Shard], run: RunConfig, told: Told) -> None:
    Pool(task, shards, run, told).run()


def work(task: Task, pipe: Connection) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the job hears it, and stops its workers
    _die_with_the_job()
    try:
        worker = Worker(task)
        pipe.send(("ready",))
        while True:
            shard: Shard = pipe.recv()
            worker.run(shard, lambda done, refused: pipe.send(("told", done, refused)))
            pipe.send(("done",))
    except (EOFError, ConnectionError):
        return
    except Exception as error:
        with contextlib.suppress(ConnectionError):
            pipe.send(("error", portable(error)))


def portable(error: Exception) -> InlayError:
    """An error that survives the way to another process."""
    if isinstance(error, InlayError):
        kind: type[InlayError] = type(error)
        return kind(str(error))
    text = (str(error).strip().splitlines() or ["no message"])[0]
    return InlayError(f"a worker failed: unexpected {type(error).__name__}: {text}")


def _die_with_the_job() -> None:
    """A worker whose job was killed would go on, unseen, with the machine's cores."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is somebody's child"

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def threads_in_environment(threads: int) -> Iterator[None]:
    """Libraries that count the cores for themselves are told before they are loaded."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
