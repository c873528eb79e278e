# SPDX-License-Identifier: Apache-2.0
"""One shard of a packed cache: token files of clips, and the rest of their files, written whole or not at all."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from inlay.caches.base import ClipFacts
from inlay.caches.holes import DTYPES, CacheError
from inlay.caches.latents import LatentPacker, LatentStatistics, relative_error
from inlay.caches.layout import CacheShard, Loss, PackedFile
from inlay.caches.listing import CacheItem
from inlay.caches.table import FORMATS
from inlay.codec import LatentDecoder
from inlay.container import as_stored, to_bytes
from inlay.container.tokens import Tokens
from inlay.errors import InlayError, TokenFileError
from inlay.fill import Filler
from inlay.masking import Budget
from inlay.scale.layout import TAR, VideoRecord, dump, shard_name, shard_record_name, video_key
from inlay.scale.shards import add_member, add_video, new_tar
from inlay.scale.store import Store, open_store

SAMPLED = 16  # one clip of so many is decoded again to know the loss, where not all of them are


@dataclass(frozen=True, kw_only=True)
class PackTask:
    """What all shards of a job share."""

    source: str
    out: str
    format: str
    statistics: LatentStatistics
    budget: Budget
    criterion: str
    reference: str
    precision: str
    fill: str

    def packer(self) -> LatentPacker:
        return LatentPacker(
            self.statistics, budget=self.budget, criterion=self.criterion, reference=self.reference,
            precision=self.precision, fill=self.fill,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FileShard:
    """A unit of work."""

    number: int
    first: int  # place of its first file in the cache
    items: tuple[CacheItem, ...]


def load_shard(store: Store, number: int) -> CacheShard | None:
    """The record of a shard that is whole; None where it is still to be made."""
    try:
        text = store.read_text(shard_record_name(number))
        if text is None:
            return None
        record = CacheShard.parse(text)
    except (ValueError, KeyError, TypeError, RecursionError, TokenFileError):
        return None
    return record if record.shard is None or store.size(record.shard) == record.bytes else None


def make_shard(
    task: PackTask, shard: FileShard, progress: Callable[[int, int], None] = lambda n, b: None
) -> CacheShard:
    """Pack the files of a shard. What is wrong with one of them ends in `refused`."""
    store, writer = open_store(task.out), ShardWriter(task)
    name = shard_name(shard.number, TAR)
    with store.written(name) as part:
        with part.open("wb") as file, new_tar(file) as tar:
            for place, item in enumerate(shard.items):
                writer.add(tar, shard.first + place, item, name)
                progress(1, item.size_bytes)
        with part.open("rb") as whole:
            sha256 = hashlib.file_digest(whole, "sha256").hexdigest()
        size = part.stat().st_size
    record = CacheShard(
        number=shard.number, shard=name if writer.files else None, bytes=size if writer.files else 0, sha256=sha256,
        latent_bytes=writer.latent_bytes, videos=tuple(writer.videos), files=tuple(writer.files),
        refused=tuple(writer.refused), loss=writer.loss,
    )  # fmt: skip
    if not writer.files:
        store.remove(name)
    store.write_text(shard_record_name(shard.number), dump(record.record()))
    return record


@dataclass(frozen=True, kw_only=True)
class PackedParts:
    """What becomes of one file, before it is written."""

    clips: list[tuple[VideoRecord, bytes]]  # and their token files
    rest: bytes
    sha256: str
    latent_bytes: int
    loss: Loss


class ShardWriter:
    """Adds one file of the cache after the other to a tar."""

    def __init__(self, task: PackTask) -> None:
        self.task, self.form = task, FORMATS[task.format]
        self.packer = task.packer()
        self.decoder = LatentDecoder(Filler(default=task.fill))
        self.videos: list[VideoRecord] = []
        self.files: list[PackedFile] = []
        self.refused: list[dict[str, str]] = []
        self.latent_bytes, self.loss = 0, Loss()

    def add(self, tar: tarfile.TarFile, number: int, item: CacheItem, shard: str) -> None:
        """Pack a file and write it; one that cannot be packed is refused. What is wrong with the disk is raised."""
        try:
            parts = self._packed(number, item)
        except (InlayError, OSError) as error:
            reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            self.refused.append({"path": item.path, "reason": reason})
            return
        clips: list[tuple[int, int]] = []
        for record, data in parts.clips:
            self.videos.append(add_video(tar, replace(record, shard=shard), io.BytesIO(data)))
            clips.append((self.videos[-1].offset, len(data)))
        offset = add_member(tar, f"{video_key(number)}.rest", io.BytesIO(parts.rest))
        self.latent_bytes += parts.latent_bytes
        self.loss += parts.loss
        self.files.append(
            PackedFile(
                path=item.path, bytes=item.size_bytes, sha256=parts.sha256, shard=shard, rest_offset=offset,
                rest_bytes=len(parts.rest), clips=tuple(clips),
            )
        )  # fmt: skip

    def _packed(self, number: int, item: CacheItem) -> PackedParts:
        path = Path(self.task.source) / item.path
        found = path.stat()
        if (found.st_size, str(found.st_mtime_ns)) != (item.size_bytes, item.version):
            raise CacheError("has changed since the job began")
        file = self.form.open(path)
        sha256, single = file.sha256(path), len(file.facts) == 1
        clips, size, loss = [], 0, Loss()
        for row, facts in enumerate(file.facts):
            z_CTHW = file.latents(row)
            tokens = self.packer.tokens(z_CTHW, facts)
            data = to_bytes(tokens)
            if (number + row) % SAMPLED == 0:
                error = relative_error(z_CTHW, self.decoder.push(as_stored(tokens))[0])
                loss += Loss(clips=1, total=error, worst=error)
            size += z_CTHW.numel() * DTYPES[facts.dtype].itemsize
            key = video_key(number) if single else f"{video_key(number)}-{row:05d}"
            source = item.path if single else f"{item.path}#{row}"
            clips.append((clip_record(key, source, sha256, tokens, data, facts), data))
        return PackedParts(clips=clips, rest=file.rest(), sha256=sha256, latent_bytes=size, loss=loss)


def clip_record(key: str, source: str, sha256: str, tokens: Tokens, data: bytes, facts: ClipFacts) -> VideoRecord:
    """The manifest's line on a clip."""
    info = tokens.info
    return VideoRecord(
        key=key, source=source, sha256=sha256, frames=info.frames,
        width=info.width, height=info.height, fps=f"{info.fps.numerator}/{info.fps.denominator}", tokens=len(tokens),
        cells=tokens.cells, keep_rate=tokens.keep_rate, bytes=len(data), caption=facts.caption,
    )  # fmt: skip
