# SPDX-License-Identifier: Apache-2.0
"""The videos in a WebDataset tar, where each lies, and its caption; and the brace notation for many tars."""

from __future__ import annotations

import json
import math
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from inlay.errors import UsageError, VideoError
from inlay.scale.store import open_bytes

TAR_SUFFIXES = (".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz", ".tar")
CAPTION_SUFFIXES = ("txt", "caption", "text")
CAPTION_KEYS = ("caption", "text", "prompt")
LONGEST_CAPTION = 1 << 20  # bytes
BRACES = re.compile(r"\{(\d{1,18})\.\.(\d{1,18})\}")
MOST_NAMES = 1_000_000  # that one pattern may stand for


@dataclass(frozen=True, kw_only=True)
class Member:
    name: str
    offset: int  # of its bytes in the tar
    size_bytes: int
    caption: str | None = None


@dataclass(kw_only=True)
class Group:
    """Videos of one key, and their caption."""

    key: str
    caption: str | None = None
    videos: list[Member] = field(default_factory=list)


def braces(pattern: str) -> list[str]:
    """All the names that a pattern stands for.

    >>> braces("train-{08..10}.tar")
    ['train-08.tar', 'train-09.tar', 'train-10.tar']
    """
    count = math.prod(max(int(last) - int(first) + 1, 0) for first, last in BRACES.findall(pattern))
    if count > MOST_NAMES:
        raise UsageError(f"{pattern} stands for {count:,} names, and {MOST_NAMES:,} are the most; give parts of it")
    found = BRACES.search(pattern)
    if found is None:
        return [pattern]
    first, last = found.groups()
    numbers = (f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1))
    return [name for n in numbers for name in braces(pattern[: found.start()] + n + pattern[found.end() :])]


def members(address: str, suffixes: tuple[str, ...]) -> Iterator[Member]:
    """The videos of a tar in their order; a caption is the text, or in the JSON, of the same key."""
    if not address.partition("::")[0].lower().endswith(".tar"):
        raise VideoError("a compressed tar cannot be read at a place in it; unpack or recompress it as .tar")
    groups: list[Group] = []  # neighbours of one key, as WebDataset packs them
    damage = None
    try:
        with open_bytes(address) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for info in _files(tar):
                if not groups or key_of(info.name) != groups[-1].key:
                    groups.append(Group(key=key_of(info.name)))
                if info.name.lower().endswith(suffixes):
                    groups[-1].videos.append(Member(name=info.name, offset=info.offset_data, size_bytes=info.size))
                elif groups[-1].caption is None:
                    groups[-1].caption = _caption(tar, info)
    except (tarfile.TarError, OSError, EOFError, ValueError, RecursionError) as error:
        damage = VideoError(f"the tar is damaged or cut short ({error}); what lies before the damage is used")
    elsewhere = {group.key: group.caption for group in reversed(groups) if group.caption is not None}
    for group in groups:  # a plain tar of a folder has its files in any order
        caption = group.caption if group.caption is not None else elsewhere.get(group.key)
        yield from (replace(member, caption=caption) for member in group.videos)
    if damage is not None:
        raise damage


def _files(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Entry by entry, without the list of all of them that a TarFile keeps."""
    while (info := tar.next()) is not None:
        tar.members = []  # type: ignore[attr-defined]
        if info.isfile():
            yield info
    tar.fileobj.seek(tar.offset)
    if tar.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise tarfile.ReadError(f"no header at byte {tar.offset:,}")


def key_of(name: str) -> str:
    """What WebDataset calls the key: the name up to the first dot of its last part."""
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}{base.partition('.')[0]}"


def _caption(tar: tarfile.TarFile, info: tarfile.TarInfo) -> str | None:
    suffix = info.name.rpartition(".")[2].lower()
    if suffix not in (*CAPTION_SUFFIXES, "json") or info.size > LONGEST_CAPTION:
        return None
    file = tar.extractfile(info)
    text = file.read().decode("utf-8", "replace").strip() if file else ""
    if suffix != "json":
        return text or None
    try:
        record: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    found = [record[k] for k in CAPTION_KEYS if isinstance(record, dict) and isinstance(record.get(k), str)]
    return found[0] if found else None
