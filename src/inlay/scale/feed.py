# SPDX-License-Identifier: Apache-2.0
"""A source in, pieces of video out: fetched, hashed and decoded by a thread of its own, ahead of the network."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from inlay.scale.fetch import fetched
from inlay.scale.sources import SourceItem
from inlay.video import open_video
from inlay.video.frames import Video

PIECE_BYTES = 1 << 24  # of pixels; large frames come in fewer at a time
AHEAD = 3  # pieces that wait for the network


@dataclass(frozen=True, kw_only=True)
class Opened:
    """What is known of a video before its first frame is used."""

    sha256: str
    width: int
    height: int


class Feed:
    """One video on its way. Errors of reading come out where its pieces do."""

    def __init__(self, item: SourceItem, *, size: str, chunk_frames: int, keep_going: bool) -> None:
        self.item = item
        self.damage: str | None = None  # known once all pieces are out
        self._size, self._chunk, self._keep_going = size, chunk_frames, keep_going
        self._queue: queue.Queue[Opened | Video | BaseException | None] = queue.Queue(maxsize=AHEAD)
        self._stopped = threading.Event()
        self._opened: Opened | BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"feed {item.name}", daemon=True)
        self._thread.start()

    def opened(self) -> Opened:
        """Waits until the video is open; raises what kept it from opening."""
        if self._opened is None:
            first = self._queue.get()
            assert isinstance(first, Opened | BaseException), "a feed begins by opening"
            self._opened = first
        if isinstance(self._opened, BaseException):
            raise self._opened
        return self._opened

    def __iter__(self) -> Iterator[Video]:
        self.opened()
        while (piece := self._queue.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            assert isinstance(piece, Video)
            yield piece

    def stop(self) -> None:
        """Read no further; harmless at the end."""
        self._stopped.set()
        self._thread.join()
        while not self._queue.empty():
            self._queue.get_nowait()

    def _run(self) -> None:
        try:
            with (
                fetched(self.item) as found,
                open_video(found.media, size=self._size, keep_going=self._keep_going) as reader,
            ):
                self._put(Opened(sha256=found.sha256, width=reader.width, height=reader.height))
                frames = max(1, min(self._chunk, PIECE_BYTES // (reader.width * reader.height * 3)))
                for piece in reader.chunks(frames):
                    self._put(piece)
                    if self._stopped.is_set():
                        return
                self.damage = reader.damage and reader.damage.removeprefix(f"{reader.name}: ")
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, what: Opened | Video | BaseException | None) -> None:
        while not self._stopped.is_set():
            try:
                self._queue.put(what, timeout=0.2)
                return
            except queue.Full:
                continue
