# SPDX-License-Identifier: Apache-2.0
"""One visitor's clip: latents computed once, masks as often as wanted, reconstructions on demand, in two settings.

Legend: T frames, S slots, h w cells.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from inlay.codec import KeepCurve, WholeVideo, keep_curve, slot_of_frame
from inlay.container import TokenReader, TokenWriter
from inlay.container.tokens import Tokens
from inlay.errors import InlayError, UsageError, pick
from inlay.masking import Budget
from inlay.measure import MeasureConfig, compare
from inlay.tokenizer import Tokenizer
from inlay.types import Recipe
from inlay.video.frames import Video, join_videos
from inlay.web.clips import EncodedClip, pieces
from inlay.web.limits import Limits
from inlay.web.sheets import Sheets, write_sheets
from inlay.web.uploads import check_token_file, plain_reason, read_clip

Advance = Callable[[float, str], None]  # share done, what is being done
SETTINGS = ("A", "B")  # that can be compared
LONGEST_STEM = 60, 180  # characters, and bytes: file systems count these


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """Which cells are kept at one tau."""

    tau: float
    keep: float | None  # the share that was asked for, where tau was found for it
    chunks: tuple[Tokens, ...]
    curve: KeepCurve
    keep_Shw: Tensor
    score_Shw: Tensor | None  # how far each cell was from its reference; tokens alone do not tell
    slot_T: Tensor  # the slot that each frame belongs to

    @property
    def frames(self) -> int:
        return len(self.slot_T)

    @property
    def mode(self) -> str:
        """What a chunk knows of the one before."""
        return self.chunks[0].recipe.streaming


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """What came back with one fill; quality is missing where there is no original. Its pictures wait on disk."""

    fill: str
    choice: Choice
    token_file: Path
    sheets: Sheets
    seconds: dict[str, float]
    psnr: float | None = None
    ssim: float | None = None


@dataclass(kw_only=True, eq=False)
class Setting:
    """One way to keep cells and to fill in the others."""

    choice: Choice
    fill: str
    step: str | None = None  # how coarsely kept cells are rounded; None: as the model's profile has it
    token_file: Path | None = None
    results: dict[str, Result] = field(default_factory=dict)  # by fill

    @property
    def result(self) -> Result | None:
        return self.results.get(self.fill)


@dataclass(kw_only=True, eq=False)
class Session:
    """All that one visitor has; nothing of it is shared but the pictures of built-in clips."""

    folder: Path
    lock: threading.RLock = field(default_factory=threading.RLock)  # a slider does not wait for its own last answer
    name: str = ""
    version: int = 0  # of the clip
    original: Video | None = None
    sheets: Sheets | None = None  # of the original
    reduced_to: int | None = None  # short side of a video that was larger
    latents: WholeVideo | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Setting] = field(default_factory=dict)
    uploads: dict[Path, int] = field(default_factory=dict)  # what the visitor sent -> when that came to lie there
    closed: bool = False  # the visitor has gone, perhaps while something was being made for them
    _made: int = 0  # folders of pictures

    def close(self) -> None:
        """Let everything go; once more where work that was under way has left something since."""
        with self.lock:
            self.closed = True
            self._take("", {})
        shutil.rmtree(self.folder, ignore_errors=True)

    def _take(
        self, name: str, seconds: dict[str, float], *, original: Video | None = None, sheets: Sheets | None = None,
        latents: WholeVideo | None = None, reduced_to: int | None = None,
    ) -> None:  # fmt: skip
        """Put a clip in the place of the one before."""
        if self.latents is not None:
            self.latents.close()
        self.name, self.seconds, self.version = name, seconds, self.version + 1
        before, self.sheets = self.sheets, sheets
        self.original, self.latents, self.reduced_to = original, latents, reduced_to
        for setting in self.settings.values():
            self._discard(setting)
        self.settings.clear()
        self._remove(before)

    @property
    def stem(self) -> str:
        """The name of the clip in files of ours, whatever a visitor's was called, in letters of any language."""
        name = unicodedata.normalize("NFC", Path(self.name).stem)
        plain = "".join(c if c == "_" or unicodedata.category(c)[0] in "LMN" else "-" for c in name)
        most, most_bytes = LONGEST_STEM
        short = re.sub("-+", "-", plain).strip("-")[:most].encode()[:most_bytes].decode(errors="ignore")
        return short or "clip"

    def setting(self, which: str) -> Setting:
        """B begins as A is."""
        pick("setting", which, dict.fromkeys(SETTINGS))
        with self.lock:
            if not self.settings:
                raise UsageError("there is no clip yet; drop in a video or pick a built-in one")
            first = self.settings[SETTINGS[0]]
            return self.settings.setdefault(which, Setting(choice=first.choice, fill=first.fill, step=first.step))

    # --- a clip comes in ---------------------------------------------------------------------------------------------

    def load(
        self, tokenizer: Tokenizer, video: Video, name: str, read_seconds: float, advance: Advance, *,
        reduced_to: int | None = None,
    ) -> None:  # fmt: skip
        """Encode once; from here on only masks are computed."""
        start = time.perf_counter()
        sheets = write_sheets(video, self._pictures())
        try:
            latents = WholeVideo.of(tokenizer, pieces(video, advance))
        except BaseException:
            self._remove(sheets)
            raise
        seconds = {"read": read_seconds, "encode": time.perf_counter() - start}
        waiting = _on_disk(video, sheets.paths[0].parent / "frames")
        with self.lock:
            self._take(name, seconds, original=waiting, sheets=sheets, latents=latents, reduced_to=reduced_to)
            self.choose_tau(self.usual_tau)

    def load_built_in(self, name: str, clip: EncodedClip) -> None:
        seconds = {"encode": clip.encode_seconds}
        with self.lock:
            self._take(name, seconds, original=clip.video, sheets=clip.sheets, latents=clip.latents)
            self.choose_tau(self.usual_tau)

    def load_file(self, tokenizer: Tokenizer, path: Path, limits: Limits, advance: Advance) -> None:
        start = time.perf_counter()
        advance(0.0, "Reading the video")
        clip = read_clip(path, limits, lambda done, of: advance(0.2 * done / max(of or done, 1), "Reading the video"))
        side = limits.side if clip.reduced else None
        self.load(tokenizer, clip.video, path.name, time.perf_counter() - start, advance, reduced_to=side)

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
            self._take(path.name, {"read": time.perf_counter() - start})
            file = self._place("A", "", ".inlay")
            shutil.copyfile(path, file)
            self.settings["A"] = Setting(choice=choice, fill=tokenizer.filler.default, token_file=file)

    def begin_anew(self) -> None:
        """The clip that is there, as it came in."""
        with self.lock:
            self.version += 1
            if self.latents is None:  # the mask of a token file is what it is
                return
            for setting in self.settings.values():
                self._discard(setting)
            self.settings.clear()
            self.choose_tau(self.usual_tau)

    # --- masks -------------------------------------------------------------------------------------------------------

    def choose_tau(self, tau: float, which: str = "A") -> Choice:
        """The mask at a threshold, from the cached latents alone."""
        with self.lock:
            latents = self._latents().settled(Budget(tau=tau))
            return self._choose(latents, latents.tokens(self._recipe(latents, tau, which)), tau, None, which)

    def choose_keep(self, keep: float, which: str = "A") -> Choice:
        """The mask that keeps at most this share of the cells, filled up to it exactly."""
        with self.lock:
            plan = self._latents().solve(Budget(keep=keep, exact=True))
            plan = replace(plan, recipe=self._recipe(plan.video, plan.recipe.tau, which))
            return self._choose(plan.video, plan, plan.recipe.tau, keep, which)

    def choose_step(self, step: str | None, which: str = "A") -> Choice:
        """The same mask, its cells rounded otherwise."""
        with self.lock:
            latents, setting = self._latents(), self.setting(which)
            choice = setting.choice
            latents.parts.recipe(replace(latents.config, step=step), choice.tau)  # refused here if it cannot be
            setting.step = step
            return self.choose_tau(choice.tau, which) if choice.keep is None else self.choose_keep(choice.keep, which)

    def _recipe(self, latents: WholeVideo, tau: float, which: str) -> Recipe:
        step = self.setting(which).step if self.settings else None
        return latents.parts.recipe(replace(latents.config, step=step), tau)

    def _choose(
        self, latents: WholeVideo, chunks: Iterable[Tokens], tau: float, keep: float | None, which: str
    ) -> Choice:
        tokens = tuple(chunks)
        scores = [found.score_BTHW for _, found in latents.selections(latents.recipe(tau), scored=True)]
        score_Shw = torch.cat([score[0] for score in scores if score is not None])
        choice = _choice(tokens, tau, keep, score_Shw)
        fill, step = latents.parts.filler.default, None
        if self.settings:
            before = self.setting(which)
            fill, step = before.fill, before.step
            self._discard(before)
        self.settings[which] = Setting(choice=choice, fill=fill, step=step)
        return choice

    def _latents(self, wish: str = "choose masks") -> WholeVideo:
        if self.latents is None:
            why = "a token file is decoded as it is" if self.settings else "there is no clip yet"
            raise UsageError(f"{why}; drop in a video or pick a built-in one to {wish}")
        return self.latents

    @property
    def usual_tau(self) -> float:
        return float(f"{self._latents().start:.4g}")  # as a person would write it

    @property
    def least_keep(self) -> float:
        """The share of cells that key slots need, below which no keep rate can go."""
        return 0.0 if self.latents is None else self.latents.settled(Budget(keep=1.0)).fixed / self.latents.cells

    def slot_latents(self, slot: int) -> Tensor:
        """[C, h, w] of one slot."""
        with self.lock:
            for chunk in self._latents("see latents").spool:
                if slot < chunk.span.slots:
                    return chunk.z_BCTHW[0, :, max(slot, 0)]
                slot -= chunk.span.slots
        raise UsageError("the clip has no such slot")

    # --- reconstruction ----------------------------------------------------------------------------------------------

    def reconstruct(self, tokenizer: Tokenizer, fill: str, advance: Advance, which: str = "A") -> tuple[Result, Video]:
        """Write the token file, read it back and decode it: what is shown is what a download gives."""
        tokenizer.filler.find(fill)
        with self.lock:
            setting, original = self.setting(which), self.original
            setting.fill = fill
            seconds = dict(self.seconds)
            if setting.token_file is None:
                start = time.perf_counter()
                setting.token_file = self._pack(setting.choice, which)
                self.seconds["pack"] = seconds["pack"] = time.perf_counter() - start
            token_file = setting.token_file
        video, seconds["decode"] = _decode(tokenizer, token_file, fill, advance)
        advance(0.88, "Measuring")
        psnr, ssim = (None, None) if original is None else _quality(original, video, seconds)
        result = Result(
            fill=fill, choice=setting.choice, token_file=token_file, sheets=write_sheets(video, self._pictures()),
            seconds=seconds, psnr=psnr, ssim=ssim,
        )  # fmt: skip
        with self.lock:
            before, setting.results[fill] = setting.results.get(fill), result
            self._remove(before.sheets if before is not None else None)
            if self.settings.get(which) is not setting:  # a slider has moved meanwhile
                self._discard(setting)
        return result, video

    def _pack(self, choice: Choice, which: str) -> Path:
        path, first = self._place(which, "", ".inlay"), choice.chunks[0]
        with TokenWriter(path, info=first.info, recipe=first.recipe, force=True) as writer:
            for chunk in choice.chunks:
                writer.append(chunk)
        return path

    def _place(self, which: str, ending: str, suffix: str) -> Path:
        folder = self.folder / pick("setting", which, {name: name for name in SETTINGS})
        folder.mkdir(exist_ok=True)
        return folder / f"{self.stem}{ending}{suffix}"

    def _pictures(self) -> Path:
        """A folder for pictures that is not there yet: a browser keeps what it has seen under a name."""
        with self.lock:
            self._made += 1
            return self.folder / f"pictures{self._made}"

    def _discard(self, setting: Setting) -> None:
        for result in setting.results.values():
            self._remove(result.sheets)

    def _remove(self, sheets: Sheets | None) -> None:
        """Pictures that nobody will ask for any more; those of built-in clips are everybody's."""
        if sheets is not None and sheets.paths[0].is_relative_to(self.folder):
            shutil.rmtree(sheets.paths[0].parent, ignore_errors=True)

    def film_place(self, which: str, fill: str) -> Path:
        return self._place(which, f"-{fill}", ".mp4")


