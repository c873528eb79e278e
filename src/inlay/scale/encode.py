# SPDX-License-Identifier: Apache-2.0
"""Videos to token files, as `inlay encode` writes them, with their manifest lines and the sums of their latents."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import IO, BinaryIO, cast

import torch

from inlay.codec import LatentChunk, Watch, encode_groups
from inlay.codec.calls import BatchLimits
from inlay.codec.transfer import Transfer
from inlay.container import TokenWriter
from inlay.container.tokens import Tokens
from inlay.container.writer import Pack
from inlay.errors import InlayError, OutputError, VideoError
from inlay.scale.config import TokenizeConfig
from inlay.scale.feed import Feed
from inlay.scale.layout import LatentMoments, VideoRecord, video_key
from inlay.scale.store import check_scratch
from inlay.tokenizer import Tokenizer
from inlay.types import VideoInfo

IN_MEMORY = 1 << 24  # bytes of a token file that stay off the disk until its shard is written


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoded:
    """A video that was tokenised."""

    index: int  # among the sources
    record: VideoRecord
    moments: LatentMoments
    file: IO[bytes]


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A source that could not be tokenised."""

    index: int
    reason: str


def encode_feeds(
    groups: Iterable[dict[int, Feed]],
    tokenizer: Tokenizer,
    config: TokenizeConfig,
    fitting: BatchLimits,
    *,
    batch: int,
    pack: Pack | None = None,
) -> Generator[list[Encoded | Refused]]:
    """Tokenise videos, those of a group in step. Whatever is wrong with one ends in `Refused`; what is wrong with the
    disk is raised.

    Args:
        groups: videos by their place among the sources; asked for when the network is free for the next.
        fitting: how many chunks of a shape fit into memory together.
        batch: the largest group.
        pack: packs chunks elsewhere.
    """
    files: list[UnfinishedFile] = []
    ended: deque[UnfinishedFile] = deque()  # the last chunk is being packed, or its sums are on their way

    def sources() -> Iterator[list[Feed]]:
        for feeds in groups:
            files.extend(UnfinishedFile(index, feed, pack) for index, feed in feeds.items())
            yield list(feeds.values())

    sums = LatentSums(files, together=batch if tokenizer.device.type == "cuda" else 1)
    try:
        with tokenizer.watched_by(sums):
            for number, chunk in encode_groups(
                tokenizer, sources(), config.encode, budget=config.budget, batch=batch, limits=fitting
            ):
                if chunk is not None:
                    files[number].take(chunk)
                    continue
                sums.flush()
                files[number].feed.stop()
                ended.append(files[number])
                if done := finished(ended, most=2 * batch):
                    yield done
        yield finished(ended, most=0)
    finally:
        for file in files:
            file.feed.stop()
            if file.result is None:
                file.abandon()


def finished(ended: deque[UnfinishedFile], *, most: int) -> list[Encoded | Refused]:
    """Those that are ready, from the first on; waits until no more than `most` are not."""
    done: list[Encoded | Refused] = []
    while ended and (ended[0].ready or len(ended) > most):
        done.append(ended.popleft().finish())
    return done


