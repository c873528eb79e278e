# SPDX-License-Identifier: Apache-2.0
"""Write a token file chunk by chunk, in bounded memory, and never half a file under the final name."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from inlay.container.chunk import STORAGE, check_head, pack_chunk
from inlay.container.header import FileHeader
from inlay.container.layout import CRC_BYTES, ENTRY_BYTES, MAX_CHUNKS, PREFIX_BYTES, ChunkHead, Entry, pack_tail
from inlay.container.scan import Unfinished, part_of
from inlay.container.tokens import Tokens
from inlay.errors import OutputError, TokenFileError, UsageError, pick
from inlay.files import check_output, open_part
from inlay.types import Recipe, VideoInfo

# what a file says once for all its chunks
_SHARED = ("backbone", "weight_hash", "time_stride", "space_stride", "key_slots", "scale")

Pack = Callable[[Tokens, int, Recipe], "Future[tuple[ChunkHead, bytes]]"]  # `pack_chunk`, done elsewhere meanwhile
WAITING_BYTES = 1 << 26  # of values that are being packed elsewhere, beyond which a writer waits


def save(tokens: Tokens, path: str | PathLike[str], *, force: bool = False) -> Path:
    """Write a token file; `open` reads it back."""
    with TokenWriter(path, info=tokens.info, recipe=tokens.recipe, force=force) as writer:
        writer.append(tokens)
    return Path(path)


def to_bytes(tokens: Tokens) -> bytes:
    """The same file, in memory."""
    buffer = io.BytesIO()
    with TokenWriter(buffer, info=tokens.info, recipe=tokens.recipe) as writer:
        writer.append(tokens)
    return buffer.getvalue()


def added_bytes(tokens: Tokens, *, first: bool) -> int:
    """What one chunk adds to a file; the first brings header and index."""
    return len(to_bytes(tokens)) if first else len(pack_chunk(tokens, 0, tokens.recipe)[1]) + ENTRY_BYTES


class TokenWriter:
    """A token file being written.

    with TokenWriter("clip.inlay", info=info, recipe=recipe) as writer:
        for tokens in encoder.encode(pieces):
            writer.append(tokens)

    The bytes go to `clip.inlay.part` and take the final name when the block ends well; if it does not, nothing stays,
    or with `keep_part` what was done so far stays there, as a sound token file. A process that is killed, or a disk
    that is full, leaves it without its index. With `resume`, what `unfinished` found, a writer goes on from there.
    `info.frames` is not needed: the frames are counted. A seekable binary file may stand for the path.

    Args:
        pack: packs chunks beside the caller, in other processes; the bytes are the same, and written in order.
    """

    def __init__(
        self,
        path: str | PathLike[str] | BinaryIO,
        *,
        info: VideoInfo,
        recipe: Recipe,
        force: bool = False,
        keep_part: bool = False,
        resume: Unfinished | None = None,
        pack: Pack | None = None,
    ) -> None:
        pick("precision", recipe.precision, STORAGE)
        self.info, self.recipe = info, recipe
        self._keep_part = keep_part
        self.header: FileHeader | None = None  # known with the first chunk
        self._entries: list[Entry] = []
        self._at = 0
        self._pack = pack
        self._packing: deque[tuple[int, Future[tuple[ChunkHead, bytes]]]] = deque()  # bytes of values, their chunk
        self._planned: FileHeader | None = None  # what later chunks must agree with
        self._times = self._done = self._torn = False
        self._path = Path(path) if isinstance(path, str | PathLike) else None
        if self._path is not None and resume is not None:
            self._file = self._take_up(self._path, resume, force=force)
        else:
            self._file = _create(self._path, force=force) if self._path else _seekable(path)  # type: ignore[arg-type]
        self._start = 0 if resume is not None else self._file.tell()

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self._keeps:
            self.suspend()
        else:
            self.abandon()

    def append(self, tokens: Tokens) -> None:
        """Add the chunks of `tokens` at the end."""
        if self._done:
            raise UsageError("the token file is closed; append before the block ends")
        before = len(self._entries)
        try:
            for part in tokens.chunks():
                self._append(part)
            self._take_packed(most=WAITING_BYTES)
            self._file.flush()  # what is done must outlive a process that is killed
        except OSError as error:
            del self._entries[before:]  # they may be half on the disk
            self._torn = True
            raise self._write_error(error) from error

    def close(self) -> None:
        """Write the index, fill in the header's counts, and give the file its name."""
        if self._done:
            return
        try:
            self._take_packed(most=0)
            self._finish()
            if self._path is not None:
                self._file.close()
                part_of(self._path).replace(self._path)
            self._done = True
        except OSError as error:
            problem = self._write_error(error)
            if self._keeps:
                self._release()
            raise problem from error
        finally:
            self.abandon()

    def suspend(self) -> None:
        """Stop here, and leave what was done as a sound file under the name of the part."""
        if self._path is None or self._done:
            return
        try:
            if not self._torn:
                self._take_packed(most=None)
                self._finish()
        except OSError as error:
            raise self._write_error(error) from error
        finally:
            self._release()

    def abandon(self) -> None:
        """Stop without a file; harmless after `close`."""
        gone = self._path is not None and not self._done
        self._release()
        if self._path is not None and gone:
            part_of(self._path).unlink(missing_ok=True)

    def _release(self) -> None:
        """Stop, and leave the part as it is."""
        for _, future in self._packing:
            future.cancel()
        self._packing.clear()
        if self._path is not None:
            with suppress(OSError):  # a full disk: what still waits to be written cannot be
                self._file.close()
        self._done = True

    @property
    def _keeps(self) -> bool:
        """Whether the part stays if the file cannot be completed."""
        return self._keep_part and bool(self._entries)

    @property
    def ready(self) -> bool:
        """Whether `close` need not wait for chunks that are being packed."""
        return all(future.done() for _, future in self._packing)

    def _append(self, part: Tokens) -> None:
        header = self.header or self._planned or self._make_header(part)
        self._check(part, header)
        number = len(self._entries) + len(self._packing)
        if self._pack is None:
            self._add(*pack_chunk(part, number, self.recipe), header)
        else:
            self._packing.append((part.values.nbytes, self._pack(part, number, self.recipe)))
        self._planned, self._times = header, part.seconds is not None

    def _take_packed(self, *, most: int | None) -> None:
        """Write chunks that are packed; wait until no more than `most` bytes of values are not. None: never wait."""
        left = sum(size for size, _ in self._packing)
        while self._packing and self._planned is not None:
            size, future = self._packing[0]
            if (most is None and not _succeeded(future)) or (most is not None and left <= most and not future.done()):
                return
            self._add(*future.result(), self._planned)
            self._packing.popleft()
            left -= size

    def _add(self, head: ChunkHead, data: bytes, header: FileHeader) -> None:
        problem = check_head(head, header)
        if problem or head.number >= MAX_CHUNKS:
            raise UsageError(f"chunk {head.number} {problem or 'is one too many for the format'}")
        if self.header is None:
            self.header = header
            self._write(header.pack())
        entry = Entry.of(head, self._at)
        self._write(data)
        self._entries.append(entry)

    def _make_header(self, part: Tokens) -> FileHeader:
        _, rows, columns = part.mask.shape
        header = FileHeader(
            width=self.info.width, height=self.info.height, frame_rate=self.info.fps, rows=rows, columns=columns,
            channels=part.channels, recipe=self.recipe,
        )  # fmt: skip
        try:  # a header that could not be read back must not be written
            FileHeader.unpack(header.pack()[PREFIX_BYTES:-CRC_BYTES])
        except TokenFileError as error:
            raise UsageError(str(error)) from error
        return header

    def _check(self, part: Tokens, header: FileHeader) -> None:
        found = (*part.mask.shape[1:], part.channels, part.info.width, part.info.height, part.info.fps)
        wanted = (header.rows, header.columns, header.channels, header.width, header.height, header.frame_rate)
        if found != wanted:
            names = "rows, columns, channels, width, height, fps"
            ours, theirs = (", ".join(map(str, values)) for values in (wanted, found))
            raise UsageError(f"all chunks of a file agree in ({names}); the file has ({ours}), the chunk ({theirs})")
        for name in _SHARED:
            if getattr(part.recipe, name) != getattr(self.recipe, name):
                ours, theirs = getattr(self.recipe, name), getattr(part.recipe, name)
                raise UsageError(f"all chunks of a file share one {name}; the file has {ours!r}, the chunk {theirs!r}")
        if (self.header or self._planned) is not None and (part.seconds is not None) != self._times:
            raise UsageError("either all chunks of a file have presentation times or none; give them to every chunk")

    def _take_up(self, path: Path, left: Unfinished, *, force: bool) -> BinaryIO:
        """The part as it stood before its last key chunk, ready for more."""
        check_output(path, what="a token file", force=force)
        if left.header.recipe != self.recipe:
            raise UsageError(
                f"{left.path} was begun with other settings ({_settings(left.header.recipe)}) "
                f"than these ({_settings(self.recipe)}); give the same, or begin anew",
                about=("force", "resume"),
            )
        self.header, self._times = left.header, left.times
        self._entries, self._at = list(left.entries), left.end
        try:
            file = open_part(left.path, "r+b")
            file.write(left.header.pack())  # once more a file whose totals are unknown
            file.truncate(left.end)
            file.seek(left.end)
        except OSError as error:
            raise OutputError(f"cannot go on with {left.path}: {error.strerror or error}") from error
        return file

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._at += len(data)

    def _finish(self) -> None:
        if self.header is None:
            raise UsageError("a token file needs at least one chunk; nothing was appended")
        self._write(pack_tail(self._entries, self._at))
        frames = sum(e.frames for e in self._entries)
        self.header = replace(self.header, frames=frames, chunks=len(self._entries), file_bytes=self._at)
        self._file.seek(self._start)
        self._file.write(self.header.pack())
        self._file.seek(self._start + self._at)
        self._file.flush()

    def _write_error(self, error: OSError) -> OutputError:
        lost = "" if self._keeps else "; nothing was kept"
        return OutputError(f"cannot write {self._path or 'the token file'}: {error.strerror or error}{lost}")


def _succeeded(future: Future[tuple[ChunkHead, bytes]]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _settings(r: Recipe) -> str:
    step = f" step {r.step:g}" if r.step is not None else " with steps" if r.steps is not None else ""
    cells = f"tau {r.tau:g}, {r.criterion}, {r.reference}, {r.precision}{step}"
    return f"{r.created_by}; {r.backbone} {r.weight_hash}, {cells}"


def _create(path: Path, *, force: bool) -> BinaryIO:
    check_output(path, what="a token file", force=force)
    return open_part(part_of(path))


def _seekable(file: BinaryIO) -> BinaryIO:
    if not (hasattr(file, "seekable") and file.seekable() and file.writable()):
        raise UsageError("a token file is written to a path or to a seekable binary file; a pipe is neither")
    return file