def _on_disk(video: Video, path: Path) -> Video:
    """The same frames, mapped from a file: those of many visitors need not fit into memory together."""
    path.write_bytes(video.frames.numpy().tobytes())
    frames = torch.from_file(str(path), shared=False, size=video.frames.numel(), dtype=torch.uint8)
    return replace(video, frames=frames.view(video.frames.shape))


def _choice(
    chunks: tuple[Tokens, ...], tau: float, keep: float | None = None, score_Shw: Tensor | None = None
) -> Choice:
    slots, first = [], 0
    for chunk in chunks:
        slots.append(slot_of_frame(chunk) + first)
        first += len(chunk.mask)
    return Choice(
        tau=tau, keep=keep, chunks=chunks, curve=keep_curve(chunks), keep_Shw=torch.cat([c.mask for c in chunks]),
        score_Shw=score_Shw, slot_T=torch.cat(slots),
    )  # fmt: skip


def _decode(tokenizer: Tokenizer, path: Path, fill: str, advance: Advance) -> tuple[Video, float]:
    start = time.perf_counter()
    with TokenReader(path) as reader:
        parts = []
        advance(0.05, "Decoding")
        for video in tokenizer.decode_chunks(reader, fill=fill):
            parts.append(video)
            advance(0.05 + 0.8 * len(parts) / len(reader), "Decoding")
        return join_videos(parts), time.perf_counter() - start


def _quality(original: Video, video: Video, seconds: dict[str, float]) -> tuple[float | None, float | None]:
    start = time.perf_counter()
    report = compare(original, video, ("psnr", "ssim"), config=MeasureConfig(device="cpu"))
    seconds["measure"] = time.perf_counter() - start
    psnr, ssim = (None if name in report.missing else report[name] for name in ("psnr", "ssim"))
    return psnr, ssim
