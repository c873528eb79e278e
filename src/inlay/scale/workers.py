# SPDX-License-Identifier: Apache-2.0
"""Worker processes that make shards: started, replaced when they die, stopped with the job; only they load torch."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from inlay.errors import InlayError

if TYPE_CHECKING:
    from inlay.scale.config import RunConfig
    from inlay.scale.plan import Shard
    from inlay.scale.worker import Task

STOP_GRACE_SECONDS = 5.0
MOST_FAILED_STARTS = 3  # workers in a row that died before they were ready
LOADED = ["inlay.scale.worker", "av", "constriction"]  # by the server that workers are forked from
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

Progress = Callable[[int, int], None]  # videos done, of which refused; below 0: taken back
_STARTING = threading.Lock()  # a start changes the environment for a moment


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """What all workers of a pool or an actor have in common."""

    task: bytes  # pickled: whoever starts workers need not load what it is made of
    workers: int
    device: str
    threads: int


class WorkerSlot:
    """A worker process, replaced by another when it dies."""

    process: BaseProcess
    pipe: Connection
    ready: bool

    def __init__(self, config: WorkerConfig, slot: int) -> None:
        self.config, self.slot = config, slot
        self.failed_starts = 0
        self.stopped = False
        self._start()

    def run(self, shard: bytes, progress: Progress) -> None:
        """Have a pickled shard made; what a worker that died had counted is taken back."""
        while True:
            done = refused = 0
            try:
                if not self.ready:
                    self._receive()
                    self.ready, self.failed_starts = True, 0
                self.pipe.send_bytes(shard)
                while (message := self._receive())[0] == "progress":
                    done, refused = done + message[1], refused + message[2]
                    progress(*message[1:])
                return
            except (EOFError, OSError):
                progress(-done, -refused)
                self._replace()

    def stop(self) -> None:
        """End the process, for good."""
        with _STARTING:
            self.stopped = True
            self._end()

    def _receive(self) -> tuple[Any, ...]:
        message = self.pipe.recv()
        if message[0] == "error":
            raise message[1]
        return message

    def _replace(self) -> None:
        with _STARTING:
            self._end()
            if self.stopped:
                raise InlayError("the job is being stopped")
        self.failed_starts += not self.ready
        failed = self.failed_starts >= MOST_FAILED_STARTS
        error = InlayError(
            f"workers die before they begin (exit code {self.process.exitcode}); is there memory for "
            f"{self.config.workers} of them? give fewer, then run the same job again",
            about="workers",
        )
        self.failed_starts = 0 if failed else self.failed_starts
        self._start()
        if failed:
            raise error

    def _start(self) -> None:
        context: Any = multiprocessing.get_context(start_method(self.config.device))
        ours, theirs = context.Pipe()
        name = f"inlay worker {self.slot}"
        process = context.Process(target=work, args=(self.config.task, theirs), name=name, daemon=True)
        with _STARTING, script_hidden(), environment(dict.fromkeys(THREAD_VARIABLES, str(self.config.threads))):
            _start_process(process)
            self.process, self.pipe, self.ready = process, ours, False
            if self.stopped:
                self._end()
        theirs.close()

    def _end(self) -> None:
        self.process.terminate()
        self.process.join(STOP_GRACE_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def _start_process(process: BaseProcess) -> None:
    """Once more, should the server it is forked from be killed at this very moment."""
    try:
        process.start()
    except (OSError, EOFError):
        try:
            process.start()
        except (OSError, EOFError) as error:
            raise InlayError(f"no worker can be started ({error!r}); run the same command again to go on") from error


def start_method(device: str) -> str:
    """A fork of the job would share torch's threads. A server that has loaded the libraries, and no more, has none yet,
    and its forks need not load them again. With a GPU, and where there are no forks, a worker begins from nothing."""
    return "forkserver" if device == "cpu" and sys.platform == "linux" else "spawn"


def warm_up(device: str, threads: int) -> None:
    """Have the libraries loaded that workers need, while the job is still being planned."""
    if start_method(device) == "forkserver":
        from multiprocessing import forkserver

        multiprocessing.get_context("forkserver").set_forkserver_preload(LOADED)
        with script_hidden(), environment(dict.fromkeys(THREAD_VARIABLES, str(threads))):
            forkserver.ensure_running()


@contextlib.contextmanager
def script_hidden() -> Iterator[None]:
    """Hide the script that runs: Python would run it once more in every worker, and workers need nothing of it."""
    main, names = sys.modules["__main__"], ("__file__", "__spec__")
    before = {name: getattr(main, name) for name in names if hasattr(main, name)}
    for name in before:
        setattr(main, name, None)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(main, name, value)


@contextlib.contextmanager
def environment(settings: dict[str, str]) -> Iterator[None]:
    """Set variables for libraries that read them when they are loaded."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def work(task: bytes, pipe: Connection) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the job receives it, and stops its workers
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is somebody's child"
    exit_when(lambda: wait([parent.sentinel]))  # it would go on, unseen, with the machine's cores
    try:
        from inlay.scale.worker import Worker

        config: dict[str, bool] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
        config["daemon"] = False  # it may have helpers: they end by themselves when it does
        logging.getLogger("inlay.fill").setLevel(logging.ERROR)  # whoever began the job has said which LIT is not used
        worker = Worker(pickle.loads(task))
        pipe.send(("ready",))
        while True:
            shard = pipe.recv()
            worker.run(shard, lambda done, refused: pipe.send(("progress", done, refused)))
            pipe.send(("done",))
    except (EOFError, ConnectionError):
        return
    except Exception as error:
        with contextlib.suppress(ConnectionError):
            pipe.send(("error", portable(error)))


