# SPDX-License-Identifier: Apache-2.0
"""What a worker is to do in, a process that does it out, spoken with by a pipe; torch is loaded there, not here."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from inlay.errors import InlayError

STOP_GRACE_SECONDS = 5.0
STILLBORN = 3  # workers in a row that died before they were ready
LOADED = ["inlay.scale.worker", "av", "constriction"]  # by the server that workers are forked from


@dataclass(kw_only=True, eq=False)
class Hand:
    """A worker process, seen from here."""

    process: BaseProcess
    pipe: Connection
    slot: int
    shard: Any = None
    ready: bool = False

    @staticmethod
    def start(task: bytes, slot: int, *, device: str, threads: int) -> Hand:
        """`task` is pickled, because whoever starts workers need not load what it is made of."""
        context: Any = multiprocessing.get_context(start_method(device))
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(task, theirs), name=f"inlay worker {slot}", daemon=True)
        with threads_in_environment(threads):
            begin(process)
        theirs.close()
        return Hand(process=process, pipe=ours, slot=slot)

    def stop(self) -> None:
        self.process.terminate()
        self.process.join(STOP_GRACE_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()

    def stillborn(self, workers: int) -> InlayError:
        """What to say when workers die before they begin."""
        return InlayError(
            f"workers die before they begin (exit code {self.process.exitcode}); is there memory for {workers} of "
            "them? give fewer, then run the same job again; in a script of your own, call tokenize under: "
            'if __name__ == "__main__"',
            about="workers",
        )


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


def work(task: bytes, pipe: Connection) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the job hears it, and stops its workers
    _die_with_the_job()
    try:
        from inlay.scale.worker import Worker

        worker = Worker(pickle.loads(task))
        pipe.send(("ready",))
        while True:
            shard = pipe.recv()
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
