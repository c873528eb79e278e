# SPDX-License-Identifier: Apache-2.0
"""`SizedVideo`: a video at each size that its budget may choose; the size that looks best for it is taken.

Few bits go further on a smaller picture: a cell that is not there needs no bits, and a smooth enlargement looks better
than cells that are rounded too coarsely. Which size is best depends on the video, so each is tried on one chunk of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import itemgetter

import torch
from torch import Tensor

from inlay.codec.calls import BatchLimits
from inlay.codec.config import AUTO, EncodeConfig
from inlay.codec.decoder import Decoder
from inlay.codec.latents import LatentChunk, LatentEncoder
from inlay.codec.parts import Parts
from inlay.codec.quality import frame_errors, frame_psnr
from inlay.codec.solve import Quality, SolvedVideo, TooFewBitsError, WholeVideo, and_end
from inlay.container import as_stored
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError
from inlay.masking import Budget
from inlay.types import SCALES, coded_size
from inlay.video.frames import Video, resized

COARSE_STEP = 2.0  # finer than this nothing is gained by a smaller picture
TAU_SHARES = (0.25, 0.5, 1.0, 1.6, 2.5)  # of the profile's own tau, which videos are tried with
PIXEL_STEP = 4  # rows and columns from one that is looked at for change to the next


def sizes_for(parts: Parts, config: EncodeConfig, budget: Budget) -> list[str]:
    """The scales to try: those the settings leave open, where the budget asks for coarse steps."""
    dial = parts.dial(config)
    if config.scale != AUTO or dial is None or budget.tau is not None or budget.kind not in ("bits", "psnr"):
        return [config.coded_scale]
    coarse = dial.at(dial.place_of(budget))[1] >= COARSE_STEP
    return list(SCALES) if coarse else [config.coded_scale]


def may_climb(parts: Parts, config: EncodeConfig, budget: Budget) -> bool:
    """Whether taus beyond the dial's may be tried for this budget."""
    return budget.kind in ("bits", "psnr") and budget.tau is None and parts.dial(config) is not None


Measured = tuple[SolvedVideo, float]  # and the PSNR of its sample, or the bits of its file


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """The frames of a key chunk, to judge by."""

    first: int
    frames_THWC: Tensor
    change: float