class UnfinishedFile:
    """The token file of one video, until its shard is written."""

    def __init__(self, index: int, feed: Feed, pack: Pack | None = None) -> None:
        self.index, self.feed = index, feed
        self.file = cast(IO[bytes], tempfile.SpooledTemporaryFile(max_size=IN_MEMORY, prefix="inlay-"))  # noqa: SIM115
        self.sums: list[ChunkSums] = []
        self.error: Exception | None = None
        self.result: Encoded | Refused | None = None
        self._pack = pack
        self._writer: TokenWriter | None = None
        self._info: VideoInfo | None = None
        self._frames = self._tokens = self._cells = 0

    def take(self, chunk: Tokens | Exception) -> None:
        """The next chunk, or what ended the video; what fails with one video must not stop the others."""
        if self.error is not None:
            return
        try:
            if isinstance(chunk, Exception):
                raise chunk
            if self._writer is None:
                self._info = chunk.info
                self._writer = TokenWriter(
                    cast(BinaryIO, self.file), info=chunk.info, recipe=chunk.recipe, pack=self._pack
                )
            self._writer.append(chunk)
            self._frames += chunk.info.frames
            self._tokens += len(chunk)
            self._cells += chunk.cells
        except Exception as error:
            self.error = error

    @property
    def ready(self) -> bool:
        """Whether `finish` need not wait."""
        return (self._writer is None or self._writer.ready) and all(chunk.transfer.ready for chunk in self.sums)

    def finish(self) -> Encoded | Refused:
        """The video as it goes into its shard, once its last chunk is packed."""
        try:
            if self.error is not None:
                raise self.error
            self.result = self._finished()
        except Exception as error:
            self.abandon()
            self.result = Refused(index=self.index, reason=self._reason(error))
        return self.result

    def abandon(self) -> None:
        """Stop without a file."""
        if self._writer is not None:
            self._writer.abandon()
        self.file.close()

    def _finished(self) -> Encoded:
        if self._writer is None or self._info is None:
            raise VideoError("has no frames")
        self._writer.close()
        info = self._info
        size = self.file.seek(0, 2)
        self.file.seek(0)
        record = VideoRecord(
            key=video_key(self.index), source=self.feed.item.name, sha256=self.feed.opened().sha256,
            frames=self._frames, width=info.width, height=info.height,
            fps=f"{info.fps.numerator}/{info.fps.denominator}", tokens=self._tokens, cells=self._cells,
            keep_rate=self._tokens / self._cells, bytes=size, caption=self.feed.item.caption, damage=self.feed.damage,
        )  # fmt: skip
        moments, self.sums = sum((chunk.moments() for chunk in self.sums), LatentMoments()), []
        return Encoded(index=self.index, record=record, moments=moments, file=self.file)

    def _reason(self, error: Exception) -> str:
        """In one line, without the name that the list has beside it; what is nobody's video's fault is raised."""
        if isinstance(error, OutputError | BrokenProcessPool):
            raise error
        for cause in (error, error.__cause__):
            if isinstance(cause, OSError):
                check_scratch(cause)
        if isinstance(error, InlayError):
            return self.feed.item.reason(error)
        text = (str(error).strip().splitlines() or ["no message"])[0]
        return f"unexpected {type(error).__name__}: {text}"


@dataclass(frozen=True, kw_only=True, eq=False)
class ChunkSums:
    """The sums of one chunk's latents, on their way from the device with those of others."""

    transfer: Transfer
    row: int
    count: int  # cells

    def moments(self) -> LatentMoments:
        (sums_2BC,) = self.transfer.arrived()
        sums, squares = sums_2BC[:, self.row].tolist()
        return LatentMoments(count=self.count, sums=tuple(sums), squares=tuple(squares))


class LatentSums(Watch):
    """Sums the latents of each video as they go by; nothing here waits for a GPU.

    Args:
        together: chunks that are summed at once: a GPU takes as long for one as for a few.
    """

    def __init__(self, files: list[UnfinishedFile], *, together: int) -> None:
        self.files, self.together = files, together
        self._chunks: list[LatentChunk] = []

    def on_latents(self, chunk: LatentChunk) -> None:
        if self._chunks and self._chunks[0].z_BCTHW.shape != chunk.z_BCTHW.shape:
            self.flush()
        self._chunks.append(chunk)
        if len(self._chunks) >= self.together:
            self.flush()

    def flush(self) -> None:
        """Sum those that wait for others."""
        if not self._chunks:
            return
        z, axes = torch.cat([chunk.z_BCTHW for chunk in self._chunks]), (2, 3, 4)
        z = z.double()  # so that a mean over millions of cells is one
        transfer = Transfer(torch.stack([z.sum(axes), z.square().sum(axes)]))
        for row, chunk in enumerate(self._chunks):
            self.files[chunk.stream].sums.append(ChunkSums(transfer=transfer, row=row, count=z[row, 0].numel()))
        self._chunks = []
