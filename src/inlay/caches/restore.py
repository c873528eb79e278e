# SPDX-License-Identifier: Apache-2.0
"""A packed cache back into the files it was made of; and whether what would be read back is what it should be."""

from __future__ import annotations

import filecmp
import hashlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inlay.backbones.diffusers import Diffusers
from inlay.caches.holes import CacheError
from inlay.caches.latents import relative_error
from inlay.caches.layout import Loss
from inlay.caches.listing import check_apart
from inlay.caches.reader import PackedCache
from inlay.caches.table import FORMATS
from inlay.codec.quality import frame_errors, frame_psnr
from inlay.errors import InlayError, ShapeError, UsageError
from inlay.files import atomic
from inlay.tokenizer import Tokenizer
from inlay.video.frames import to_frames

DECODED = 4  # clips that are decoded to pixels, where a decoder is at hand

Watcher = Callable[[int, int], None]  # files done, files in all


@dataclass(frozen=True, kw_only=True)
class UnpackResult:
    """The cache that was written."""

    source: str
    out: str
    format: str
    files: int
    others: int
    files_before: int
    bytes: int
    seconds: float

    def record(self) -> dict[str, Any]:
        return dict(vars(self))

    def rows(self) -> list[tuple[str, str]]:
        before = f", {self.files_before:,} of them were there" if self.files_before else ""
        return [
            ("cache", f"{self.out}, {self.format}"),
            ("files", f"{self.files:,} with latents, {self.others:,} others{before}"),
            ("bytes", f"{self.bytes:,}"),
            ("took", f"{self.seconds:.1f} s"),
        ]


