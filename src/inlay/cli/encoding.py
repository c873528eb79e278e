# SPDX-License-Identifier: Apache-2.0
"""An open video and a budget in, a token file out, and what came of the budget: in one pass, or in two if it must."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

import torch

from inlay.cli.model import Settings
from inlay.cli.passes import counted, open_clip
from inlay.cli.screen import Screen
from inlay.codec import KeepCurve, Plan, StreamConfig, StreamEncoder, WholeVideo
from inlay.container import TokenReader, TokenWriter, Unfinished, as_stored, part_of, unfinished
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError, UsageError, VideoError
from inlay.masking import Budget
from inlay.tokenizer import Tokenizer
from inlay.video import VideoReader
from inlay.video.frames import Video

PIPE_BUCKET_SECONDS = 2.0


def budget_of_pipe(budget: Budget) -> Budget:
    """What can be promised of a video that comes through a pipe: rates are held as it goes by."""
    if budget.causal:
        return budget
    if budget.kind in ("tokens", "psnr") or budget.exact:
        flag = "--exact" if budget.exact else f"--{budget.kind}"
        raise ConfigError(
            f"{flag} needs the whole video, and a pipe is seen once; encode a file, or give --keep or --bits"
        )
    return replace(budget, bucket_seconds=PIPE_BUCKET_SECONDS)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One video to encode."""

    target: str
    tokenizer: Tokenizer
    settings: Settings
    screen: Screen
    budget: Budget = field(default_factory=Budget)
    config: StreamConfig = field(default_factory=StreamConfig)
    again: Callable[[], VideoReader] | None = None  # opens the video once more, to compare with
    piped: bool = False
    force: bool = False
    resume: bool = False
    curve: KeepCurve | None = None

    def run(self, reader: VideoReader) -> dict[str, Any]:
        """Write the file; returns what is to be said about the budget."""
        left = self.left()
        with self.screen.progress("encoding", reader.frames) as advance:
            pieces = counted(frames_of(reader, self.config.chunk_frames, piped=self.piped), advance)
            if self.budget.causal:
                return self.in_one_pass(pieces, left)
            return self.in_two(pieces, left)

    def left(self) -> Unfinished | None:
        part = part_of(self.target)
        if not self.resume:
            if part.exists() and not self.force:
                raise UsageError(
                    f"{part} was left by an interrupted encode; give --resume to go on, or --force to begin anew"
                )
            return None
        return unfinished(self.target)

    def in_one_pass(self, pieces: Iterable[Video], left: Unfinished | None) -> dict[str, Any]:
        options = {k: v for k, v in asdict(self.settings).items() if v is not None}
        encoder = StreamEncoder(self.tokenizer, self.config, budget=self.budget, **options)
        if left is not None:
            pieces = without_first(pieces, left.frames)
            for tokens in self.done(left):
                encoder.replay(tokens)
        self.write(encoder.encode(pieces), encoder.config, left)
        bucket = encoder.bucket
        if bucket is None:
            return {}
        asked = self.budget.keep if self.budget.keep is not None else self.budget.bits
        return {
            "budget": self.budget.kind,
            "asked": asked,
            "got": (asked or 0.0) * (1 + bucket.overshoot),
            "bucket_seconds": self.budget.bucket_seconds,
            "overshoot": bucket.overshoot,
            "peak_overshoot": bucket.peak,
            "bucket_size": bucket.size,
        }

    def in_two(self, pieces: Iterable[Video], left: Unfinished | None) -> dict[str, Any]:
        """Latents first, onto disk; then the budget is solved on them, and the tokens are written."""
        options = {k: v for k, v in asdict(self.settings).items() if v is not None}
        with WholeVideo(self.tokenizer, pieces, self.config, **options) as video:
            plan = video.solve(self.budget, self.psnr)
            chunks = iter(plan) if left is None else islice(plan, len(left.entries), None)
            self.write(chunks, video.config, left)
            return self.report(plan)

    def report(self, plan: Plan) -> dict[str, Any]:
        kind, found, video = self.budget.kind, plan.solution, plan.video
        got = {
            "keep": (found.value + plan.extra) / video.cells,
            "tokens": int(found.value) + plan.extra,
            "bits": found.value / video.pixels,
            "psnr": found.value,
        }[kind]
        decodes = found.trials if kind == "psnr" else 0
        asked = getattr(self.budget, kind)
        return {"budget": kind, "asked": asked, "got": got, "trials": found.trials, "decodes": decodes}

    def psnr(self, chunks: Iterable[Tokens]) -> float:
        """Of the video as a reader of the file would decode it."""
        from inlay.measure import MeasureConfig, compare

        if self.again is None:
            raise ConfigError("--psnr compares with the original, which can be read only once here; encode a file")
        videos = self.tokenizer.decode_chunks(map(as_stored, chunks), self.tokenizer.default_fill)
        with self.again() as original:
            report = compare(original.chunks(), videos, ("psnr",), config=MeasureConfig(device="cpu"))
        return report["psnr"]

    def done(self, left: Unfinished) -> Iterator[Tokens]:
        """The chunks that an earlier run has written."""
        with TokenReader(left.path, keep_going=True) as reader:
            for number in range(len(left.entries)):
                yield reader.read(number)

    def write(self, chunks: Iterable[Tokens], config: StreamConfig, left: Unfinished | None) -> None:
        rest = iter(chunks)
        first = next(rest, None)
        if first is None:
            raise VideoError(
                f"the video ends before frame {left.frames if left else 0}, where {part_of(self.target)} left off; "
                "is it the same video?"
            )
        if left is not None and self.curve is not None:
            for tokens in self.done(left):
                self.curve.add(tokens)
        writer = TokenWriter(
            self.target,
            info=first.info,
            recipe=first.recipe,
            force=self.force,
            keep_part=True,
            resume=left,
        )
        with self.rescued(writer), writer:
            for tokens in chain_of(first, rest):
                writer.append(tokens)
                if self.curve is not None:
                    self.curve.add(tokens)

    @contextmanager
    def rescued(self, writer: TokenWriter) -> Iterator[None]:
        """An interruption is how a live stream ends; of anything else, say where the part is."""
        try:
            yield
        except BaseException as error:
            part = part_of(self.target)
            if isinstance(error, KeyboardInterrupt) and self.piped and part.exists():
                part.replace(self.target)
                self.screen.note(f"what came before the interruption is in {self.target}")
            elif part.exists():
                self.screen.note(f"what was done is in {part}; give --resume to go on")
            raise


