# SPDX-License-Identifier: Apache-2.0
"""The pieces of one video in, its token file out, as `inlay encode` writes it, with manifest line and latent sums."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, cast

from torch import Tensor

from inlay.codec import StreamConfig, StreamEncoder, WholeVideo
from inlay.container import TokenWriter
from inlay.container.tokens import Tokens
from inlay.errors import InlayError, VideoError
from inlay.scale.config import TokenizeConfig
from inlay.scale.feed import Feed
from inlay.scale.layout import LatentMoments, VideoRecord, video_key
from inlay.scale.store import OutputError, check_scratch
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video

IN_MEMORY = 1 << 24  # bytes of a token file that stay off the disk until its shard is written


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoded:
    """A video that was tokenised."""

    index: int  # among the sources
    record: VideoRecord
    moments: LatentMoments
    file: IO[bytes]

    def close(self) -> None:
        self.file.close()


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A source that could not be tokenised."""

    index: int
    reason: str


def encode_feed(index: int, feed: Feed, tokenizer: Tokenizer, config: TokenizeConfig) -> Encoded | Refused:
    """Whatever is wrong with the video ends in `Refused`; what is wrong with the disk is raised."""
    file = cast(IO[bytes], tempfile.SpooledTemporaryFile(max_size=IN_MEMORY, prefix="inlay-"))  # noqa: SIM115
    try:
        made = _encode(index, feed, tokenizer, config, file)
        file.seek(0)
        return made
    except OutputError:
        file.close()
        raise
    except Exception as error:  # a decoder or a network that stumbles over one video must not stop the others
        file.close()
        for cause in (error, error.__cause__):
            if isinstance(cause, OSError):
                check_scratch(cause)
        if isinstance(error, InlayError):
            return Refused(index=index, reason=_without_name(str(error), feed.item.address))
        text = (str(error).strip().splitlines() or ["no message"])[0]
        return Refused(index=index, reason=f"unexpected {type(error).__name__}: {text}")
    finally:
        feed.stop()


def _without_name(reason: str, address: str) -> str:
    """The list names the source beside the reason; what was copied has no name of its own."""
    return reason.removeprefix(f"{address}: ").removeprefix("None: ")


def _encode(index: int, feed: Feed, tokenizer: Tokenizer, config: TokenizeConfig, file: IO[bytes]) -> Encoded:
    opened = feed.opened()
    passes = Pass(tokenizer, config)
    writer, frames, tokens, cells, info = None, 0, 0, 0, None
    for chunk in passes.chunks(feed):
        if writer is None:
            info = chunk.info
            writer = TokenWriter(cast(BinaryIO, file), info=chunk.info, recipe=chunk.recipe)
        writer.append(chunk)
        frames, tokens, cells = frames + chunk.info.frames, tokens + len(chunk), cells + chunk.cells
    if writer is None or info is None:
        raise VideoError("has no frames")
    writer.close()
    return Encoded(
        index=index,
        record=VideoRecord(
            key=video_key(index),
            source=feed.item.name,
            sha256=opened.sha256,
            frames=frames,
            width=info.width,
            height=info.height,
            fps=f"{info.fps.numerator}/{info.fps.denominator}",
            tokens=tokens,
            cells=cells,
            keep_rate=tokens / cells,
            bytes=file.seek(0, 2),
            caption=feed.item.caption,
            damage=feed.damage,
        ),
        moments=passes.moments,
        file=file,
    )


class Pass:
    """One video through the network: its chunks of tokens, and the sums of its latents on the way."""

    def __init__(self, tokenizer: Tokenizer, config: TokenizeConfig) -> None:
        self.tokenizer, self.config = tokenizer, config
        self.stream: StreamConfig = config.stream.resolve(tokenizer.spec)
        self.moments = LatentMoments()

    def chunks(self, pieces: Iterable[Video]) -> Iterator[Tokens]:
        budget, options = self.config.budget, self.config.token_options
        if budget.causal:
            encoder = StreamEncoder(self.tokenizer, self.stream, budget=budget, **options)
            encoder.latents = cast(Any, Tap(encoder.latents, self))
            yield from encoder.encode(pieces)
            return
        with WholeVideo(self.tokenizer, pieces, self.stream, **options) as video:
            for chunk in video.spool:
                self.add(chunk.z_BCTHW)
            yield from video.solve(budget)

    def add(self, z_BCTHW: Tensor) -> None:
        """In float64, so that a mean over millions of cells is one."""
        z = z_BCTHW.double()
        axes = (0, 2, 3, 4)
        self.moments += LatentMoments(
            count=z[:, 0].numel(),
            sums=tuple(z.sum(axes).tolist()),
            squares=tuple(z.square().sum(axes).tolist()),
        )


class Tap:
    """A stream of latents that is looked at as it goes by."""

    def __init__(self, latents: Any, passes: Pass) -> None:
        self._latents, self._passes = latents, passes

    def push(self, video: Video) -> Iterator[Any]:
        for chunk in self._latents.push(video):
            self._passes.add(chunk.z_BCTHW)
            yield chunk

    def flush(self) -> Iterator[Any]:
        for chunk in self._latents.flush():
            self._passes.add(chunk.z_BCTHW)
            yield chunk

    def reset(self) -> None:
        self._latents.reset()
