# SPDX-License-Identifier: Apache-2.0
"""List the token files of a data set: where each lies, and what is known of it.

A place is the folder `inlay tokenize` wrote, a folder of token files or of shards, one shard or token file, or a list.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from inlay.container import summary
from inlay.errors import TokenFileError, UsageError
from inlay.scale.layout import (
    DATASET,
    MANIFEST,
    SHARDS,
    TOKENS_COLUMN,
    DatasetRecord,
    VideoRecord,
    known,
    manifest_lines,
)
from inlay.scale.reading import files
from inlay.scale.store import Place

FILE, TAR, PARQUET = ".inlay", ".tar", ".parquet"
KINDS = (FILE, TAR, PARQUET)


@dataclass(frozen=True, slots=True)
class Member:
    """One token file: `size` bytes at `offset` of a file or tar, or row `offset` of a Parquet file."""

    key: str
    place: str
    kind: str
    offset: int = 0
    size: int | None = None  # None: to the end of the file
    record: VideoRecord | None = None  # None: nothing is known until it is read
    caption: str | None = None  # where there is no record

    @property
    def name(self) -> str:
        return self.place if self.kind == FILE else f"{self.place}: {self.key}"


@dataclass(frozen=True, kw_only=True)
class TokenSet:
    """All token files of a data set in the order they are stored, and what `dataset.json` says of the whole."""

    members: tuple[Member, ...]
    dataset: DatasetRecord | None = None

    def __repr__(self) -> str:
        return f"TokenSet({len(self.members)} token files in {len({m.place for m in self.members})} files)"


def list_members(source: Place | Sequence[Place]) -> TokenSet:
    """What there is to read. A data set with a manifest is not opened any further."""
    if isinstance(source, Sequence) and not isinstance(source, str):
        sets = [list_members(place) for place in source]
        place, found = "this list", TokenSet(members=tuple(m for s in sets for m in s.members))
        found = sets[0] if len(sets) == 1 else found
    elif files.is_folder(place := str(source)):
        found = _folder(place)
    elif files.exists(place):
        found = TokenSet(members=_one(place))
    else:
        raise UsageError(f"{place} does not exist; give a folder, a shard or a token file")
    if not found.members:
        raise UsageError(f"{place} holds no token files; expected {DATASET}, or files that end in {', '.join(KINDS)}")
    return found


def record_of(member: Member, data: bytes) -> VideoRecord:
    """The manifest's line on a token file, made from the file itself where there is no manifest."""
    if member.record is not None:
        return member.record
    s = summary(files.as_file(data, member.name))
    return VideoRecord(
        key=member.key, source=member.name, sha256="", frames=s.frames, width=s.width, height=s.height,
        fps=s.frame_rate, tokens=s.tokens, cells=s.cells, keep_rate=s.keep_rate, bytes=s.bytes, shard=member.place,
        offset=member.offset, caption=member.caption,
    )  # fmt: skip


def _folder(folder: str) -> TokenSet:
    if files.exists(files.join(folder, DATASET)):
        return _with_manifest(folder)
    if files.is_folder(files.join(folder, SHARDS)):
        raise TokenFileError(
            f"{folder} has shards but no {DATASET}: the job that writes it has not ended; run inlay tokenize again, "
            f"or read what is there: {files.join(folder, SHARDS)}"
        )
    return TokenSet(members=tuple(m for place in files.find(folder, KINDS) for m in _one(place, folder)))


def _with_manifest(folder: str) -> TokenSet:
    dataset = DatasetRecord.parse(_text(files.join(folder, DATASET)), files.join(folder, DATASET))
    members = []
    for record in manifest_lines(_text(files.join(folder, MANIFEST))):
        kind = PARQUET if record.shard.endswith(PARQUET) else TAR
        place = files.join(folder, record.shard)
        members.append(Member(record.key, place, kind, record.offset, record.bytes, record))
    if len(members) != dataset.videos:
        raise TokenFileError(
            f"{folder}: {DATASET} counts {dataset.videos} videos, {MANIFEST} has {len(members)} lines; "
            "run inlay tokenize again to restore it"
        )
    return TokenSet(members=tuple(sorted(members, key=lambda m: (m.place, m.offset))), dataset=dataset)


def _text(place: str) -> str:
    try:
        return files.read(place).decode()
    except UnicodeDecodeError as error:
        raise TokenFileError(f"{place} is damaged ({error}); run inlay tokenize again to restore it") from error


def _one(place: str, folder: str = "") -> tuple[Member, ...]:
    if place.endswith(TAR):
        return _tar(place)
    if place.endswith(PARQUET):
        return _parquet(place)
    key = place.removeprefix(folder).strip("/\\").removesuffix(FILE)
    return (Member(key, place, FILE),)


def _tar(place: str) -> tuple[Member, ...]:
    """A walk over the heads of the tar; the token files themselves are not read."""
    found: list[Member] = []
    notes: dict[str, dict[str, Any]] = {}  # the manifest lines beside them
    try:
        with files.opened(place) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for entry in tar:
                key, dot, suffix = entry.name.rpartition(".")
                if entry.isfile() and suffix == "inlay":
                    found.append(Member(key, place, TAR, entry.offset_data, entry.size))
                elif entry.isfile() and suffix == "json" and dot:
                    notes[key] = _note(tar, entry)
    except tarfile.TarError as error:
        raise TokenFileError(f"{place} is not a whole tar ({error}); fetch it again") from error
    return tuple(_noted(m, notes.get(m.key, {})) for m in found)


def _note(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> dict[str, Any]:
    file = tar.extractfile(entry)
    try:
        note = json.loads(file.read()) if file else {}
    except ValueError:
        return {}  # a note is a convenience: its token file says all that is needed
    return note if isinstance(note, dict) else {}


def _noted(member: Member, note: dict[str, Any]) -> Member:
    try:
        record = VideoRecord(**known(VideoRecord, note) | {"shard": member.place, "offset": member.offset})
    except TypeError:
        record = None
    return replace(member, record=record, caption=note.get("caption"))


def _parquet(place: str) -> tuple[Member, ...]:
    with files.parquet(place) as table:
        names = table.schema_arrow.names
        if TOKENS_COLUMN not in names:
            raise TokenFileError(f"{place} has no column {TOKENS_COLUMN!r}; it is not a shard of token files")
        rows = table.read(columns=[name for name in names if name != TOKENS_COLUMN]).to_pylist()
    members = (Member(str(row.get("key", i)), place, PARQUET, i) for i, row in enumerate(rows))
    return tuple(_noted(m, row) for m, row in zip(members, rows, strict=True))
