# SPDX-License-Identifier: Apache-2.0
"""Encode whole videos under any budget: as they go by where the budget allows it, else once all latents are there.

Every way to a token file ends here: `Tokenizer.encode`, `inlay encode`, `inlay tokenize`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from inlay.codec.calls import BatchLimits
from inlay.codec.config import EncodeConfig
from inlay.codec.decoder import Decoder
from inlay.codec.encoder import Encoder
from inlay.codec.parts import Parts
from inlay.codec.quality import mean_psnr
from inlay.codec.sizes import SizedEncoders, SizedVideo, sizes_for
from inlay.codec.solve import SolvedVideo
from inlay.container import as_stored
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError
from inlay.masking import Bucket, Budget
from inlay.video.frames import Video

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

    def encode(self, pieces: Iterable[Video], *, done: Sequence[Tokens] | None = None) -> Iterator[Tokens]:
        """The chunks of the video, given in any pieces.

        Args:
            done: chunks that an earlier run has made; the others follow.
        """
        if self.budget.causal:
            yield from self._as_it_goes(pieces, done or ())
        else:
            yield from self._in_two_passes(pieces, len(done or ()))

    def _as_it_goes(self, pieces: Iterable[Video], done: Sequence[Tokens]) -> Iterator[Tokens]:
        encoder = Encoder(self.parts, self.config, budget=self.budget)
        for tokens in done:
            encoder.replay(tokens)
        yield from encoder.encode(without_first(pieces, sum(tokens.info.frames for tokens in done)))
        if encoder.bucket is not None:
            asked = self.budget.keep if self.budget.keep is not None else self.budget.bits or 0.0
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
        with SizedVideo.of(self.parts, pieces, self.config, sizes=sizes) as video:
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
    asked = {"keep": budget.keep, "tokens": budget.tokens, "bits": budget.bits, "psnr": budget.psnr}[kind]
    decodes = found.trials if kind == "psnr" else solved.looked
    return BudgetReport(
        budget=kind, asked=asked or 0.0, got=got, tau=solved.recipe.tau, step=solved.recipe.step,
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
    budget = budget or Budget()
    config = parts.settle(config, budget)
    if budget.kind == "psnr":
        raise ConfigError("videos that are encoded in step are not decoded; give them another budget", about="psnr")
    if budget.causal:
        yield from _in_step(parts, sources, config, budget, batch, limits)
    else:
        yield from _solved_in_step(parts, sources, config, budget, batch, limits)


def _in_step(
    parts: Parts, sources: Sequence[Iterable[Video]], config: EncodeConfig, budget: Budget, batch: int | None,
    limits: BatchLimits | None,
) -> Iterator[tuple[int, Tokens | Exception]]:  # fmt: skip
    encoder = Encoder(parts, config, budget=budget, streams=len(sources), batch=batch, limits=limits)
    feeds = Feeds(sources)
    for pieces, ended in feeds:
        yield from encoder.step(pieces, ended=ended)
        yield from feeds.learn(encoder.latents.errors)


def _solved_in_step(
    parts: Parts, sources: Sequence[Iterable[Video]], config: EncodeConfig, budget: Budget, batch: int | None,
    limits: BatchLimits | None,
) -> Iterator[tuple[int, Tokens | Exception]]:  # fmt: skip
    sizes = sizes_for(parts, config, budget)
    videos = [SizedVideo(parts, config, sizes) for _ in sources]
    encoders, feeds = SizedEncoders(parts, videos, batch=batch, limits=limits), Feeds(sources)
    try:
        for pieces, ended in feeds:
            encoders.push(pieces, ended=ended)
            yield from feeds.learn(encoders.errors)
        for number, video in enumerate(videos):
            if number in feeds.failed:
                continue
            try:
                for tokens in video.solve(budget):
                    parts.saw_tokens(tokens)
                    yield number, tokens
            except Exception as error:
                yield number, error
    finally:
        for video in videos:
            video.close()


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


def without_first(pieces: Iterable[Video], frames: int) -> Iterator[Video]:
    """The same pieces, less their first `frames` frames."""
    for piece in pieces:
        if frames < len(piece):
            yield piece[frames:]
        frames = max(frames - len(piece), 0)
