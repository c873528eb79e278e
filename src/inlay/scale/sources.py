# SPDX-License-Identifier: Apache-2.0
"""List the videos of a folder, list, table or tars, local or by address, the same every time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from inlay.errors import InlayError, UsageError, VideoError
from inlay.files import kind_of
from inlay.scale.layout import known, lines_of
from inlay.scale.lerobot import is_lerobot, read_episodes
from inlay.scale.store import filesystem, is_address
from inlay.scale.tables import TABLES, TableRow, read_table
from inlay.scale.tars import TAR_SUFFIXES, braces, members
from inlay.video.listing import RAW_SUFFIXES, VIDEO_SUFFIXES

VERSIONS = ("ETag", "etag", "mtime", "LastModified", "updated")  # what file systems call it
SUFFIXES = (*VIDEO_SUFFIXES, *RAW_SUFFIXES)
EPISODE_MARK = "!"  # in a list, between a LeRobot data set and the camera of one of its episodes


@dataclass(frozen=True, kw_only=True)
class SourceItem:
    """One video that is to be tokenised."""

    name: str  # what the manifest calls it
    address: str  # a local path, or an fsspec address; of the tar for a member of one
    size_bytes: int | None = None
    version: str = ""  # changes when the file does: its time of change, or what a store says in its place
    offset: int | None = None  # where a member's bytes begin in its tar
    caption: str | None = None
    problem: str | None = None  # known already that it cannot be read
    first: int | None = None  # of a span: the frame of the file that it begins at
    frames: int | None = None  # of a span
    fps: str | None = None  # of a span: the rate by which its frames are found
    listed: str | None = field(default=None, compare=False)  # how a list names it, where that is not its address

    def line(self) -> str:
        """JSON with nothing but ASCII, so that file names that are not valid text survive."""
        return json.dumps({k: v for k, v in asdict(self).items() if v not in (None, "") and k != "listed"})

    @staticmethod
    def parse(line: str) -> SourceItem:
        return SourceItem(**known(SourceItem, json.loads(line)))

    @property
    def path(self) -> str:
        """By which it could be listed again."""
        return readable(self.listed or self.address)

    def reason(self, error: Exception) -> str:
        """What is wrong with it, without the name that a list has beside it."""
        return str(error).removeprefix(f"{self.address}: ").removeprefix("None: ")  # None: a copy


Sets = dict[str, dict[str, SourceItem]]  # LeRobot data sets that a list names, each read once


def find_sources(source: str, *, path_column: str | None = None, caption_column: str | None = None) -> list[SourceItem]:
    """Every video of SOURCE, in an order that depends on nothing but SOURCE."""
    items = list(_find(source, path_column, caption_column))
    if not items:
        raise VideoError(f"{source}: no videos in it; looked for {', '.join(SUFFIXES)} and .tar")
    return items


def _find(source: str, path_column: str | None, caption_column: str | None) -> Iterator[SourceItem]:
    suffix = _suffix(source)
    if not is_address(source) and is_lerobot(source):
        yield from _lerobot(source)
    elif (parts := braces(source)) != [source]:
        yield from (member for part in parts for member in _expanded(_named(part, part)))
    elif suffix in TABLES and (is_address(source) or not Path(source).is_dir()):
        rows = read_table(source, path_column=path_column, caption_column=caption_column)
        sets: Sets = {}
        for row in dict.fromkeys(rows):  # each row once
            yield from _listed(source, row, sets)
    elif suffix in TAR_SUFFIXES or suffix in SUFFIXES:
        item = _named(source, source.rstrip("/").rpartition("/")[2])
        if item.problem is not None:
            raise UsageError(f"{source}: {item.problem}; give a folder, a list, a table or tars")
        yield from _expanded(item)
    else:
        found = _remote_folder(source) if is_address(source) else _local_folder(source)
        yield from (member for item in found for member in _expanded(item))


def _listed(source: str, row: TableRow, sets: Sets) -> Iterator[SourceItem]:
    """The videos of a row; of one that names none, the reason."""
    if row.problem is not None:
        yield SourceItem(name=row.path, address=f"{source}:{row.path}", problem=row.problem)
        return
    caption, place = None if row.caption is None else readable(row.caption), _below(source, row.path)
    for item in _expanded(_recorded(place, sets) or _named(place, readable(row.path))):
        yield replace(item, caption=caption or item.caption)


def _recorded(place: str, sets: Sets) -> SourceItem | None:
    """The camera that SET!CAMERA/episode_000000 names; None where this is the name of something else."""
    root, _, name = place.rpartition(EPISODE_MARK)
    if not root or is_address(place) or not (root in sets or is_lerobot(root)):
        return None
    try:
        if root not in sets:
            sets[root] = {item.name: item for item in _lerobot(root)}
    except InlayError as error:
        return SourceItem(name=name, address=place, problem=str(error))
    return sets[root].get(name) or SourceItem(name=name, address=place, problem="the data set has no such episode")


def _lerobot(source: str) -> Iterator[SourceItem]:
    """Every camera of every episode; where episodes share a file, a span of it."""
    root = os.path.abspath(source)  # noqa: PTH100 - resolve() would follow links
    for episode in read_episodes(source):
        for camera, span in episode.cameras.items():
            item = _named(str(span.path), episode.source(camera))
            listed = f"{root}{EPISODE_MARK}{item.name}"
            item = replace(item, caption="; ".join(episode.tasks) or None, listed=listed)
            if span.first is not None:
                item = replace(item, first=span.first, frames=episode.length, fps=str(span.fps))
            yield item


def _expanded(item: SourceItem) -> Iterator[SourceItem]:
    """A tar is all the videos in it; anything else is itself."""
    if _suffix(item.name) not in TAR_SUFFIXES or item.problem is not None:
        yield item
        return
    try:
        for m in members(item.address, SUFFIXES):
            name, caption = readable(f"{item.name}!{m.name}"), None if m.caption is None else readable(m.caption)
            listed = f"tar://{m.name}::{item.address}"
            yield replace(item, name=name, offset=m.offset, size_bytes=m.size_bytes, caption=caption, listed=listed)
    except VideoError as error:  # what came before the damage has been listed
        yield replace(item, problem=str(error))


def _local_folder(source: str) -> Iterator[SourceItem]:
    root = Path(source.removeprefix("file://"))
    if not root.exists():
        raise UsageError(f"{source} does not exist; give a folder, a list, a table, tars, or an address")
    if not root.is_dir():
        kinds = ", ".join((*TABLES, *TAR_SUFFIXES))
        raise UsageError(f"{source} is neither a folder nor a list; lists and tars end in {kinds}")
    found = {path.relative_to(root).as_posix(): path for path in _walk(root)}
    for name in sorted(found, key=os.fsencode):
        yield _named(str(found[name]), readable(name))


def _walk(root: Path) -> Iterator[Path]:
    """Files below a folder, through links to folders as well, each folder once."""
    seen: set[tuple[int, int]] = set()
    for folder, below, files in os.walk(root, followlinks=True):
        here = Path(folder).stat()
        if (here.st_dev, here.st_ino) in seen:
            below.clear()
            continue
        seen.add((here.st_dev, here.st_ino))
        below.sort(key=os.fsencode)
        yield from (Path(folder, name) for name in files if _suffix(name) in (*SUFFIXES, *TAR_SUFFIXES))


def _named(address: str, name: str) -> SourceItem:
    """A source with what its file system says about it; addresses in lists are not asked for one by one."""
    if is_address(address):
        return SourceItem(name=name, address=address)
    path = Path(address.removeprefix("file://"))
    item = SourceItem(name=name, address=os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links
    try:
        found = path.stat()
    except FileNotFoundError:
        return replace(item, problem="is a link to nothing" if path.is_symlink() else "there is no such file")
    except (OSError, ValueError) as error:  # ValueError: no system has such a name
        return replace(item, problem=getattr(error, "strerror", None) or f"is no name of a file ({error})")
    if (kind := kind_of(path)) is not None:
        return replace(item, problem=f"is {kind}")
    return replace(item, size_bytes=found.st_size, version=str(found.st_mtime_ns))


def _remote_folder(source: str) -> Iterator[SourceItem]:
    fs, base = filesystem(source)
    try:
        found: dict[str, dict[str, Any]] = fs.find(base, detail=True)
    except OSError as error:
        raise UsageError(f"{source}: cannot be listed: {error}") from error
    _, chained, outer = source.partition("::")
    for path in sorted(found):
        if _suffix(path) not in (*SUFFIXES, *TAR_SUFFIXES):
            continue
        address = fs.unstrip_protocol(path) + chained + outer
        facts = found[path]
        version = next((str(facts[key]) for key in VERSIONS if facts.get(key)), "")
        name = path.removeprefix(base.rstrip("/")).lstrip("/") or path
        yield SourceItem(name=name, address=address, size_bytes=facts.get("size"), version=version)


def _below(source: str, path: str) -> str:
    """A path in a list counts from where the list lies."""
    if is_address(path) or os.path.isabs(path):  # noqa: PTH117 - a string, maybe of an address
        return path
    if is_address(source):
        return f"{source.rpartition('/')[0]}/{path}"
    return str(Path(source.removeprefix("file://")).parent / path)


def _suffix(name: str) -> str:
    """The last suffix, in small letters; `.tar.gz` counts as one."""
    base = name.partition("::")[0].rstrip("/").rpartition("/")[2].lower()
    return next((s for s in TAR_SUFFIXES if base.endswith(s)), os.path.splitext(base)[1])  # noqa: PTH122 - no path


def readable(name: str) -> str:
    """As text that can be stored: bytes of a file name that are no text are written as escapes."""
    try:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half a character, as JSON can spell it
        return name.encode("utf-8", "backslashreplace").decode("utf-8")


def dump_sources(items: Iterable[SourceItem]) -> str:
    return "".join(f"{item.line()}\n" for item in items)


def parse_sources(text: str) -> list[SourceItem]:
    return [SourceItem.parse(line) for line in lines_of(text)]
