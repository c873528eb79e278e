# SPDX-License-Identifier: Apache-2.0
"""A trainer's cache to shards of tokens and back; called again, both go on where they were interrupted."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from torch import Tensor

import inlay
from inlay.caches.holes import CacheError
from inlay.caches.latents import MOST_CALIBRATED, LatentStatistics, all_finite, statistics_of
from inlay.caches.layout import CACHE, CHECKSUMS, FILES, OTHERS, PLAN, CacheRecord, CacheShard, Loss, OtherVersionError
from inlay.caches.listing import CacheItem, CacheListing, check_apart, list_cache
from inlay.caches.shards import FileShard, PackTask, load_shard, make_shard
from inlay.caches.sums import Checksum, Checksums, copy_file, dump_checksums, parse_checksums
from inlay.caches.target import PARTS, is_part
from inlay.errors import ConfigError, OutputError, TokenFileError, UsageError, check_kind, check_number, pick
from inlay.fill import FILLS
from inlay.masking import CRITERIA, KINDS, REFERENCES, Budget
from inlay.scale.layout import (
    DATASET,
    LAYOUT_VERSION,
    MANIFEST,
    QUARANTINE,
    REPORT,
    REPORT_PAGE,
    TAR,
    DatasetRecord,
    dump,
    known,
)
from inlay.scale.report import quarantine_table
from inlay.scale.sources import readable
from inlay.scale.store import LOCK, Place, Store, as_text, open_store
from inlay.types import PRECISIONS

LOSS = 0.1  # of the latents' length, where nothing else is asked for
MOST_FILES, MOST_BYTES = 256, 1 << 28  # in a shard: what is lost when a job is killed


@dataclass(frozen=True, kw_only=True)
class PackConfig:
    """What a packed cache is to be: all of it stays the same when a job is resumed."""

    format: str = field(default="auto", metadata={"help": "of the cache"})
    loss: float | None = field(default=None, metadata={"help": "how far latents may come back from what they were"})
    tau: float | None = field(default=None, metadata={"help": "threshold, in deviations of a channel"})
    keep: float | None = field(default=None, metadata={"help": "share of the cells of each clip"})
    tokens: int | None = field(default=None, metadata={"help": "number of tokens of each clip"})
    bits: float | None = field(default=None, metadata={"help": "bits a pixel of each clip"})
    exact: bool = field(default=False, metadata={"help": "with keep: exactly that share"})
    criterion: str = field(default="latent-l1", metadata={"help": "distance"})
    reference: str = field(default="last-kept", metadata={"help": "what a cell is compared with"})
    precision: str = field(default="q8-quick", metadata={"help": "how kept cells are stored"})
    fill: str = field(default="hold", metadata={"help": "how dropped cells come back"})
    shard_files: int = field(default=0, metadata={"help": "files in a shard at most; 0: by how many there are"})

    def __post_init__(self) -> None:
        pick("criterion", self.criterion, CRITERIA)
        if self.criterion == "pixel-l1":
            raise ConfigError("a cache has no pixels to compare; choose another criterion", about="criterion")
        pick("reference", self.reference, REFERENCES)
        pick("precision", self.precision, dict.fromkeys(PRECISIONS))
        pick("fill", self.fill, FILLS)
        if self.loss is not None:
            check_number("loss", self.loss, "a share of the latents' length, between 0 and 1", lambda x: 0 < x < 1)
        if self.loss is not None and any(getattr(self, kind, None) is not None for kind in KINDS):
            raise ConfigError("loss chooses tau by itself; give it alone", about=("loss", "tau", "keep"))
        Budget(**known(Budget, vars(self)))
        wanted = "a number of files, 0 for the default"
        check_number("shard_files", self.shard_files, wanted, lambda n: n >= 0, whole=True)

    def budget(self, statistics: LatentStatistics) -> Budget:
        """What each clip may cost; where nothing else is asked for, one tau for all at which the loss is small."""
        given = Budget(**known(Budget, vars(self)))
        if given.kind != "tau" or given.tau is not None:
            return given
        return Budget(tau=statistics.tau_for(LOSS if self.loss is None else self.loss))


@dataclass(frozen=True, kw_only=True, repr=False)
class PackResult:
    """The packed cache, and the run that finished it."""

    source: str
    out: str
    format: str
    model: str
    dataset: DatasetRecord
    statistics: LatentStatistics
    files: int
    others: int  # files carried along
    source_bytes: int  # of the whole cache
    packed_bytes: int  # of OUT: shards, and what is carried along
    latent_bytes: int  # before
    loss: Loss
    notes: tuple[str, ...]
    files_before: int  # packed by earlier runs
    bytes_now: int  # of latents, packed by this run
    seconds: float

    def __repr__(self) -> str:
        d = self.dataset
        sizes = f"latents {megabytes(self.latent_bytes)} to {megabytes(d.bytes)}"
        refused = f", {d.quarantined:,} in quarantine" if d.quarantined else ""
        made = f"{self.out}: {self.files:,} files, {self.format} of {self.model}, {d.keep_rate:.1%} of the cells kept"
        return f"PackResult({made}, {sizes}, loss {self.loss.mean:.2%}{refused}; {self.seconds:.1f} s)"

    def record(self) -> dict[str, Any]:
        """What `--json` prints."""
        d = self.dataset
        return {
            "source": readable(self.source), "out": readable(self.out),
            **{name: getattr(self, name) for name in (
                "format", "model", "files", "others", "source_bytes", "packed_bytes", "latent_bytes", "files_before",
                "seconds")},
            "clips": d.videos, "quarantined": d.quarantined, "shards": len(d.shards), "tau": d.recipe["tau"],
            "keep_rate": d.keep_rate, "token_bytes": d.bytes, "ratio": self.source_bytes / max(self.packed_bytes, 1),
            "latent_ratio": self.latent_bytes / max(d.bytes, 1), "relative_error": self.loss.mean,
            "worst_relative_error": self.loss.worst, "clips_compared": self.loss.clips,
            "mb_per_second": self.bytes_now / 1e6 / self.seconds if self.seconds else 0.0, "notes": list(self.notes),
        }  # fmt: skip

    def rows(self) -> list[tuple[str, str]]:
        """The same for a person."""
        d, r = self.dataset, self.record()
        speed = f"{r['mb_per_second']:.0f} MB of latents a second" if self.bytes_now else "nothing was left to pack"
        rows = [
            ("packed", f"{readable(self.out)}, {len(d.shards):,} shards, {self.format} of {self.model}"),
            ("files", f"{self.files:,} with latents, {self.others:,} carried along, {d.quarantined:,} in quarantine"),
            ("kept", f"{d.keep_rate:.1%}: {d.tokens:,} tokens of {d.cells:,} cells, mode clips"),
            ("latents", f"{megabytes(self.latent_bytes)} to {megabytes(d.bytes)}, {r['latent_ratio']:.1f} times less"),
            ("cache", f"{megabytes(self.source_bytes)} to {megabytes(self.packed_bytes)}, {r['ratio']:.1f} times less"),
            ("loss", f"{self.loss.mean:.2%} of the latents' length, {self.loss.worst:.2%} at worst, "
             f"of {self.loss.clips:,} clips"),
            ("took", f"{self.seconds:.1f} s, {speed}"),
        ]  # fmt: skip
        if self.files_before:
            rows.append(("before", f"{self.files_before:,} files were there from earlier runs"))
        rows += [("note", note) for note in self.notes]
        if d.quarantined:
            rows.append(
                ("see", f"{readable(self.out)}/{QUARANTINE} for the reasons; these files are carried along as they are")
            )
        return rows


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB"


Watcher = Callable[[int, int, int], None]  # files done, files in all, bytes done


def pack_cache(
    source: Place,
    out: Place,
    config: PackConfig | None = None,
    *,
    workers: int = 1,
    watch: Watcher = lambda done, total, size: None,
) -> PackResult:
    """Pack a cache into `out`; begun before, it goes on, and finished before, it does nothing."""
    source, out = as_text("source", source), as_text("out", out)
    config, start = config or PackConfig(), time.perf_counter()
    check_kind(config, PackConfig, "what a packed cache is to be is said by a PackConfig")
    wanted = "a number of processes, 0 for as many as there are cores"
    check_number("workers", workers, wanted, lambda n: n >= 0, whole=True)
    root = Path(source)
    check_apart(root, out)
    listing = list_cache(root, config.format)
    store = open_store(out)
    if store.has_files() and store.size(PLAN) is None and store.size(LOCK) is None:
        raise UsageError(f"{out} is not empty, and holds no packed cache; give a folder of its own")
    store.prepare()
    with store.locked():
        store.clear()
        for left in (Path(out) / OTHERS).rglob(PARTS):  # by a job that was killed
            if is_part(left.name):
                left.unlink()
        agree(store, config, listing)
        sums = sums_before(store)
        record = agreed_record(store, listing, sums)
        task = PackTask(
            source=source, out=out, format=listing.format.name, statistics=record.statistics,
            budget=config.budget(record.statistics), criterion=config.criterion, reference=config.reference,
            precision=config.precision, fill=config.fill,
        )  # fmt: skip
        task.packer()  # so that wrong settings show here and not in every worker
        shards = shards_of(listing, config)
        before = work(task, shards, store, workers, watch)
        done = [load_shard(store, shard.number) for shard in shards]
        return finish(store, listing, config, task, done, before, sums, start)


def agree(store: Store, config: PackConfig, listing: CacheListing) -> None:
    """Begin a job, or refuse to go on with one that was begun with another cache or other settings."""
    items = "".join(f"{i.path} {i.size_bytes} {i.version}\n" for i in listing.items)
    sha256 = hashlib.sha256(items.encode(errors="surrogatepass")).hexdigest()  # names may be no text
    facts = {"options": asdict(config), "files": len(listing.items), "sha256": sha256}
    text = store.read_text(PLAN)
    if text is None:
        store.write_text(PLAN, dump(facts))
        return
    try:
        begun = json.loads(text)
        other = {k: v for k, v in facts["options"].items() if begun["options"].get(k) != v}  # type: ignore[attr-defined]
        same = begun["sha256"] == facts["sha256"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{store}/{PLAN} is damaged ({error}); give another OUT, or remove this one") from error
    if other:
        changed = "; ".join(f"{k} was {begun['options'].get(k)!r} and is {v!r}" for k, v in other.items())
        raise UsageError(
            f"{store} was begun with other settings: {changed}; give the same settings, or another OUT",
            about=tuple(other),
        )
    if not same:
        raise UsageError(
            f"the cache has changed since {store} was begun ({begun['files']} files then, {facts['files']} now); "
            "restore it, or give another OUT"
        )


def sums_before(store: Store) -> Checksums:
    """The checksums that an earlier run wrote; a damaged list is made anew."""
    try:
        return parse_checksums(store.read_text(CHECKSUMS) or "")
    except (TokenFileError, UnicodeDecodeError):
        return {}


def agreed_record(store: Store, listing: CacheListing, sums: Checksums) -> CacheRecord:
    """What the cache was calibrated to, once for the data set; again where that was damaged."""
    record = record_before(store, sums)
    if record is None:
        statistics = statistics_of(listing.model, sample_latents(listing))
        record = CacheRecord(format=listing.format.name, model=listing.model, statistics=statistics, checksums=True)
        store.write_text(CACHE, dump(asdict(record)))
    return record


def record_before(store: Store, sums: Checksums) -> CacheRecord | None:
    """What an earlier run wrote; None where there is nothing, or it is damaged."""
    try:
        text = store.read_text(CACHE)
        if text is None or (CACHE in sums and sums[CACHE] != Checksum.of_text(CACHE, text)):
            return None
        return CacheRecord.parse(text, f"{store}/{CACHE}")
    except OtherVersionError:
        raise
    except (TokenFileError, UnicodeDecodeError):
        return None


def sample_latents(listing: CacheListing) -> Iterator[Tensor]:
    """Clips from all over the cache; in the place of one that cannot be used another one is taken."""
    good = listing.good
    step = max(1, len(good) // MOST_CALIBRATED)
    first = range(0, len(good), step)[:MOST_CALIBRATED]
    found = 0
    for place in chain(first, (place for place in range(len(good)) if place not in first)):
        if found == len(first):
            return
        try:
            file = listing.format.open(listing.root / good[place].path)
            z_CTHW = file.latents(len(file.facts) // 2)
        except (CacheError, OSError):
            continue  # it is refused, with the reason, when its turn comes
        if all_finite(z_CTHW):
            found += 1
            yield z_CTHW


def shards_of(listing: CacheListing, config: PackConfig) -> list[FileShard]:
    """Consecutive files: so many of them, or so many bytes, whichever is reached first."""
    items = listing.good
    most = config.shard_files or MOST_FILES
    shards: list[FileShard] = []
    group: list[CacheItem] = []
    first = size = 0
    for place, item in enumerate(items):
        if group and (len(group) == most or size + item.size_bytes > MOST_BYTES):
            shards.append(FileShard(number=len(shards), first=first, items=tuple(group)))
            group, first, size = [], place, 0
        group.append(item)
        size += item.size_bytes
    return [*shards, FileShard(number=len(shards), first=first, items=tuple(group))]


def work(task: PackTask, shards: list[FileShard], store: Store, workers: int, watch: Watcher) -> set[int]:
    """Have the shards made that are not there yet; returns the numbers of those that were."""
    there = {shard.number for shard in shards if load_shard(store, shard.number) is not None}
    todo = [shard for shard in shards if shard.number not in there]
    done, total, size = sum(len(s.items) for s in shards if s.number in there), sum(len(s.items) for s in shards), 0
    watch(done, total, size)

    def count(files: int, bytes: int) -> None:
        nonlocal done, size
        done, size = done + files, size + bytes
        watch(done, total, size)

    if workers == 1 or len(todo) < 2:
        for shard in todo:
            make_shard(task, shard, count)
        return there
    with pool(workers) as executor:
        jobs = {executor.submit(make_shard, task, shard): shard for shard in todo}
        for job in as_completed(jobs):
            job.result()
            count(len(jobs[job].items), sum(item.size_bytes for item in jobs[job].items))
    return there


def one_thread() -> None:
    """Of many processes each has a core."""
    import torch

    torch.set_num_threads(1)


@contextmanager
def pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    executor = ProcessPoolExecutor(workers or None, mp_context=get_context("spawn"), initializer=one_thread)
    try:
        yield executor
    except BrokenProcessPool as error:
        raise CacheError("a worker died; what was done is kept: run the same command again to go on") from error
    finally:
        executor.shutdown(cancel_futures=True)


def finish(
    store: Store, listing: CacheListing, config: PackConfig, task: PackTask, done: list[CacheShard | None],
    before: set[int], sums: Checksums, start: float,
) -> PackResult:  # fmt: skip
    """Carry along what has no latents, write what describes the whole, and `dataset.json` last.

    Args:
        before: the shards that were there from earlier runs.
        sums: the checksums of earlier runs.
    """
    shards = [shard for shard in done if shard is not None]
    if len(shards) < len(done):
        raise OutputError(f"a shard is gone from {store}; run the same command again to make it anew")
    refused = [{"path": i.path, "reason": i.problem} for i in listing.items if i.problem]
    refused += [dict(r) for shard in shards for r in shard.refused]
    files = [file for shard in shards for file in shard.files]
    if not files:
        first = refused[0]
        raise CacheError(
            f"none of the {len(refused)} files could be packed; {readable(first['path'])} {first['reason']}"
        )
    others = [*listing.others, *(entry["path"] for entry in refused)]
    checksums = [carry(listing.root / name, store, f"{OTHERS}/{name}", sums) for name in others]
    carried = sum(one.bytes for one in checksums)
    dataset = dataset_of(shards, len(refused), config, task)
    result = PackResult(
        source=str(listing.root), out=str(store), format=listing.format.name, model=listing.model, dataset=dataset,
        statistics=task.statistics, files=len(files), others=len(listing.others),
        source_bytes=sum(f.bytes for f in files) + carried, packed_bytes=sum(s.bytes for s in shards) + carried,
        latent_bytes=sum(s.latent_bytes for s in shards), loss=sum((s.loss for s in shards), Loss()),
        notes=listing.notes, files_before=sum(len(s.files) for s in shards if s.number in before),
        bytes_now=sum(s.latent_bytes for s in shards if s.number not in before),
        seconds=time.perf_counter() - start,
    )  # fmt: skip
    lists = {
        FILES: "".join(f"{file.line()}\n" for file in files),
        MANIFEST: "".join(f"{video.line()}\n" for shard in shards for video in shard.videos),
        QUARANTINE: quarantine_table({**entry, "path": readable(entry["path"])} for entry in refused),
    }
    described = {**lists, CACHE: store.read_text(CACHE) or "", DATASET: dump(asdict(dataset))}
    checksums += [Checksum.of_text(name, text) for name, text in described.items()]
    page = "".join(f"\n| {name} | {text} |" for name, text in result.rows())
    reports = {
        CHECKSUMS: dump_checksums(checksums),
        REPORT: dump(result.record()),
        REPORT_PAGE: f"# {readable(listing.root.name)}, packed\n\n| | |\n|---|---|{page}\n",
    }
    for name, text in {**lists, **reports, DATASET: described[DATASET]}.items():
        store.write_text(name, text)
    return result


def dataset_of(shards: list[CacheShard], refused: int, config: PackConfig, task: PackTask) -> DatasetRecord:
    """What the whole is."""
    videos = [video for shard in shards for video in shard.videos]
    totals = {name: sum(getattr(v, name) for v in videos) for name in ("frames", "tokens", "cells", "bytes")}
    packer, stats = task.packer(), task.statistics
    recipe = asdict(packer.parts.recipe(packer.config, packer.budget.tau or 0.0))
    recipe["tau"] = packer.budget.tau  # None where a budget chose one for each clip
    return DatasetRecord(
        layout_version=LAYOUT_VERSION, format=TAR, recipe=recipe, options=asdict(config) | {"inlay": inlay.__version__},
        videos=len(videos), quarantined=refused, keep_rate=totals["tokens"] / totals["cells"],
        latent_count=stats.cells, latent_mean=list(stats.mean), latent_std=list(stats.std),
        shards=[
            {"name": s.shard, "videos": len(s.videos), "bytes": s.bytes, "sha256": s.sha256} for s in shards if s.shard
        ],
        **totals,
    )  # fmt: skip


def carry(path: Path, store: Store, name: str, sums: Checksums) -> Checksum:
    """Copy a file as it is, once; `sums` are those of files that were copied before."""
    try:
        with path.open("rb") as source:
            size = os.fstat(source.fileno()).st_size
            if store.size(name) != size:
                with store.written(name) as part:
                    sha256 = copy_file(source, part)
                    return Checksum(path=name, bytes=part.stat().st_size, sha256=sha256)
            if name in sums and sums[name].bytes == size:
                return sums[name]
            return Checksum(path=name, bytes=size, sha256=hashlib.file_digest(source, "sha256").hexdigest())
    except OSError as error:
        raise CacheError(f"{path}: cannot be carried along: {error.strerror or error}; see to it") from error
