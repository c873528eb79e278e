# SPDX-License-Identifier: Apache-2.0
"""Encode whole videos under any budget: as they go by where the budget allows it, else once all latents are there.

Every way to a token file ends here: `Tokenizer.encode`, `inlay encode`, `inlay tokenize`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from inlay.codec.calls import BatchLimits
from inlay.codec.config import EncodeConfig
from inlay.codec.decoder import Decoder
from inlay.codec.encoder import Encoder
from inlay.codec.parts import Parts
from inlay.codec.quality import mean_psnr
from inlay.codec.sizes import SizedEncoders, SizedVideo, may_climb, sizes_for
from inlay.codec.solve import SolvedVideo
from inlay.codec.transfer import pinned
from inlay.container import as_stored
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError
from inlay.masking import Bucket, Budget
from inlay.video.ahead import Ahead
from inlay.video.frames import Video

PIECES_AHEAD = 2  # that are read before the network asks for them
Original = Callable[[], Iterable[Video]]  # reads the video once more, to compare with


@dataclass(frozen=True, kw_only=True)
class BudgetReport:
    """What was asked for, what came of it, and what finding it cost."""

    budget: str
    asked: float
    got: float
    tau: float | None = None  # that grants it; under a bucket the one that steering started from
    step: float | None = None  # None where q8 chose its own
    scale: str = "1"
    trials: int = 0
    decodes: int = 0
    bucket: Bucket | None = None
    bucket_seconds: float | None = None


class VideoEncoder:
    """Encodes one video; `report` tells of its budget afterwards.

    Args:
        original: opens the video once more; a PSNR is measured against it.
    """

    def __init__(
        self,
        parts: Parts,
        config: EncodeConfig | None = None,
        *,
        budget: Budget | None = None,
        original: Original | None = None,
    ) -> None:
        self.parts, self.budget = parts, budget or Budget()
        self.config = parts.settle(config, self.budget)
        self.original = original
        self.report: BudgetReport | None = None

    def encode(
        self, pieces: Iterable[Video], *, done: Sequence[Tokens] | None = None, live: bool = False
    ) -> Generator[Tokens]:
        """The chunks of the video, given in any pieces.

        Args:
            done: chunks that an earlier run has made; the others follow.
            live: hand out a chunk as soon as its frames are there, though a GPU then waits for the next ones. Else the
                pieces are read ahead, in a thread of their own.
        """
        if live:
            yield from self._encode(pieces, done or (), live=True)
            return
        with Ahead(pinned_pieces(pieces, self.parts), most=PIECES_AHEAD) as ahead:
            yield from self._encode(ahead, done or (), live=False)

    def _encode(self, pieces: Iterable[Video], done: Sequence[Tokens], *, live: bool) -> Iterator[Tokens]:
        if self.budget.causal:
            yield from self._as_it_goes(pieces, done, live=live)
        else:
            yield from self._in_two_passes(pieces, len(done))

    def _as_it_goes(self, pieces: Iterable[Video], done: Sequence[Tokens], *, live: bool) -> Iterator[Tokens]:
        encoder = Encoder(self.parts, self.config, budget=self.budget)
        for tokens in done:
            encoder.replay(tokens)
        left = without_first(pieces, sum(tokens.info.frames for tokens in done))
        yield from encoder.encode(left, live=live)
        if encoder.bucket is not None:
            asked = self.budget.asked
            self.report = BudgetReport(
                budget=self.budget.kind,
                asked=asked,
                got=asked * (1 + encoder.bucket.overshoot),
                tau=None if encoder.recipe is None else encoder.recipe.tau,
                step=None if encoder.recipe is None else encoder.recipe.step,
                scale=self.config.coded_scale,
                bucket=encoder.bucket,
                bucket_seconds=self.budget.bucket_seconds,
            )

    def _in_two_passes(self, pieces: Iterable[Video], done: int) -> Iterator[Tokens]:
        """Latents first, onto disk; then the budget is solved on them."""
        sizes = sizes_for(self.parts, self.config, self.budget)
        judged = len(sizes) > 1 or may_climb(self.parts, self.config, self.budget)
        with SizedVideo.of(self.parts, pieces, self.config, sizes=sizes, judged=judged) as video:
            solved = video.solve(self.budget, self.psnr)
            for tokens in islice(solved, done, None):
                self.parts.saw_tokens(tokens)
                yield tokens
            self.report = report_of(self.budget, solved)

    def psnr(self, chunks: Iterable[Tokens]) -> float:
        """Of the video as a reader of the file would decode it."""
        if self.original is None:
            raise ConfigError("a PSNR is measured against the original, which can be read only once here", about="psnr")
        decoder = Decoder(self.parts, fill=self.config.fill)
        return mean_psnr(self.original(), decoder.decode(map(as_stored, chunks)))


def report_of(budget: Budget, solved: SolvedVideo) -> BudgetReport:
    kind, found, video = budget.kind, solved.solution, solved.video
    got = {
        "keep": (found.value + (solved.extra or 0)) / video.cells,
        "tokens": found.value + (solved.extra or 0),
        "bits": found.value / video.pixels,
        "psnr": found.value,
    }[kind]
    decodes = solved.looked + (found.trials if kind == "psnr" else 0)
    return BudgetReport(
        budget=kind, asked=budget.asked, got=got, tau=solved.recipe.tau, step=solved.recipe.step,
        scale=solved.recipe.scale, trials=found.trials, decodes=decodes,
    )  # fmt: skip


def encode_videos(
    parts: Parts,
    sources: Sequence[Iterable[Video]],
    config: EncodeConfig | None = None,
    *,
    budget: Budget | None = None,
    batch: int | None = None,
    limits: BatchLimits | None = None,
) -> Iterator[tuple[int, Tokens | Exception]]:
    """Encode several videos in step: (which one, its next chunk), or the error that ended it, which ends no other.

    Args:
        sources: the pieces of each video.
        batch: how many go through the network together.
        limits: how many of a shape fit into memory; learnt on the way, and kept by whoever calls again.
    """
    groups = encode_groups(parts, [sources], config, budget=budget, batch=batch, limits=limits)
    return ((number, chunk) for number, chunk in groups if chunk is not None)


def encode_groups(
    parts: Parts,
    groups: Iterable[Sequence[Iterable[Video]]],
    config: EncodeConfig | None = None,
    *,
    budget: Budget | None = None,
    batch: int | None = None,
    limits: BatchLimits | None = None,
) -> Iterator[tuple[int, Tokens | Exception | None]]:
    """Encode groups of videos, one after the other, those of a group in step: `encode_videos` for each, but a GPU
    begins with the next group before the last chunks of this one are fetched.

    Args:
        groups: of sources, which are numbered through; asked for when the frames of the one before have been taken.

    Each video ends with None, after its last chunk or its error.
    """
    budget = budget or Budget()
    config = parts.settle(config, budget)
    if budget.kind == "psnr":
        raise ConfigError("videos that are encoded in step are not decoded; give them another budget", about="psnr")
    first = 0
    before: GroupInStep | None = None
    for sources in groups:
        if not budget.causal:
            yield from _solved_in_step(parts, sources, config, budget, batch, limits, first)
            first += len(sources)
            continue
        group = GroupInStep(parts, sources, config, budget, batch, limits, first)
        first += len(sources)
        for made in group.steps():
            if before is not None:
                yield from before.rest()
                before = None
            yield from made
        if before is not None:
            yield from before.rest()
        before = group
    if before is not None:
        yield from before.rest()


class GroupInStep:
    """Videos that are encoded in step, as their pieces come."""

    def __init__(
        self, parts: Parts, sources: Sequence[Iterable[Video]], config: EncodeConfig, budget: Budget, batch: int | None,
        limits: BatchLimits | None, first: int,
    ) -> None:  # fmt: skip
        self.first = first
        streams = len(sources)
        self._encoder = Encoder(parts, config, budget=budget, streams=streams, first=first, batch=batch, limits=limits)
        self._feeds = Feeds(sources)

    def steps(self) -> Iterator[list[tuple[int, Tokens | Exception | None]]]:
        """What a piece of each video completes; some of it may still be on the device."""
        for pieces, ended in self._feeds:
            yield list(self._step(pieces, ended, waits=False))

    def rest(self) -> Iterator[tuple[int, Tokens | Exception | None]]:
        """What is still on the device, and the ends of all videos."""
        ended = self._feeds.ended
        yield from self._step([None] * len(ended), ended, waits=True)
        for number in range(len(ended)):
            yield self.first + number, None

    def _step(
        self, pieces: Sequence[Video | None], ended: Sequence[bool], *, waits: bool
    ) -> Iterator[tuple[int, Tokens | Exception | None]]:
        for number, tokens in self._encoder.step(pieces, ended=ended, waits=waits):
            yield self.first + number, tokens
        for number, error in self._feeds.learn(self._encoder.latents.errors):
            yield self.first + number, error


def _solved_in_step(
    parts: Parts, sources: Sequence[Iterable[Video]], config: EncodeConfig, budget: Budget, batch: int | None,
    limits: BatchLimits | None, first: int,
) -> Iterator[tuple[int, Tokens | Exception | None]]:  # fmt: skip
    sizes = sizes_for(parts, config, budget)
    judged = len(sizes) > 1 or may_climb(parts, config, budget)
    videos = [SizedVideo(parts, config, sizes, judged=judged) for _ in sources]
    encoders, feeds = SizedEncoders(parts, videos, first=first, batch=batch, limits=limits), Feeds(sources)
    try:
        for pieces, ended in feeds:
            encoders.push(pieces, ended=ended)
            for number, error in feeds.learn(encoders.errors):
                yield first + number, error
        for number, video in enumerate(videos):
            if number not in feeds.failed:
                yield from _solved(parts, video, budget, first + number)
            yield first + number, None
    finally:
        for video in videos:
            video.close()


def _solved(parts: Parts, video: SizedVideo, budget: Budget, number: int) -> Iterator[tuple[int, Tokens | Exception]]:
    try:
        for tokens in video.solve(budget):
            parts.saw_tokens(tokens)
            yield number, tokens
    except Exception as error:
        yield number, error


class Feeds:
    """The next piece of each video at a time, until all have ended or failed."""

    def __init__(self, sources: Sequence[Iterable[Video]]) -> None:
        self._sources = [iter(source) for source in sources]
        self.ended = [False] * len(self._sources)
        self.failed: dict[int, Exception] = {}
        self._told: set[int] = set()

    def __iter__(self) -> Iterator[tuple[list[Video | None], list[bool]]]:
        while not all(self.ended):
            yield [self._next(number) for number in range(len(self._sources))], self.ended

    def _next(self, number: int) -> Video | None:
        if self.ended[number]:
            return None
        piece = None
        try:
            piece = next(self._sources[number], None)
        except Exception as error:  # of one video; the others go on
            self.failed[number] = error
        self.ended[number] = piece is None
        return piece

    def learn(self, errors: dict[int, Exception]) -> Iterator[tuple[int, Exception]]:
        """Errors met so far, each told once; streams that failed get no more pieces."""
        for number, error in errors.items():
            self.failed.setdefault(number, error)
        for number, error in self.failed.items():
            self.ended[number] = True
            if number not in self._told:
                self._told.add(number)
                yield number, error


def pinned_pieces(pieces: Iterable[Video], parts: Parts) -> Iterator[Video]:
    """The same pieces, where the device can fetch them."""
    for piece in pieces:
        yield replace(piece, frames=pinned(piece.frames, parts.device))


def without_first(pieces: Iterable[Video], frames: int) -> Iterator[Video]:
    """The same pieces, less their first `frames` frames."""
    for piece in pieces:
        if frames < len(piece):
            yield piece[frames:]
        frames = max(frames - len(piece), 0)
