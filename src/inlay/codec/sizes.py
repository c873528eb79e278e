# SPDX-License-Identifier: Apache-2.0
"""`SizedVideo`: a video at each size that its budget may choose; the size that looks best for it is taken.

Few bits go further on a smaller picture: a cell that is not there needs no bits, and a smooth enlargement looks better
than cells that are rounded too coarsely. Which size is best depends on the video, so each is tried on one chunk of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from inlay.codec.calls import BatchLimits
from inlay.codec.config import AUTO, EncodeConfig
from inlay.codec.decoder import Decoder
from inlay.codec.latents import LatentChunk, LatentEncoder
from inlay.codec.parts import Parts
from inlay.codec.quality import frame_errors, frame_psnr
from inlay.codec.solve import Quality, SolvedVideo, WholeVideo, and_end
from inlay.container import as_stored
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError
from inlay.masking import Budget
from inlay.types import SCALES, coded_size
from inlay.video.frames import Video, resized

COARSE_STEP = 2.0  # finer than this nothing is gained by a smaller picture
PIXEL_STEP = 4  # rows and columns from one that is looked at for change to the next


def sizes_for(parts: Parts, config: EncodeConfig, budget: Budget) -> list[str]:
    """The scales to try: those the settings leave open, where the budget asks for coarse steps."""
    dial = parts.dial(config)
    if config.scale != AUTO or dial is None or budget.tau is not None or budget.kind not in ("bits", "psnr"):
        return [config.coded_scale]
    by_psnr = budget.psnr is not None
    place = dial.place_of_psnr(budget.psnr or 0.0) if by_psnr else dial.place_of_bits(budget.bits or 1.0)
    return list(SCALES) if dial.at(place)[1] >= COARSE_STEP else [config.coded_scale]


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
    """

    def __init__(self, parts: Parts, config: EncodeConfig, sizes: Sequence[str]) -> None:
        self.parts, self.config = parts, config
        self.videos = {size: WholeVideo(parts, replace(config, scale=size)) for size in sizes}
        self._recent: list[Tensor] = []  # frames since the chunk that was added last
        self._first = 0  # number of the first of them
        self._sample: Sample | None = None

    @classmethod
    def of(
        cls, parts: Parts, pieces: Iterable[Video], config: EncodeConfig | None = None, *, sizes: Sequence[str]
    ) -> SizedVideo:
        """Encode a video, given in any pieces."""
        video = cls(parts, (config or EncodeConfig()).resolve(parts.spec), sizes)
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
        if len(self.videos) > 1:
            self._recent.append(piece.frames.cpu())

    def add(self, size: str, chunk: LatentChunk) -> None:
        """The next chunk of the video at one size."""
        video = self.videos[size]
        video.add(chunk)
        if len(self.videos) > 1 and video is self.full:
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
        if len(videos) == 1:
            return self._chosen(self.full.solve(budget, quality))
        if budget.kind == "psnr":
            return self._fewest_bits(videos, budget, quality)
        solved, refusal = [], None
        for video in videos.values():
            try:
                solved.append(video.solve(budget))
            except ConfigError as error:  # a smaller size may grant what a larger one cannot
                refusal = error
        judged = [(found, self._psnr(found)) for found in solved]
        if not judged:
            assert refusal is not None, "what was not granted was refused"
            raise refusal
        best = max(judged, key=lambda row: row[1])[0]
        return self._chosen(best, solved, looked=len(judged))

    def _fewest_bits(self, videos: Mapping[str, WholeVideo], budget: Budget, quality: Quality | None) -> SolvedVideo:
        solved = [self.full.solve(budget, quality)]
        for size, video in list(videos.items())[1:]:
            if self._bound(size) > (budget.psnr or 0.0):
                with suppress(ConfigError):  # it does not reach the target
                    solved.append(video.solve(budget, quality))
        best = min(solved, key=lambda found: found.video.bits(found.recipe))
        return self._chosen(best, solved)

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
