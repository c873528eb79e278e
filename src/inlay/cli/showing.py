# SPDX-License-Identifier: Apache-2.0
"""What `inlay demo` does: five files, and the numbers of its table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from inlay.cli.encoding import EncodeJob
from inlay.cli.model import Model
from inlay.cli.passes import decode_file, open_clip
from inlay.cli.record import file_record
from inlay.cli.screen import Screen
from inlay.cli.viewing import write_film
from inlay.container import TokenReader
from inlay.draw.film import shots
from inlay.masking import Budget
from inlay.measure import compare
from inlay.video import write_video
from inlay.video.synthetic import demo_clip


@dataclass(frozen=True, kw_only=True)
class Show:
    """The stages in order; each reads what the one before wrote, so that the files are known to be good."""

    folder: Path
    model: Model
    tau: float | None
    screen: Screen
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, video: str | None, *, size: str, frames: int) -> dict[str, Any]:
        clip, tokens, decoded = (self.place(name) for name in ("clip.mp4", "clip.inlay", "clip.decoded.mp4"))
        with self.timed("load"):
            tokenizer = self.model.load()
        with self.timed("clip"):
            self.make_clip(video, clip, size=size, frames=frames)
        with self.timed("encode"), open_clip(clip) as reader:
            budget = Budget(tau=self.tau)
            EncodeJob(target=tokens, tokenizer=tokenizer, screen=self.screen, budget=budget, force=True).run(reader)
        with self.timed("decode"), TokenReader(tokens) as token_reader:
            fill = self.model.fill or tokenizer.filler.default
            decode_file(token_reader, decoded, tokenizer=tokenizer, fill=fill, force=True, screen=self.screen)
        film = self.make_film(clip, tokens, decoded)
        record = file_record(tokens)
        named = {"clip": clip, "token_file": tokens, "decoded": decoded, "fill": fill}
        return record | film | named | self.quality(clip, decoded) | {"stage_seconds": self.seconds}

    def make_clip(self, video: str | None, clip: str, *, size: str, frames: int) -> None:
        if video is None:
            write_video(demo_clip(), clip, force=True)
            return
        with open_clip(video, size=size, frames=frames) as reader:
            write_video(reader.chunks(), clip, force=True)

    def make_film(self, clip: str, tokens: str, decoded: str) -> dict[str, Any]:
        curve = self.place("curve.png") if find_spec("matplotlib") else None
        with (
            self.timed("film"),
            open_clip(clip) as originals,
            open_clip(decoded) as results,
            TokenReader(tokens) as reader,
        ):
            scenes, film, frames = shots(reader, results, originals), self.place("side-by-side.mp4"), originals.frames
            return write_film(scenes, film, curve, title="clip.mp4", frames=frames, force=True, screen=self.screen)

    def quality(self, clip: str, decoded: str) -> dict[str, float]:
        with self.timed("measure"), open_clip(clip) as a, open_clip(decoded) as b:
            report = compare(a.chunks(), b.chunks(), ("psnr", "ssim"))
        return {name: report[name] for name in ("psnr", "ssim")}

    def place(self, name: str) -> str:
        return str(self.folder / name)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage] = round(time.perf_counter() - start, 3)
