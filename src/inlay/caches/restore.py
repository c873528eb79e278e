# SPDX-License-Identifier: Apache-2.0
"""A packed cache back into the files it was made of; and whether what would be read back is what it should be."""

from __future__ import annotations

import filecmp
import hashlib
import os
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inlay.backbones.diffusers import Diffusers
from inlay.caches.base import MODELS
from inlay.caches.holes import CacheError, Hole
from inlay.caches.latents import relative_error
from inlay.caches.layout import CACHE, FILES, OTHERS, Loss
from inlay.caches.listing import check_apart
from inlay.caches.reader import PackedCache
from inlay.caches.rest import unpack_rest
from inlay.caches.sums import REMAKE, Checksums, copy_file, load_checksums, opened, shard_checksums
from inlay.caches.table import FORMATS
from inlay.caches.target import alone, is_there, remove_parts
from inlay.codec.quality import frame_errors, frame_psnr
from inlay.errors import InlayError, ShapeError, TokenFileError, UsageError
from inlay.files import atomic, made_folder, writing
from inlay.scale.layout import DATASET
from inlay.scale.sources import readable
from inlay.scale.store import Place, as_text
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
        return vars(self) | {"source": readable(self.source), "out": readable(self.out)}

    def rows(self) -> list[tuple[str, str]]:
        before = f", {self.files_before:,} of them were there" if self.files_before else ""
        return [
            ("cache", f"{readable(self.out)}, {self.format}"),
            ("files", f"{self.files:,} with latents, {self.others:,} others{before}"),
            ("bytes", f"{self.bytes:,}"),
            ("took", f"{self.seconds:.1f} s"),
        ]


def unpack_cache(
    source: Place, out: Place, *, fill: str = "auto", watch: Watcher = lambda done, total: None
) -> UnpackResult:
    """Write the files of a packed cache; those that are there already are left alone, so that it can be resumed."""
    source, out = as_text("source", source), as_text("out", out)
    start, root = time.perf_counter(), Path(out)
    check_apart(Path(source), out)
    unpacker = Unpacker(PackedCache(source, fill=fill))
    paths, before, size = unpacker.paths, 0, 0
    with made_folder(root), alone(root):
        remove_parts(root / path for path in paths)
        for done, path in enumerate(paths):
            watch(done, len(paths))
            target = root / path
            if is_there(target, unpacker.size(path)):
                before += 1
            else:
                unpacker.write(path, target)
            size += target.stat().st_size
    watch(len(paths), len(paths))
    return UnpackResult(
        source=source, out=out, format=unpacker.cache.record.format, files=len(unpacker.cache.files),
        others=len(unpacker.others), files_before=before, bytes=size, seconds=time.perf_counter() - start,
    )  # fmt: skip


class Unpacker:
    """Writes files of a packed cache, each once what it is made of has the checksum that it was written with."""

    def __init__(self, cache: PackedCache) -> None:
        self.cache = cache
        self.sums = load_checksums(cache.root, needed=cache.record.checksums)
        for name in (CACHE, FILES, DATASET):
            if name in self.sums:
                self.sums[name].check(cache.root)
        self.shards = shard_checksums(cache.root, cache.files.values())  # those that were not checked yet
        self.others = all_others(cache, self.sums)
        self.exact = cache.record.format != "fastvideo"  # a table may be stored in another number of bytes

    @property
    def paths(self) -> list[str]:
        return [*self.cache.files, *self.others]

    def size(self, path: str) -> int | None:
        """Of a file once it is written; None where that is not known before."""
        if path in self.cache.files:
            return self.cache.files[path].bytes if self.exact else None
        carried = self.sums.get(f"{OTHERS}/{path}")
        return carried.bytes if carried else (self.cache.others / path).stat().st_size

    def write(self, path: str, target: Path) -> None:
        """Whole or not at all."""
        packed = self.cache.files.get(path)
        if packed and (shard := self.shards.pop(packed.shard, None)):
            shard.check(self.cache.root)
        with writing(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
        if packed is None:
            self._copy(path, target)
            return
        with atomic(target) as part, part.open("wb") as file:
            self.cache.write(path, file)
            if (size := file.tell()) != packed.bytes and self.exact:
                raise CacheError(f"{path}: would come back as {size:,} bytes, and had {packed.bytes:,}; {REMAKE}")

    def _copy(self, path: str, target: Path) -> None:
        name = f"{OTHERS}/{path}"
        with opened(self.cache.others / path, name, REMAKE) as source, atomic(target) as part:
            sha256 = copy_file(source, part)
            if name in self.sums:
                self.sums[name].compare(sha256)


def all_others(cache: PackedCache, sums: Checksums) -> list[str]:
    """The files that are carried along, below the cache: those that should be there as well as those that are."""
    listed = (name.removeprefix(f"{OTHERS}/") for name in sums if name.startswith(f"{OTHERS}/"))
    return sorted({*cache.other_paths(), *listed})


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
            "place": readable(self.place), "ok": not self.problems, "files": self.files,
            "problems": list(map(readable, self.problems)),
            "against": None if self.against is None else readable(self.against), "clips_compared": self.loss.clips,
            "relative_error": self.loss.mean if self.against else None,
            "worst_relative_error": self.loss.worst if self.against else None,
            "decoded_psnr": sum(self.psnr) / len(self.psnr) if self.psnr else None, "clips_decoded": len(self.psnr),
            "seconds": self.seconds,
        }  # fmt: skip

    def rows(self) -> list[tuple[str, str]]:
        count = len(self.problems)
        found = f"{count:,} {'problem' if count == 1 else 'problems'}" if count else "no problems"
        rows = [("files", f"{self.files:,} read back, {found}")]
        if self.against is not None:
            rows += [
                ("rest", "everything but the latents is the same" if not self.problems else "see the problems"),
                ("loss", f"{self.loss.mean:.2%} of the latents' length, {self.loss.worst:.2%} at worst, "
                 f"of {self.loss.clips:,} clips"),
            ]  # fmt: skip
        if self.psnr:
            mean = sum(self.psnr) / len(self.psnr)
            rows.append(("decoded", f"{mean:.2f} dB from the decoded latents of the cache, of {len(self.psnr)} clips"))
        return rows + [("problem", readable(problem)) for problem in self.problems]