class SizedVideo:
    """A video whose latents wait on disk, at one size or several.

    with SizedVideo.of(tokenizer, reader.chunks(), sizes=["1", "1/2"]) as video:
        for tokens in video.solve(budget): ...

    Args:
        judged: frames are sampled, to choose by how they come back.
    """

    def __init__(self, parts: Parts, config: EncodeConfig, sizes: Sequence[str], *, judged: bool = True) -> None:
        self.parts, self.config, self.judged = parts, config, judged
        self.videos = {size: WholeVideo(parts, replace(config, scale=size)) for size in sizes}
        self._recent: list[Tensor] = []  # frames since the chunk that was added last
        self._first = 0  # number of the first of them
        self._sample: Sample | None = None

    @classmethod
    def of(
        cls, parts: Parts, pieces: Iterable[Video], config: EncodeConfig | None = None, *, sizes: Sequence[str],
        judged: bool = True,
    ) -> SizedVideo:  # fmt: skip
        """Encode a video, given in any pieces."""
        video = cls(parts, (config or EncodeConfig()).resolve(parts.spec), sizes, judged=judged)
        try:
            encoders = SizedEncoders(parts, [video])
            for piece in and_end(pieces):
                encoders.push([piece], ended=[piece is None])
                for error in encoders.errors.values():
                    raise error
            video.full.check_not_empty()
        except BaseException:
            video.close()
            raise
        return video

    @property
    def full(self) -> WholeVideo:
        """The video at the largest size."""
        return next(iter(self.videos.values()))

    def __enter__(self) -> SizedVideo:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        for video in self.videos.values():
            video.close()

    def show(self, piece: Video) -> None:
        """Frames that chunks will be made of, before any of them is."""
        if self.judged:
            self._recent.append(piece.frames.cpu())

    def add(self, size: str, chunk: LatentChunk) -> None:
        """The next chunk of the video at one size."""
        video = self.videos[size]
        video.add(chunk)
        if self.judged and video is self.full:
            self._take_sample(chunk)

    def _take_sample(self, chunk: LatentChunk) -> None:
        """Keep the frames of the key chunk that changes most."""
        frames_THWC = torch.cat(self._recent)
        own, self._recent = frames_THWC[: chunk.span.frames], [frames_THWC[chunk.span.frames :]]
        first, self._first = self._first, self._first + chunk.span.frames
        if chunk.span.key:
            seen = own[:, ::PIXEL_STEP, ::PIXEL_STEP].float()
            change = float((seen[1:] - seen[:-1]).abs().mean()) if len(seen) > 1 else 0.0
            if self._sample is None or change > self._sample.change:
                self._sample = Sample(first=first, frames_THWC=own.clone(), change=change)

    def solve(self, budget: Budget, quality: Quality | None = None) -> SolvedVideo:
        """Grant a budget at each size, and take the size whose sample comes back best; of a PSNR, the fewest bits.

        Args:
            quality: measures tokens against the original, for budget psnr.
        """
        self.full.check_not_empty()
        wanted = sizes_for(self.parts, self.config, budget)
        videos = {size: video for size, video in self.videos.items() if size in wanted}
        climbs = may_climb(self.parts, self.config, budget)
        if len(videos) == 1 and not climbs:
            return self._chosen(self.full.solve(budget, quality))
        if budget.kind == "psnr":
            return self._fewest_bits(videos, budget, quality, climbs=climbs)
        solved, refusals = [], list[TooFewBitsError]()
        for video in videos.values():
            try:
                solved.append(video.solve(budget))
            except TooFewBitsError as error:  # another size may grant what this one cannot
                refusals.append(error)
        if not solved:
            raise min(refusals, key=lambda refusal: refusal.least)
        judged = [(found, self._psnr(found)) for found in solved]
        if climbs:
            judged += self._climb(max(judged, key=itemgetter(1)), budget)
        return self._chosen(max(judged, key=itemgetter(1))[0], [found for found, _ in judged], looked=len(judged))

    def _climb(self, best: Measured, budget: Budget) -> Iterator[Measured]:
        """The same bits with fewer cells and finer steps, as long as the sample gets better: the dial is one for all
        videos, and some bear a larger tau. With fewer cells a larger picture may pay again."""
        sizes, climbed = list(self.videos), False
        size = best[0].recipe.scale
        for tau in self._larger_taus(best[0].recipe.tau):
            found = self._judged(size, replace(budget, tau=tau))
            if found is None or found[1] <= best[1]:
                break
            best, climbed = found, True
            yield best
        larger = sizes[max(sizes.index(size) - 1, 0)]
        if climbed and larger != size and (found := self._judged(larger, replace(budget, tau=best[0].recipe.tau))):
            yield found

    def _larger_taus(self, tau: float) -> list[float]:
        usual = self.full.start
        return [usual * share for share in TAU_SHARES if usual * share > tau]

    def _judged(self, size: str, budget: Budget) -> Measured | None:
        """A budget granted at one size, and how the sample comes back; nothing where it cannot be granted."""
        with suppress(ConfigError):
            found = self.videos[size].solve(budget)
            return found, self._psnr(found)
        return None

    def _fewest_bits(
        self, videos: Mapping[str, WholeVideo], budget: Budget, quality: Quality | None, *, climbs: bool
    ) -> SolvedVideo:
        """Of a PSNR: at each size, and then at the larger tau that makes the sample better for the same bits."""
        solved, looked = [_with_bits(self.full.solve(budget, quality))], 0
        for size, video in list(videos.items())[1:]:
            if self._bound(size) > budget.asked:
                with suppress(ConfigError):  # it does not reach the target
                    solved.append(_with_bits(video.solve(budget, quality)))
        if climbs:
            best, bits = min(solved, key=itemgetter(1))
            judged = [(best, self._psnr(best))]
            judged += self._climb(judged[0], Budget(bits=bits / best.video.pixels))
            looked, better = len(judged), max(judged, key=itemgetter(1))[0]
            if better is not best:
                with suppress(ConfigError):  # the sample is better, and the whole does not reach the target
                    video = self.videos[better.recipe.scale]
                    solved.append(_with_bits(video.solve(replace(budget, tau=better.recipe.tau), quality)))
        return self._chosen(min(solved, key=itemgetter(1))[0], [found for found, _ in solved], looked)

    def _chosen(self, best: SolvedVideo, solved: Sequence[SolvedVideo] = (), looked: int = 0) -> SolvedVideo:
        """With all that was tried, and those who look on told of its latents, if they were not as they came."""
        if len(self.videos) > 1:
            for chunk in best.video.spool:
                self.parts.saw_latents(chunk)
        trials = sum(found.solution.trials for found in solved or [best])
        return replace(best, solution=replace(best.solution, trials=trials), looked=looked)

    def _psnr(self, solved: SolvedVideo) -> float:
        """Of the sample, as a reader of the file would see it; another size may have been cut into other chunks."""
        sample = self._sample
        assert sample is not None, "a video begins with a key chunk"
        first, chunks = _around(solved, sample.first, sample.first + len(sample.frames_THWC))
        decoder = Decoder(self.parts, fill=self.config.fill)
        decoded = torch.cat([video.frames.cpu() for video in decoder.decode(map(as_stored, chunks))])
        return _mean_psnr(sample.frames_THWC, decoded[sample.first - first :][: len(sample.frames_THWC)])

    def _bound(self, size: str) -> float:
        """PSNR of the sample made smaller and larger again: no network gives more back."""
        assert self._sample is not None, "a video begins with a key chunk"
        frames = self._sample.frames_THWC
        height, width = frames.shape[1:3]
        return _mean_psnr(frames, resized(resized(frames, *coded_size(height, width, size)), height, width))


