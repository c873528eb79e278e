# SPDX-License-Identifier: Apache-2.0
"""What `inlay encode` and the demo share: a video, read with progress shown, into a token file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from inlay.cli.passes import counted, open_clip
from inlay.cli.screen import Screen
from inlay.codec import BudgetReport, EncodeConfig, VideoEncoder, encode_file, keep_part, with_times
from inlay.container import part_of
from inlay.masking import Budget
from inlay.tokenizer import Tokenizer
from inlay.video import VideoReader
from inlay.video.frames import Video


@dataclass(frozen=True, kw_only=True)
class EncodeJob:
    """One video to encode."""

    target: str
    tokenizer: Tokenizer
    screen: Screen
    config: EncodeConfig = field(default_factory=EncodeConfig)
    budget: Budget = field(default_factory=Budget)
    source: str | None = None  # where the video can be read once more, to compare with
    size: str = "keep"
    keep_going: bool = False
    piped: bool = False
    force: bool = False
    resume: bool = False

    def run(self, reader: VideoReader) -> BudgetReport | None:
        """Write the file; returns what came of the budget."""
        encoder = VideoEncoder(
            self.tokenizer, self.config, budget=self.budget, original=None if self.source is None else self.again
        )
        with self.screen.progress("encoding", reader.frames) as advance:
            pieces: Iterable[Video] = reader.chunks(self.config.chunk_frames)
            pieces = counted(with_times(pieces) if self.piped else pieces, advance)
            try:
                encode_file(encoder, pieces, self.target, force=self.force, resume=self.resume)
            except BaseException as error:
                self.tell_of_part(error)
                raise
        return encoder.report

    def again(self) -> Iterable[Video]:
        assert self.source is not None, "only a file is read twice"
        with open_clip(self.source, size=self.size, keep_going=self.keep_going) as reader:
            yield from reader.chunks()

    def tell_of_part(self, error: BaseException) -> None:
        """An interruption is how a live stream ends; of anything else, say where the part is."""
        if isinstance(error, KeyboardInterrupt) and self.piped and keep_part(self.target):
            self.screen.note(f"what came before the interruption is in {self.target}")
        elif part_of(self.target).exists():
            self.screen.note(f"what was done is in {part_of(self.target)}; give --resume to go on")


def budget_record(report: BudgetReport | None) -> dict[str, Any]:
    """What `encode --json` says of the budget."""
    if report is None:
        return {}
    got = int(report.got) if report.budget == "tokens" else report.got
    record: dict[str, Any] = {"budget": report.budget, "asked": report.asked, "got": got}
    bucket = report.bucket
    if bucket is None:
        return record | {"trials": report.trials, "decodes": report.decodes}
    return record | {
        "bucket_seconds": report.bucket_seconds,
        "overshoot": bucket.overshoot,
        "peak_overshoot": bucket.peak,
        "bucket_size": bucket.size,
    }