def verify_cache(
    place: Place,
    *,
    against: Place | None = None,
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
    start, cache = time.perf_counter(), PackedCache(Path(place))
    problems: list[str] = []
    damaged: set[str] = set()  # shards
    checker = Checker(cache, Path(against) if against is not None else None, tokenizer, decoded)
    for done, path in enumerate(cache.files):
        watch(done, len(cache.files))
        try:
            cache.check(path)
        except InlayError as error:
            problems.append(f"{path}: {error}")
            damaged.add(cache.files[path].shard)
            continue
        try:
            checker.check(path)
        except InlayError as error:
            problems.append(f"{path}: {error}")
    problems += checker.check_whole(damaged)
    watch(len(cache.files), len(cache.files))
    return VerifyResult(
        place=os.fspath(place), files=len(cache.files), problems=tuple(problems),
        against=None if against is None else os.fspath(against), loss=checker.loss,
        psnr=tuple(checker.psnr), seconds=time.perf_counter() - start,
    )  # fmt: skip


class Checker:
    """Compares file after file."""

    def __init__(self, cache: PackedCache, source: Path | None, tokenizer: Tokenizer | None, decoded: int) -> None:
        if source is not None and not source.is_dir():
            raise UsageError(f"{source}: no such folder; give the cache that was packed", about="against")
        if tokenizer is not None and source is None:
            raise UsageError("decibels are measured against the cache that was packed; name it", about="against")
        channels = MODELS[cache.record.model].channels
        if tokenizer is not None and tokenizer.spec.channels != channels:
            raise ShapeError(
                f"{tokenizer.spec.name} decodes {tokenizer.spec.channels} channels, the cache has {channels}; name its "
                "own model"
            )
        self.cache, self.source, self.tokenizer, self.decoded = cache, source, tokenizer, decoded
        self.form = FORMATS[cache.record.format]
        self.loss, self.psnr = Loss(), list[float]()

    def check(self, path: str) -> None:
        check_kept(self.cache.rest(path))
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

    def check_whole(self, damaged: set[str]) -> list[str]:
        """What is wrong with the files that are carried along, the descriptions and the shards as a whole.

        Args:
            damaged: shards of which something is known to be wrong already.
        """
        problems: list[str] = []
        sums, shards = Checksums(), Checksums()
        try:
            sums = load_checksums(self.cache.root, needed=self.cache.record.checksums)
        except TokenFileError as error:
            problems.append(str(error))
        wrong = self._wrong(sums)
        if DATASET not in wrong:
            try:
                shards = shard_checksums(self.cache.root, self.cache.files.values())
            except TokenFileError as error:
                problems.append(str(error))
        wrong |= self._wrong({name: one for name, one in shards.items() if name not in damaged})
        return [*problems, *wrong.values(), *self._changed(wrong, sums)]

    def _wrong(self, sums: Checksums) -> dict[str, str]:
        """Which files are not what was written, and what is wrong with them."""
        found = {}
        for name, one in sums.items():
            try:
                one.check(self.cache.root)
            except TokenFileError as error:
                found[name] = str(error)
        return found

    def _changed(self, wrong: Collection[str], sums: Checksums) -> Iterator[str]:
        """Files that are carried along, as they were, and differ from the cache's own."""
        if self.source is None:
            return
        for path in all_others(self.cache, sums):
            if f"{OTHERS}/{path}" in wrong:
                continue
            original = self.source / path
            if not original.is_file() or not filecmp.cmp(original, self.cache.others / path, shallow=False):
                yield f"{path}: is not what the cache has; has that changed since it was packed?"


def check_kept(member: bytes) -> None:
    """Refuse a file whose packing lost what lies between the numbers of its latents."""
    head, _ = unpack_rest(member)
    if head["kind"] == "hole" and (hole := Hole.parse(head["hole"])).gaps > hole.between:
        raise CacheError(
            "has latents that are a view of a larger tensor, the rest of which an earlier release left out: it comes "
            "back as zeros; pack the cache again"
        )


@torch.inference_mode()
def decoded_psnr(tokenizer: Tokenizer, z_CTHW: Tensor, back_CTHW: Tensor, *, normalised: bool) -> float:
    """dB between the pixels of two latents, mean over frames."""
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
