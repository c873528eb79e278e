# SPDX-License-Identifier: Apache-2.0
"""Videos to token files, as `inlay encode` writes them, with their manifest lines and the sums of their latents."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import IO, BinaryIO, cast

from inlay.codec import LatentChunk, Watch, encode_videos
from inlay.codec.calls import BatchLimits
from inlay.container import TokenWriter
from inlay.container.tokens import Tokens
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
    feeds: dict[int, Feed], tokenizer: Tokenizer, config: TokenizeConfig, fitting: BatchLimits
) -> list[Encoded | Refused]:
    """Tokenise videos in step. Whatever is wrong with one ends in `Refused`; what is wrong with the disk is raised.

    Args:
        feeds: the videos, by their place among the sources.
        fitting: how many chunks of a shape fit into memory together.
    """
    files = [UnfinishedFile(index, feed) for index, feed in feeds.items()]
    sources = list(feeds.values())
    try:
        with tokenizer.watched_by(LatentSums(files)):
            for number, chunk in encode_videos(
                tokenizer, sources, config.encode, budget=config.budget, batch=len(files), limits=fitting
            ):
                files[number].take(chunk)
        return [file.finish() for file in files]
    except BaseException:
        for file in files:
            file.file.close()
        raise
    finally:
        for feed in sources:
            feed.stop()


class UnfinishedFile:
    """The token file of one video, until its shard is written."""

    def __init__(self, index: int, feed: Feed) -> None:
        self.index, self.feed = index, feed
        self.file = cast(IO[bytes], tempfile.SpooledTemporaryFile(max_size=IN_MEMORY, prefix="inlay-"))  # noqa: SIM115
        self.moments = LatentMoments()
        self.error: Exception | None = None
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
                self._writer = TokenWriter(cast(BinaryIO, self.file), info=chunk.info, recipe=chunk.recipe)
            self._writer.append(chunk)
            self._frames += chunk.info.frames
            self._tokens += len(chunk)
            self._cells += chunk.cells
        except Exception as error:
            self.error = error

    def finish(self) -> Encoded | Refused:
        try:
            if self.error is not None:
                raise self.error
            return self._finished()
        except Exception as error:
            self.file.close()
            return Refused(index=self.index, reason=self._reason(error))

    def _finished(self) -> Encoded:
        if self._writer is None or self._info is None:
            raise VideoError("has no frames")
        self._writer.close()
        info = self._info
        size = self.file.seek(0, 2)
        self.file.seek(0)
        record = VideoRecord(
            key=video_key(self.index),
            source=self.feed.item.name,
            sha256=self.feed.opened().sha256,
            frames=self._frames,
            width=info.width,
            height=info.height,
            fps=f"{info.fps.numerator}/{info.fps.denominator}",
            tokens=self._tokens,
            cells=self._cells,
            keep_rate=self._tokens / self._cells,
            bytes=size,
            caption=self.feed.item.caption,
            damage=self.feed.damage,
        )
        return Encoded(index=self.index, record=record, moments=self.moments, file=self.file)

    def _reason(self, error: Exception) -> str:
        """In one line, without the name that the list has beside it; a full disk is nobody's video, and is raised."""
        if isinstance(error, OutputError):
            raise error
        for cause in (error, error.__cause__):
            if isinstance(cause, OSError):
                check_scratch(cause)
        if isinstance(error, InlayError):
            return str(error).removeprefix(f"{self.feed.item.address}: ").removeprefix("None: ")  # None: a copy
        text = (str(error).strip().splitlines() or ["no message"])[0]
        return f"unexpected {type(error).__name__}: {text}"


class LatentSums(Watch):
    """Sums the latents of each video as they go by."""

    def __init__(self, files: list[UnfinishedFile]) -> None:
        self.files = files

    def on_latents(self, chunk: LatentChunk) -> None:
        z, axes = chunk.z_BCTHW.double(), (0, 2, 3, 4)  # float64, so that a mean over millions of cells is one
        self.files[chunk.stream].moments += LatentMoments(
            count=z[:, 0].numel(),
            sums=tuple(z.sum(axes).tolist()),
            squares=tuple(z.square().sum(axes).tolist()),
        )
