# SPDX-License-Identifier: Apache-2.0
"""Work on a stranger's file in a child, with an end to its memory and its time.

Children are forked from a process that has loaded the libraries and nothing else, so that one is there in a moment.
What comes back is bytes that are checked here and never unpickled: a child that a file has taken over can lie, no more.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from inlay.errors import InlayError, TokenFileError, UsageError, VideoError
from inlay.sandbox import confine
from inlay.scale.workers import THREAD_VARIABLES, environment, exit_when, script_hidden, start_method

LOADED = ["inlay.web.uploads", "av", "constriction"]  # by the process that children are forked from
ERRORS: dict[str, type[InlayError]] = {kind.__name__: kind for kind in (UsageError, VideoError, TokenFileError)}
DATA, ERROR, TOO_MUCH, END = b"+", b"!", b"m", b"."  # what a message is, by its first byte
LONGEST_ERROR = 4000
GRACE_SECONDS = 2.0
_STARTING = threading.Lock()  # a start hides the script and sets variables for a moment


def warm_up() -> None:
    """Have the libraries loaded before the first visitor comes."""
    if start_method("cpu") == "forkserver":
        from multiprocessing import forkserver

        multiprocessing.get_context("forkserver").set_forkserver_preload(LOADED)
        with _quiet_start():
            forkserver.ensure_running()


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    with _STARTING, script_hidden(), environment(dict.fromkeys(THREAD_VARIABLES, "1")):
        yield


def stream(
    work: Callable[..., Iterator[bytes]],
    *args: Any,
    name: str,
    refuse: type[InlayError],
    memory_mb: int,
    seconds: float,
    most_bytes: int,
) -> Iterator[bytes]:
    """What `work(*args)` yields in a child, message by message; its errors are raised here.

    Args:
        name: of the file, as errors call it.
        refuse: the error where the child wants too much, or dies.
        memory_mb: beyond what the libraries take.
        most_bytes: of one message.
    """
    warm_up()
    context: Any = multiprocessing.get_context(start_method("cpu"))
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_live, args=(theirs, memory_mb, work, args), name="inlay upload", daemon=True)
    with _quiet_start():
        child.start()
    theirs.close()
    end = time.monotonic() + seconds
    try:
        while True:
            if not ours.poll(max(end - time.monotonic(), 0)):
                raise refuse(
                    f"{name} could not be read within {seconds:g} s, the limit for uploads; give a simpler file"
                )
            try:
                message = ours.recv_bytes(most_bytes + 1)
            except (EOFError, OSError) as error:
                child.join(GRACE_SECONDS)
                raise refuse(_death(name, child, memory_mb)) from error
            kind, rest = message[:1], message[1:]
            if kind == END:
                return
            if kind != DATA:
                raise _error(kind, rest, name, refuse, memory_mb)
            yield rest
    finally:
        _stop(child)
        ours.close()


def _live(pipe: Connection, memory_mb: int, work: Callable[..., Iterator[bytes]], args: tuple[Any, ...]) -> None:
    """The life of a child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server receives it, and ends its children
    parent = multiprocessing.parent_process()
    assert parent is not None, "a child has a parent"
    exit_when(lambda: wait([parent.sentinel]))
    confine(memory_mb)
    try:
        for data in work(*args):
            pipe.send_bytes(DATA + data)
        last = END
    except MemoryError:
        last = TOO_MUCH
    except InlayError as error:
        kind = next((name for name, known in ERRORS.items() if isinstance(error, known)), "")
        last = ERROR + json.dumps([kind, str(error)[:LONGEST_ERROR]]).encode()
    with contextlib.suppress(ConnectionError):  # whoever asked may have gone
        pipe.send_bytes(last)


def _error(kind: bytes, rest: bytes, name: str, refuse: type[InlayError], memory_mb: int) -> InlayError:
    if kind == TOO_MUCH:
        return refuse(f"{name} asked for more than {memory_mb:,} MB of memory, the limit for uploads")
    try:
        known, text = json.loads(rest[: 8 * LONGEST_ERROR])
        return ERRORS.get(str(known), refuse)(str(text)[:LONGEST_ERROR])
    except ValueError:
        return refuse(f"{name} cannot be read")


def _death(name: str, child: BaseProcess, memory_mb: int) -> str:
    if child.exitcode == -signal.SIGKILL:
        return f"{name} asked for more memory than there is"
    return (
        f"{name} cannot be read: the process that read it ended with code {child.exitcode}; "
        f"the file is damaged, or needs more than {memory_mb:,} MB"
    )


def _stop(child: BaseProcess) -> None:
    child.join(0.05)
    if child.is_alive():
        child.kill()  # it has nothing to put away
    child.join()
    child.close()
