# SPDX-License-Identifier: Apache-2.0
"""One visitor's clip: latents computed once, masks as often as wanted, reconstructions on demand.

Legend: T frames, h w cells.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from inlay.codec import CLIP_FRAMES, KeepCurve, WholeVideo, keep_curve, slot_of_frame
from inlay.container import TokenReader, TokenWriter
from inlay.container.tokens import Tokens
from inlay.errors import InlayError, UsageError
from inlay.masking import Budget
from inlay.measure import MeasureConfig, compare
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video, join_videos
from inlay.web.limits import Limits
from inlay.web.uploads import check_token_file, plain_reason, read_clip

Advance = Callable[[float, str], None]  # share done, what is being done


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """Which cells are kept at one tau."""

    tau: float
    chunks: tuple[Tokens, ...]
    curve: KeepCurve
    keep_Thw: Tensor  # the mask of the slot that each frame belongs to

    @property
    def frames(self) -> int:
        return len(self.keep_Thw)

    @property
    def mode(self) -> str:
        """What a chunk knows of the one before."""
        return self.chunks[0].recipe.streaming


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """What came back with one fill, and of what; quality is missing where there is no original."""

    fill: str
    video: Video
    choice: Choice
    original: Video | None
    seconds: dict[str, float]
    psnr: float | None = None
    ssim: float | None = None


@dataclass(kw_only=True, eq=False)
class Session:
    """All that one visitor has; nothing of it is shared."""

    folder: Path
    lock: threading.RLock = field(default_factory=threading.RLock)  # a slider does not wait for its own last answer
    name: str = ""
    original: Video | None = None
    latents: WholeVideo | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    choice: Choice | None = None
    token_file: Path | None = None
    results: dict[str, Result] = field(default_factory=dict)
    uploads: dict[Path, int] = field(default_factory=dict)  # what the visitor sent -> when that came to lie there

    def close(self) -> None:
        with self.lock:
            self._take("", None, None, {})
        shutil.rmtree(self.folder, ignore_errors=True)

    def _take(self, name: str, original: Video | None, latents: WholeVideo | None, seconds: dict[str, float]) -> None:
        """Put a clip in the place of the one before."""
        if self.latents is not None:
            self.latents.close()
        self.name, self.original, self.latents, self.seconds = name, original, latents, seconds
        self.choice = self.token_file = None
        self.results.clear()

    # --- a clip comes in ---------------------------------------------------------------------------------------------

    def load(self, tokenizer: Tokenizer, video: Video, name: str, read_seconds: float, advance: Advance) -> None:
        """Encode once; from here on only masks are computed."""
        start = time.perf_counter()
        latents = WholeVideo.of(tokenizer, _pieces(video, advance))
        seconds = {"read": read_seconds, "encode": time.perf_counter() - start}
        with self.lock:
            self._take(name, video, latents, seconds)
            self.choose_tau(float(f"{latents.start:.4g}"))  # as a person would write it

    def load_file(self, tokenizer: Tokenizer, path: Path, limits: Limits, advance: Advance) -> None:
        start = time.perf_counter()
        advance(0.0, "Reading the video")
        video = read_clip(path, limits, lambda done, of: advance(0.2 * done / max(of or done, 1), "Reading the video"))
        self.load(tokenizer, video, path.name, time.perf_counter() - start, advance)

    def load_tokens(self, tokenizer: Tokenizer, path: Path, limits: Limits) -> None:
        """A token file of a visitor: there is no original, and its mask is what it is."""
        check_token_file(path, limits)
        start = time.perf_counter()
        try:
            with TokenReader(path) as reader:
                chunks = tuple(reader)
        except InlayError as error:
            raise type(error)(plain_reason(error, path)) from error
        for chunk in chunks:
            tokenizer.check(chunk.recipe, chunk.channels)
        choice = _choice(chunks, chunks[0].recipe.tau)
        with self.lock:
            self._take(path.name, None, None, {"read": time.perf_counter() - start})
            self.choice, self.token_file = choice, self._place(path.stem, ".inlay")
            shutil.copyfile(path, self.token_file)

    # --- masks -------------------------------------------------------------------------------------------------------

    def choose_tau(self, tau: float) -> Choice:
        """The mask at a threshold, from the cached latents alone."""
        with self.lock:
            latents = self._latents()
            return self._choose(latents.tokens(latents.recipe(tau)), tau)

    def choose_keep(self, keep: float) -> Choice:
        """The mask that keeps at most this share of the cells, filled up to it exactly."""
        with self.lock:
            plan = self._latents().solve(Budget(keep=keep, exact=True))
            return self._choose(iter(plan), plan.recipe.tau)

    def _choose(self, chunks: Iterator[Tokens], tau: float) -> Choice:
        self.choice = _choice(tuple(chunks), tau)
        self.token_file = None
        self.results.clear()
        return self.choice

    def _latents(self) -> WholeVideo:
        if self.latents is None:
            why = "a token file is decoded as it is" if self.choice is not None else "there is no clip yet"
            raise UsageError(f"{why}; drop in a video or pick a built-in one to choose masks")
        return self.latents

    @property
    def least_keep(self) -> float:
        """The share of cells that key slots need, below which no keep rate can go."""
        return 0.0 if self.latents is None else self.latents.fixed / self.latents.cells

    # --- reconstruction ----------------------------------------------------------------------------------------------

    def reconstruct(self, tokenizer: Tokenizer, fill: str, advance: Advance) -> Result:
        """Write the token file, read it back and decode it: what is shown is what a download gives."""
        tokenizer.filler.find(fill)
        with self.lock:
            choice, original, name = self.choice, self.original, self.name
            if choice is None:
                raise UsageError("there is no clip yet; drop in a video or pick a built-in one")
            seconds = dict(self.seconds)
            if self.token_file is None:
                self.token_file, seconds["pack"] = self._pack(choice, name)
                self.seconds["pack"] = seconds["pack"]
            token_file = self.token_file
        video, seconds["decode"] = _decode(tokenizer, token_file, fill, advance)
        result = Result(fill=fill, video=video, choice=choice, original=original, seconds=seconds)
        if original is not None:
            advance(0.9, "Measuring")
            result = _measured(result, original)
        with self.lock:
            if self.choice is choice:  # the slider may have moved on meanwhile
                self.results[fill] = result
        return result

    def _pack(self, choice: Choice, name: str) -> tuple[Path, float]:
        start = time.perf_counter()
        path = self._place(Path(name).stem, ".inlay")
        first = choice.chunks[0]
        with TokenWriter(path, info=first.info, recipe=first.recipe, force=True) as writer:
            for chunk in choice.chunks:
                writer.append(chunk)
        return path, time.perf_counter() - start

    def _place(self, stem: str, suffix: str) -> Path:
        """A file of ours, whatever a visitor's was called."""
        plain = "".join(c if (c.isascii() and c.isalnum()) or c in "-_" else "-" for c in stem).strip("-")[:60]
        return self.folder / f"{plain or 'clip'}{suffix}"

    def film_place(self, fill: str) -> Path:
        return self._place(f"{Path(self.name).stem}-{fill}", ".mp4")


