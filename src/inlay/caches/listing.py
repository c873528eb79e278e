# SPDX-License-Identifier: Apache-2.0
"""List a cache before anything is packed: which files hold latents of one model and dtype, and what else is there."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from inlay.caches.base import CacheFormat, ClipFacts
from inlay.caches.holes import CacheError
from inlay.caches.table import find_format
from inlay.caches.target import is_part
from inlay.errors import UsageError
from inlay.scale.sources import readable


@dataclass(frozen=True, kw_only=True)
class CacheItem:
    """A file with latents."""

    path: str  # below the cache
    size_bytes: int
    version: str  # changes when the file does
    facts: tuple[ClipFacts, ...] = ()
    model: str = ""
    problem: str | None = None  # why it cannot be packed


@dataclass(frozen=True, kw_only=True)
class CacheListing:
    """All of a cache."""

    root: Path
    format: CacheFormat
    model: str
    dtype: str
    items: tuple[CacheItem, ...]
    others: tuple[str, ...]  # files without latents, below the cache
    notes: tuple[str, ...]

    @property
    def good(self) -> list[CacheItem]:
        return [item for item in self.items if item.problem is None]


def list_cache(root: Path, format: str = "auto") -> CacheListing:
    """Every file of a cache. Those of another model or dtype than most, and those that are cut short, get a problem."""
    form, files = find_format(root, format)
    items = [_looked_at(form, root, path) for path in files]
    models = Counter(item.model for item in items if item.model)
    if not models:
        first = items[0]
        raise CacheError(
            f"none of the {len(items)} files of {root} can be packed; {readable(first.path)} {first.problem}"
        )
    dtypes = Counter(facts.dtype for item in items for facts in item.facts if item.model)
    dtype, model = dtypes.most_common(1)[0][0], models.most_common(1)[0][0]
    items = [_of_one_kind(item, dtype, model) for item in items]
    latents = {item.path for item in items}
    others = tuple(p for p in _all_files(root) if p not in latents and not form.left_out(Path(p)))
    return CacheListing(
        root=root, format=form, model=model, dtype=dtype, items=tuple(items), others=others,
        notes=tuple(map(readable, form.notes(root, files))),
    )  # fmt: skip


def _looked_at(form: CacheFormat, root: Path, path: Path) -> CacheItem:
    found = path.stat()
    name = path.relative_to(root).as_posix()
    item = CacheItem(path=name, size_bytes=found.st_size, version=str(found.st_mtime_ns))
    try:
        if readable(name) != name:
            raise CacheError("has a name that is no text, which no list can hold; rename it")
        facts = form.open(path, whole=False).facts
        if not facts:
            raise CacheError("has no rows")
        channels = {fact.shape[0] for fact in facts}
        if len(channels) > 1:
            raise CacheError(f"has rows of {' and '.join(map(str, sorted(channels)))} channels; make it again")
        return replace(item, facts=facts, model=form.model(*channels))
    except CacheError as error:
        return replace(item, problem=str(error))


def _of_one_kind(item: CacheItem, dtype: str, model: str) -> CacheItem:
    if item.problem is not None:
        return item
    if item.model != model:
        why = f"holds latents of {item.model}, and the others are of {model}; pack them as a cache of their own"
        return replace(item, problem=why)
    mixed = next((facts.dtype for facts in item.facts if facts.dtype != dtype), None)
    if mixed is not None:
        why = f"holds {mixed}, and the others {dtype}: a trainer cannot stack them; make it again"
        return replace(item, problem=why)
    return item


def _all_files(root: Path) -> list[str]:
    found = (p for p in root.rglob("*") if p.is_file() and not is_part(p.name))
    return sorted((p.relative_to(root).as_posix() for p in found), key=os.fsencode)


def check_apart(source: Path, out: str) -> None:
    """Refuse to write into the cache that is read."""
    if "://" in out:
        return
    target = Path(out).resolve()
    if target == source.resolve() or source.resolve() in target.parents or target in source.resolve().parents:
        raise UsageError(f"{out} and {source} lie in one another; give a folder of its own")
