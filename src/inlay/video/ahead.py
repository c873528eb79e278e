# SPDX-License-Identifier: Apache-2.0
"""`Ahead`: a video is decoded in a thread of its own, a few pieces ahead of whoever takes them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Generic, Self, TypeVar

T = TypeVar("T")
POLL_SECONDS = 0.2  # until a thread that finds no room looks whether it is to stop


class Ahead(Iterator[T], Generic[T]):
    """What an iterable gives, in order; what it raises comes out where the item would have. To be stopped, at the end
    too: an iterable left half-way is closed in its own thread.

    Args:
        items: walked over in the thread, once.
        most: items that wait to be taken.
    """

    def __init__(self, items: Iterable[T], *, most: int, name: str = "ahead") -> None:
        self._items = items
        self._queue: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(maxsize=most)
        self._stopped = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __next__(self) -> T:
        if self._ended:
            raise StopIteration
        found = self._queue.get()
        if isinstance(found, tuple):
            return found[0]
        self._ended = True
        if found is None:
            raise StopIteration
        raise found

    def stop(self) -> None:
        """Take no further items; harmless at the end."""
        self._stopped.set()
        self._thread.join()
        self._ended = True
        while not self._queue.empty():
            self._queue.get_nowait()

    def _run(self) -> None:
        close = getattr(self._items, "close", None)
        try:
            for item in self._items:
                self._put((item,))
                if self._stopped.is_set():
                    if close is not None:
                        close()
                    return
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, what: tuple[T] | BaseException | None) -> None:
        while not self._stopped.is_set():
            try:
                self._queue.put(what, timeout=POLL_SECONDS)
                return
            except queue.Full:
                continue