def unpack_cache(
    source: str, out: str, *, fill: str = "auto", watch: Watcher = lambda done, total: None
) -> UnpackResult:
    """Write the files of a packed cache; those that are there already are left alone, so that it can be resumed."""
    start, cache, root = time.perf_counter(), PackedCache(source, fill=fill), Path(out)
    check_apart(Path(source), out)
    others = list(cache.other_paths())
    total, before, size = len(cache.files) + len(others), 0, 0
    exact = cache.record.format != "fastvideo"  # a table may be stored in another number of bytes
    for done, path in enumerate([*cache.files, *others]):
        watch(done, total)
        target = root / path
        wanted = cache.files[path].bytes if path in cache.files else (cache.others / path).stat().st_size
        if target.exists():
            if target.stat().st_size != wanted and (exact or path not in cache.files):
                raise UsageError(f"{target} is there already, and is another file; give a folder of its own")
            before += 1
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            with atomic(target) as part:
                if path in cache.files:
                    with part.open("wb") as file:
                        cache.write(path, file)
                else:
                    shutil.copyfile(cache.others / path, part)
        size += target.stat().st_size
    watch(total, total)
    return UnpackResult(
        source=source, out=out, format=cache.record.format, files=len(cache.files), others=len(others),
        files_before=before, bytes=size, seconds=time.perf_counter() - start,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class VerifyResult:
    """What is wrong with a packed cache, and how far its latents are from those of the cache it was made of."""

    place: str
    files: int
    problems: tuple[str, ...]
    against: str | None = None
    loss: Loss = field(default_factory=Loss)
    psnr: tuple[float, ...] = ()  # dB between the decoded latents, before and after, of some clips
    seconds: float = 0.0

    def record(self) -> dict[str, Any]:
        return {
            "place": self.place, "ok": not self.problems, "files": self.files, "problems": list(self.problems),
            "against": self.against, "clips_compared": self.loss.clips,
            "relative_error": self.loss.mean if self.against else None,
            "worst_relative_error": self.loss.worst if self.against else None,
            "decoded_psnr": sum(self.psnr) / len(self.psnr) if self.psnr else None, "clips_decoded": len(self.psnr),
            "seconds": self.seconds,
        }  # fmt: skip

    def rows(self) -> list[tuple[str, str]]:
        rows = [("files", f"{self.files:,} read back, {len(self.problems):,} with problems")]
        if self.against is not None:
            rows += [
                ("rest", "everything but the latents is the same" if not self.problems else "see the problems"),
                ("loss", f"{self.loss.mean:.2%} of the latents' length, {self.loss.worst:.2%} at worst, "
                 f"of {self.loss.clips:,} clips"),
            ]  # fmt: skip
        if self.psnr:
            mean = sum(self.psnr) / len(self.psnr)
            rows.append(("decoded", f"{mean:.2f} dB from the decoded latents of the cache, of {len(self.psnr)} clips"))
        return rows + [("problem", problem) for problem in self.problems]


def verify_cache(
    place: str,
    *,
    against: str | None = None,
    tokenizer: Tokenizer | None = None,
    decoded: int = DECODED,
    watch: Watcher = lambda done, total: None,
) -> VerifyResult:
    """Read back every file of a packed cache.

    Args:
        against: the cache it was made of; what is read back is compared with it.
        tokenizer: of the model that the latents are of; some clips are decoded before and after.
        decoded: how many clips.
    """
    start, cache = time.perf_counter(), PackedCache(place)
    problems: list[str] = []
    checker = Checker(cache, Path(against) if against is not None else None, tokenizer, decoded)
    for done, path in enumerate(cache.files):
        watch(done, len(cache.files))
        try:
            checker.check(path)
        except InlayError as error:
            problems.append(f"{path}: {error}")
    problems += checker.check_others()
    watch(len(cache.files), len(cache.files))
    return VerifyResult(
        place=place, files=len(cache.files), problems=tuple(problems), against=against, loss=checker.loss,
        psnr=tuple(checker.psnr), seconds=time.perf_counter() - start,
    )  # fmt: skip


class Checker:
    """Compares file after file."""

    def __init__(self, cache: PackedCache, source: Path | None, tokenizer: Tokenizer | None, decoded: int) -> None:
        if source is not None and not source.is_dir():
            raise UsageError(f"{source}: no such folder; give the cache that was packed", about="against")
        if tokenizer is not None and source is None:
            raise UsageError("decibels are measured against the cache that was packed; name it", about="against")
        self.cache, self.source, self.tokenizer, self.decoded = cache, source, tokenizer, decoded
        self.form = FORMATS[cache.record.format]
        self.loss, self.psnr = Loss(), list[float]()

    def check(self, path: str) -> None:
        self.cache.check(path)
        if self.source is None:
            return
        original = self.source / path
        if not original.is_file():
            raise CacheError("is gone from the cache")
        with original.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != self.cache.files[path].sha256:
                raise CacheError("has changed in the cache since it was packed")
        opened = self.form.open(original)
        if not opened.same_rest(self.cache.rest(path)):
            raise CacheError("something besides the latents would come back changed")
        for row in range(len(opened.facts)):
            z, back = opened.latents(row), self.cache.latents(path, row)
            if z.shape != back.shape:
                raise CacheError(f"latents of {list(z.shape)} would come back as {list(back.shape)}")
            error = relative_error(z, back.to(z.dtype))
            self.loss += Loss(clips=1, total=error, worst=error)
            if self.tokenizer is not None and len(self.psnr) < self.decoded:
                self.psnr.append(decoded_psnr(self.tokenizer, z, back.to(z.dtype), normalised=self.form.normalised))

    def check_others(self) -> list[str]:
        """Files that are carried along and differ from the cache's own."""
        if self.source is None:
            return []
        problems = []
        for path in self.cache.other_paths():
            original = self.source / path
            if not original.is_file() or not filecmp.cmp(original, self.cache.others / path, shallow=False):
                problems.append(f"{path}: is not what the cache has; has that changed since it was packed?")
        return problems


@torch.inference_mode()
def decoded_psnr(tokenizer: Tokenizer, z_CTHW: Tensor, back_CTHW: Tensor, *, normalised: bool) -> float:
    """dB between the pixels of two latents, mean over frames."""
    channels = tokenizer.spec.channels
    if len(z_CTHW) != channels:
        raise ShapeError(
            f"{tokenizer.spec.name} decodes {channels} channels, the cache has {len(z_CTHW)}; name its own model"
        )
    frames = []
    for one in (z_CTHW, back_CTHW):
        z_BCTHW = one[None].to(tokenizer.device, tokenizer.dtype)
        if not normalised:
            mean, std = tables_of(tokenizer, z_BCTHW)
            z_BCTHW = (z_BCTHW - mean) / std
        frames.append(to_frames(tokenizer.decode_latents(z_BCTHW))[0].cpu())
    return float(frame_psnr(frame_errors(frames[0], frames[1])[0]).mean())


def tables_of(tokenizer: Tokenizer, z_BCTHW: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation that the backbone normalises latents with: none, except where diffusers states them."""
    if isinstance(tokenizer.backbone, Diffusers):
        return tokenizer.backbone.tables(z_BCTHW)
    return z_BCTHW.new_zeros(()), z_BCTHW.new_ones(())