class SizedEncoders:
    """The latents of videos in step, at each size that any of them asks for."""

    def __init__(
        self,
        parts: Parts,
        videos: Sequence[SizedVideo],
        *,
        first: int = 0,
        batch: int | None = None,
        limits: BatchLimits | None = None,
    ) -> None:
        self.videos = videos
        config, sizes = videos[0].config, videos[0].videos
        self.encoders = {
            size: LatentEncoder(
                parts, replace(config, scale=size), streams=len(videos), first=first, batch=batch, limits=limits,
                watched=len(sizes) == 1,
            )
            for size in sizes
        }  # fmt: skip

    @property
    def errors(self) -> dict[int, Exception]:
        """Videos that failed at any size."""
        return {number: error for encoder in self.encoders.values() for number, error in encoder.errors.items()}

    def push(self, pieces: Sequence[Video | None], *, ended: Sequence[bool]) -> None:
        """Encode a piece of each video; for videos that ended, the rest too."""
        for video, piece in zip(self.videos, pieces, strict=True):
            if piece is not None:
                video.show(piece)
        for size, encoder in self.encoders.items():
            encoder.push(pieces)
            for chunks in encoder.rounds(ended=ended):
                for number, chunk in chunks:
                    self.videos[number].add(size, chunk)


def _with_bits(found: SolvedVideo) -> Measured:
    return found, found.video.bits(found.recipe)


def _around(chunks: Iterable[Tokens], first: int, end: int) -> tuple[int, list[Tokens]]:
    """(the frame that they begin with, chunks from the last key chunk at or before `first` on, until `end`)."""
    begin, at, found = 0, 0, list[Tokens]()
    for tokens in chunks:
        if at >= end:
            break
        if at <= first and tokens.spans[0].key:
            begin, found = at, []
        found.append(tokens)
        at += tokens.info.frames
    return begin, found


def _mean_psnr(a_THWC: Tensor, b_THWC: Tensor) -> float:
    return float(frame_psnr(frame_errors(a_THWC, b_THWC)[0]).mean())