def exit_when(returns: Callable[[], object]) -> None:
    """End this process as soon as the function returns, in a thread of its own."""

    def watch() -> None:
        returns()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def portable(error: Exception) -> InlayError:
    """An error that survives the way to another process."""
    if isinstance(error, InlayError):
        kind: type[InlayError] = type(error)
        return kind(str(error))
    text = (str(error).strip().splitlines() or ["no message"])[0]
    return InlayError(f"a worker failed: unexpected {type(error).__name__}: {text}")


# --- the local engine ------------------------------------------------------------------------------------------------


def cores() -> int:
    """Those this process may use, which in a container are fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def worker_count(run: RunConfig, device: str) -> int:
    """One process for each GPU; on the CPU one for each core, since single threads waste least."""
    if run.workers:
        return run.workers
    return max(gpus(), 1) if device == "cuda" else cores() if device == "cpu" else 1


def threads_for(run: RunConfig, device: str) -> int:
    """Of torch in each worker: as many as asked for, or together as many as there are cores."""
    return run.threads or max(1, cores() // worker_count(run, device))


def helpers_for(device: str, threads: int) -> int:
    """Processes that pack tokens beside a worker with a GPU: its share of the cores. Where the network runs on a core
    too, or nothing can be forked, a worker does all itself."""
    return threads if device.startswith("cuda") and sys.platform == "linux" else 0


@contextlib.contextmanager
def local_engine(run: RunConfig, device: str, threads: int) -> Iterator[Callable[..., None]]:
    """A pool of processes on this machine, whose libraries are loaded while the job is still being planned."""
    warm_up(device, threads)
    yield run_local


def run_local(task: Task, shards: list[Shard], run: RunConfig, progress: Progress) -> None:
    """Have the shards made, each worker followed by a thread; the first error stops them all."""
    size, cards = min(worker_count(run, task.device), len(shards)), gpus() if task.device == "cuda" else 0
    messages: queue.SimpleQueue[tuple[int, int] | BaseException | None] = queue.SimpleQueue()
    remaining = iter(shards)  # shared by the threads: each shard goes to one of them
    slots: list[WorkerSlot] = []
    threads: list[threading.Thread] = []

    def follow(slot: WorkerSlot) -> None:
        try:
            for shard in remaining:
                slot.run(pickle.dumps(shard), lambda done, refused: messages.put((done, refused)))
            messages.put(None)
        except BaseException as error:
            messages.put(error)

    try:
        for number in range(size):
            own = task if cards < 2 else replace(task, device=f"cuda:{number % cards}")
            config = WorkerConfig(task=pickle.dumps(own), workers=size, device=own.device, threads=own.threads)
            slots.append(WorkerSlot(config, number))
            threads.append(threading.Thread(target=follow, args=(slots[-1],), daemon=True))
            threads[-1].start()
        while size:
            message = messages.get()
            if isinstance(message, BaseException):
                raise message
            if message is None:
                size -= 1
            else:
                progress(*message)
    finally:
        for slot in slots:
            slot.stop()
        for thread in threads:  # Python may hang if one is still at work when it ends
            thread.join()
