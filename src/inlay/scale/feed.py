# SPDX-License-Identifier: Apache-2.0
"""Fetch, hash and decode one source in a thread of its own, ahead of the network; beside a GPU a process decodes."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import IO, BinaryIO, cast

from inlay.errors import VideoError
from inlay.scale.config import TokenizeConfig
from inlay.scale.lerobot import copy_span
from inlay.scale.sources import SourceItem
from inlay.scale.store import check_scratch, is_address, open_bytes
from inlay.video import VideoReader, open_video
from inlay.video.ahead import Ahead
from inlay.video.frames import Video

PIECE_BYTES = 1 << 24  # of pixels; large frames come in fewer at a time
AHEAD = 3  # pieces that wait for the network
BLOCK = 1 << 20
IN_MEMORY = 1 << 26  # bytes of a copy that stay off the disk
PATIENCE = (0.5, 2.0, 8.0)  # seconds before an address that failed is tried again


@dataclass(frozen=True, kw_only=True)
class Opened:
    """What is known of a video before its first frame is used."""

    sha256: str
    width: int
    height: int


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A video was read to its end."""

    damage: str | None


Found = Opened | Video | Ended  # one, some, one
OpenVideo = Callable[..., VideoReader]
Decode = Callable[[SourceItem, TokenizeConfig], Generator[Found]]


def decode_item(item: SourceItem, config: TokenizeConfig, opens: OpenVideo = open_video) -> Generator[Found]:
    """Fetch, hash and decode one source.

    Args:
        opens: what opens its media: `open_video`, or what takes and gives the same.
    """
    c = config
    with (
        fetched(item) as found,
        opens(found.media, size=c.size, keep_going=c.keep_going, start=found.start, frames=found.frames) as reader,
    ):
        yield Opened(sha256=found.sha256, width=reader.width, height=reader.height)
        frames = max(1, min(c.chunk_frames, PIECE_BYTES // (reader.width * reader.height * 3)))
        yield from reader.chunks(frames)
        yield Ended(damage=reader.damage and reader.damage.removeprefix(f"{reader.name}: "))


class Feed:
    """One video on its way. Errors of reading come out where its pieces do."""

    def __init__(self, item: SourceItem, config: TokenizeConfig, decode: Decode = decode_item) -> None:
        self.item = item
        self.damage: str | None = None  # known once all pieces are out
        self._found = Ahead(decode(item, config), most=AHEAD, name=f"feed {item.name}")
        self._opened: Opened | BaseException | None = None

    def opened(self) -> Opened:
        """Waits until the video is open; raises what kept it from opening."""
        if self._opened is None:
            try:
                first = next(self._found)
                assert isinstance(first, Opened), "a feed begins by opening"
                self._opened = first
            except BaseException as error:
                self._opened = error
        if isinstance(self._opened, BaseException):
            raise self._opened
        return self._opened

    def size(self) -> tuple[int, int] | None:
        """(height, width); None for what cannot be opened, which is raised again where it is encoded."""
        try:
            opened = self.opened()
        except Exception:
            return None
        return opened.height, opened.width

    def __iter__(self) -> Iterator[Video]:
        self.opened()
        for found in self._found:
            if isinstance(found, Ended):
                self.damage = found.damage
            else:
                assert isinstance(found, Video), "a video opens once"
                yield found

    def stop(self) -> None:
        """Read no further; harmless at the end."""
        self._found.stop()


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """What `open_video` takes, and the SHA-256 of the bytes."""

    media: str | BinaryIO
    sha256: str
    start: int = 0  # of a span: how many frames come before it
    frames: int | None = None


@contextmanager
def fetched(item: SourceItem) -> Iterator[Fetched]:
    """A local file is read where it lies; a member of a tar, or what an address leads to, is copied until closed."""
    if item.problem is not None:
        raise VideoError(item.problem)
    if item.offset is None and not is_address(item.address):
        yield from _local(item) if item.first is None else _span(item)
        return
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY, prefix="inlay-") as copy:
        sha256 = _copied(item, cast(IO[bytes], copy))
        copy.seek(0)
        yield Fetched(media=cast(BinaryIO, copy), sha256=sha256)


def _local(item: SourceItem) -> Iterator[Fetched]:
    path = Path(item.address)
    try:
        _check_version(item, path)
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            is_text = os.fsencode(path).decode("utf-8", "replace") == item.address  # else no name for a video library
            yield Fetched(media=item.address if is_text else file, sha256=sha256)
    except OSError as error:
        raise VideoError(f"cannot be read: {error.strerror or error}") from error


def _check_version(item: SourceItem, path: Path) -> None:
    found = path.stat()
    if item.version and (found.st_size, str(found.st_mtime_ns)) != (item.size_bytes, item.version):
        raise VideoError("the file has changed since the job began")


def _span(item: SourceItem) -> Iterator[Fetched]:
    """An episode of a video file that holds several."""
    assert item.first is not None and item.frames is not None and item.fps is not None, "a span is known whole"
    _check_version(item, Path(item.address))
    copy = copy_span(item.address, first=item.first, frames=item.frames, fps=Fraction(item.fps))
    with copy.media as media:
        yield Fetched(media=media, sha256=copy.sha256, start=copy.start, frames=item.frames)


def _copied(item: SourceItem, copy: IO[bytes]) -> str:
    for pause in (*PATIENCE, None):
        copy.seek(0)
        copy.truncate()
        try:
            return _copy(item, copy)
        except OSError as error:
            check_scratch(error)
            if pause is None or isinstance(error, FileNotFoundError) or not is_address(item.address):
                raise VideoError(f"cannot be read: {error}") from error
            time.sleep(pause)
    raise AssertionError("the last try returns or raises")


def _copy(item: SourceItem, copy: IO[bytes]) -> str:
    digest, left = hashlib.sha256(), item.size_bytes if item.offset is not None else None
    with open_bytes(item.address) as file:
        file.seek(item.offset or 0)
        while block := file.read(BLOCK if left is None else min(BLOCK, left)):
            digest.update(block)
            copy.write(block)
            left = None if left is None else left - len(block)
    if left:
        raise VideoError(f"its tar ends {left:,} bytes before it does")
    return digest.hexdigest()