def encode_file(
    reader: VideoReader, out: str, *, tokenizer: Tokenizer, settings: Settings, force: bool, screen: Screen
) -> None:
    """An open video becomes a token file, with nothing asked for but its settings."""
    budget = Budget(tau=settings.tau)
    Job(target=out, tokenizer=tokenizer, settings=settings, budget=budget, force=force, screen=screen).run(reader)


def frames_of(reader: VideoReader, size: int, *, piped: bool) -> Iterator[Video]:
    """A pipe shows only as it goes on that its rate varies, and a token file has times for all chunks or none: what
    comes from a pipe has them for all."""
    if not piped:
        yield from reader.chunks(size)
        return
    first = 0
    for video in reader.chunks(size):
        grid = (first + torch.arange(len(video), dtype=torch.float64)) / float(video.fps)
        yield replace(video, seconds=grid if video.seconds is None else video.seconds)
        first += len(video)


def without_first(pieces: Iterable[Video], frames: int) -> Iterator[Video]:
    """The same pieces, less their first `frames` frames."""
    for piece in pieces:
        if frames < len(piece):
            yield piece[frames:]
        frames = max(frames - len(piece), 0)


def chain_of(first: Tokens, rest: Iterator[Tokens]) -> Iterator[Tokens]:
    yield first
    yield from rest


def reopener(source: str, *, size: str, keep_going: bool) -> Callable[[], VideoReader]:
    return lambda: open_clip(source, size=size, keep_going=keep_going)
