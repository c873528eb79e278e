# SPDX-License-Identifier: Apache-2.0
"""Read a token file: all of it, chunk by chunk, or any one chunk; its figures; damage is reported, never passed on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from inlay.container.chunk import unpack_chunk, unpack_times
from inlay.container.consistent import fault_of_times, inconsistencies
from inlay.container.header import FileHeader
from inlay.container.layout import TIMES, ChunkHead, sealed
from inlay.container.limits import check_work
from inlay.container.scan import ByteSource, Source, contents, read_head
from inlay.container.tokens import Tokens
from inlay.errors import TokenFileError, UsageError
from inlay.types import Recipe, Span, VideoInfo

_CURE = "fetch the file again"


def open_tokens(path: Source, *, keep_going: bool = False, large: bool = False) -> Tokens:
    """Read a whole token file: a path, bytes, or a binary file.

    Args:
        keep_going: read the intact chunks of a damaged file, which is refused otherwise; the losses go to the log.
        large: take a file that asks for far more memory and time than its size would justify (see FORMAT.md).
    """
    with TokenReader(path, keep_going=keep_going, large=large) as reader:
        tokens = Tokens.join(reader)
    for problem in reader.problems:
        logging.getLogger(__name__).warning("%s: %s", reader.name, problem)
    return tokens


class TokenReader:
    """An open token file.

    with TokenReader("clip.inlay") as reader:
        print(reader.info, len(reader))   # VideoInfo, number of chunks
        tokens = reader.read(7)           # one chunk; only its bytes are read
        for tokens in reader: ...         # all chunks, one in memory at a time

    With `keep_going` damaged chunks are passed over and `problems` says which. A chunk that continues a lost one cannot
    be decoded either, so it is passed over too. A file that asks for far more work than its size justifies is refused
    unless it is known to be `large`.
    """

    def __init__(self, path: Source, *, keep_going: bool = False, large: bool = False) -> None:
        self.keep_going = keep_going
        self._source = ByteSource(path)
        self.name = self._source.name
        try:
            self._contents = contents(self._source)
            losses = self._contents.losses
            if losses and not keep_going:
                raise TokenFileError(f"{losses[0]}; {_CURE}", about="keep_going")
            if not self._contents.entries:
                raise TokenFileError(f"not one chunk is intact ({'; '.join(losses)}); fetch the file again")
            if not large:
                check_work(self.header, self._contents.entries, self._source.size)
        except TokenFileError as error:
            self.close()
            raise self._named(error) from error
        except BaseException:
            self.close()
            raise
        self.problems: list[str] = [*losses, *self._contents.notes]

    def __enter__(self) -> TokenReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._source.close()

    def __repr__(self) -> str:
        info = self.info
        size = f"{info.frames} frames {info.width}x{info.height}"
        return f"TokenReader({self.name}: {len(self)} chunks, {size}; {self.recipe.backbone})"

    @property
    def header(self) -> FileHeader:
        return self._contents.header

    @property
    def recipe(self) -> Recipe:
        return self.header.recipe

    @property
    def info(self) -> VideoInfo:
        """The video; its frames are those of the chunks that are here."""
        frames = sum(e.frames for e in self._contents.entries)
        return VideoInfo(width=self.header.width, height=self.header.height, fps=self.header.frame_rate, frames=frames)

    @property
    def spans(self) -> tuple[Span, ...]:
        """Where the chunks stand in the video, from the index alone."""
        return tuple(Span(slots=e.slots, frames=e.frames, key=e.key) for e in self._contents.entries)

    @property
    def timed(self) -> bool:
        """Do the chunks have presentation times of their own?"""
        return bool(self._contents.entries[0].flags & TIMES)

    @property
    def size_bytes(self) -> int:
        return self._source.size

    def __len__(self) -> int:
        """Chunks that can be asked for."""
        return len(self._contents.entries)

    def head(self, i: int) -> ChunkHead:
        """What chunk `i` says of itself; its data are not read."""
        try:
            return read_head(self._source, self._contents.entries[self._index(i)], self.header)
        except TokenFileError as error:
            raise self._chunk_error(i, error) from error

    def read(self, i: int) -> Tokens:
        """The tokens of chunk `i`, counted from 0; negative numbers count from the end."""
        head = self.head(i)
        try:
            return unpack_chunk(self._sealed(i), head, self.header)
        except TokenFileError as error:
            raise self._chunk_error(i, error) from error

    def seconds(self, i: int) -> Tensor | None:
        """The presentation times of chunk `i`, None where it has none; its tokens are not decoded."""
        head = self.head(i)
        try:
            return torch.from_numpy(unpack_times(self._sealed(i), head)) if head.times else None
        except TokenFileError as error:
            raise self._chunk_error(i, error) from error

    def __iter__(self) -> Iterator[Tokens]:
        return (tokens for _, tokens in self.chunks())

    def chunks(self, first: int = 0, last: int | None = None) -> Iterator[tuple[int, Tokens]]:
        """Chunks `first` to `last` with their numbers; with `keep_going` those that are lost are passed over."""
        whole = timed = time = None  # of the last chunk handed out: number, has it times, time of its last frame
        for i in range(first, len(self) if last is None else last + 1):
            entry = self._contents.entries[i]
            try:
                if not entry.key and entry.number > 0 and whole != entry.number - 1:
                    raise self._chunk_error(i, TokenFileError("continues a chunk that is lost"))
                tokens = self.read(i)
                if timed not in (None, tokens.seconds is not None):
                    raise self._chunk_error(i, TokenFileError("differs from the others in having presentation times"))
                if tokens.seconds is not None:
                    fault = fault_of_times(tokens.seconds.numpy(), time)
                    if fault is not None:
                        raise self._chunk_error(i, TokenFileError(fault))
                    time = float(tokens.seconds[-1])
            except TokenFileError as error:
                if not self.keep_going:
                    raise
                self.problems.append(str(error).removeprefix(f"{self.name}: "))
                continue
            whole, timed = entry.number, tokens.seconds is not None
            yield i, tokens
        if whole is None:
            raise TokenFileError(f"{self.name}: not one chunk is intact; fetch the file again")

    def inconsistencies(self) -> list[str]:
        """Why the file, though its chunks may be intact, does not decode to what it says; empty if it does."""
        return inconsistencies(self.header, self._contents.entries)

    def _sealed(self, i: int) -> bytes:
        entry = self._contents.entries[self._index(i)]
        data = self._source.read(entry.offset, entry.length)
        if not sealed(data):
            raise TokenFileError("fails its checksum")
        return data

    def _index(self, i: int) -> int:
        n = len(self)
        if not -n <= i < n:
            raise UsageError(f"{self.name} has chunks 0 to {n - 1}; asked for {i}")
        return i % n

    def _chunk_error(self, i: int, error: TokenFileError) -> TokenFileError:
        header, number = self.header, self._contents.entries[self._index(i)].number + 1
        where = f"{self.name}: chunk {number} of {header.chunks or '?'}"
        if self.keep_going:
            return TokenFileError(f"{where}: {error}")
        return TokenFileError(f"{where}: {error}; {_CURE}", about="keep_going")

    def _named(self, error: TokenFileError) -> TokenFileError:
        return TokenFileError(f"{self.name}: {error}", about=error.about)


@dataclass(frozen=True, kw_only=True)
class FileSummary:
    """What `inlay info` shows. Bits count the whole file: header, mask, values, index and checksums."""

    frames: int
    width: int
    height: int
    fps: float
    frame_rate: str  # the same, exactly
    seconds: float
    backbone: str
    weight_hash: str
    tau: float
    criterion: str
    reference: str
    streaming: str
    precision: str
    step: float | None  # on the ladder; None where q8 chose its steps, or has none
    steps: tuple[float, ...] | None  # of each channel
    key_slots: str
    scale: str  # size that the video was encoded at
    fill: str
    cells: int
    tokens: int
    keep_rate: float
    bytes: int
    bits_per_pixel: float  # of all bytes, over frames * width * height
    header_bytes: int  # all that is neither mask nor values: header, chunk heads, times, index, checksums
    mask_bytes: int
    value_bytes: int
    chunks: int
    version: str  # of the format
    library_version: str


def summary(path: Source, *, keep_going: bool = False) -> FileSummary:
    """The figures of a token file, however large; nothing is decoded."""
    with TokenReader(path, keep_going=keep_going, large=True) as reader:
        heads = [reader.head(i) for i in range(len(reader))]
        header, recipe, info = reader.header, reader.recipe, reader.info
        cells = sum(h.slots for h in heads) * header.cells
        tokens = sum(h.tokens for h in heads)
        mask_bytes, value_bytes = sum(h.mask_bytes for h in heads), sum(h.value_bytes for h in heads)
        size, rate, pixels = reader.size_bytes, info.fps, info.frames * info.width * info.height
        return FileSummary(
            frames=info.frames, width=info.width, height=info.height, fps=float(rate),
            frame_rate=f"{rate.numerator}/{rate.denominator}", seconds=_seconds(reader),
            backbone=recipe.backbone, weight_hash=recipe.weight_hash, tau=recipe.tau, criterion=recipe.criterion,
            reference=recipe.reference, streaming=recipe.streaming, precision=recipe.precision, step=recipe.step,
            steps=recipe.steps, key_slots=recipe.key_slots, scale=recipe.scale, fill=recipe.fill,
            cells=cells, tokens=tokens, keep_rate=tokens / cells, bytes=size, bits_per_pixel=8 * size / pixels,
            header_bytes=size - mask_bytes - value_bytes, mask_bytes=mask_bytes, value_bytes=value_bytes,
            chunks=len(heads), version=header.version, library_version=header.library_version,
        )  # fmt: skip


def _seconds(reader: TokenReader) -> float:
    """The duration; a last frame without a successor stands for one frame interval."""
    interval = float(1 / reader.info.fps)
    if not reader.head(0).times:
        return reader.info.frames * interval
    first, last = reader.seconds(0), reader.seconds(-1)
    if first is None or last is None:
        raise TokenFileError(f"{reader.name}: some chunks have presentation times and some do not")
    return float(last[-1] - first[0]) + interval


def verify(path: Source, *, large: bool = False) -> list[str]:
    """Every fault that reading all of the file brings to light; an empty list means that it is sound."""
    problems: list[str] = []
    try:
        with TokenReader(path, keep_going=True, large=large) as reader:
            problems = reader.problems
            problems += reader.inconsistencies()
            for _ in reader:
                pass
    except TokenFileError as error:
        problems.append(str(error))
    return problems