def _pieces(video: Video, advance: Advance) -> Iterator[Video]:
    for first in range(0, len(video), CLIP_FRAMES):
        advance(0.2 + 0.75 * first / len(video), "Encoding")
        yield video[first : first + CLIP_FRAMES]


def _choice(chunks: tuple[Tokens, ...], tau: float) -> Choice:
    keep = torch.cat([chunk.mask[slot_of_frame(chunk)] for chunk in chunks])
    return Choice(tau=tau, chunks=chunks, curve=keep_curve(chunks), keep_Thw=keep)


def _decode(tokenizer: Tokenizer, path: Path, fill: str, advance: Advance) -> tuple[Video, float]:
    start = time.perf_counter()
    with TokenReader(path) as reader:
        parts = []
        advance(0.05, "Decoding")
        for video in tokenizer.decode_chunks(reader, fill=fill):
            parts.append(video)
            advance(0.05 + 0.8 * len(parts) / len(reader), "Decoding")
        return join_videos(parts), time.perf_counter() - start


def _measured(result: Result, original: Video) -> Result:
    start = time.perf_counter()
    report = compare(original, result.video, ("psnr", "ssim"), config=MeasureConfig(device="cpu"))
    psnr, ssim = (None if name in report.missing else report[name] for name in ("psnr", "ssim"))
    seconds = result.seconds | {"measure": time.perf_counter() - start}
    return replace(result, seconds=seconds, psnr=psnr, ssim=ssim)
