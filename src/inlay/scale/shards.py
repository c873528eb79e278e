# SPDX-License-Identifier: Apache-2.0
"""Shards as files: WebDataset tars or Parquet tables, always the same bytes for the same videos, and their records."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, BinaryIO

from inlay.errors import require
from inlay.scale.encode import Encoded
from inlay.scale.layout import PARQUET, TAR, TOKENS_COLUMN, LatentMoments, VideoRecord, dump_line, known
from inlay.scale.layout import shard_record_name as record_name
from inlay.scale.store import Store

COPIED = 1 << 22  # bytes at once into a tar, whose own default is 16 kB
ROW_GROUP = 16  # rows that a reader of one video has to fetch
COLUMNS = {  # of a Parquet shard -> type
    "key": "string",
    "source": "string",
    "sha256": "string",
    "frames": "int64",
    "width": "int64",
    "height": "int64",
    "fps": "string",
    "tokens": "int64",
    "cells": "int64",
    "keep_rate": "float64",
    "bytes": "int64",
    "caption": "string",
    "damage": "string",
    TOKENS_COLUMN: "large_binary",
}


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """What became of a shard."""

    number: int
    shard: str | None  # None where no video of it could be tokenised
    bytes: int = 0
    sha256: str = ""
    videos: list[VideoRecord] = field(default_factory=list)
    refused: list[dict[str, str]] = field(default_factory=list)  # path, reason
    moments: LatentMoments = field(default_factory=LatentMoments)

    @staticmethod
    def load(store: Store, number: int) -> ShardRecord | None:
        """The record of a shard that is whole; None where it is still to be made."""
        text = store.read_text(record_name(number))
        if text is None:
            return None
        try:
            given: dict[str, Any] = json.loads(text)
            videos = [VideoRecord(**known(VideoRecord, video)) for video in given["videos"]]
            moments: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given["moments"].items()}
            parts = {"videos": videos, "moments": LatentMoments(**moments)}
            record = ShardRecord(**known(ShardRecord, given) | parts)
        except (ValueError, KeyError, TypeError):
            return None
        return record if record.shard is None or store.size(record.shard) == record.bytes else None


def write_tar(path: Path, shard: str, videos: list[Encoded]) -> list[VideoRecord]:
    """`KEY.inlay` and `KEY.json` for each video; times, owners and modes are left out, so that bytes repeat."""
    records = []
    with path.open("wb") as file, new_tar(file) as tar:
        for video in videos:
            records.append(add_video(tar, replace(video.record, shard=shard), video.file))
    return records


def new_tar(file: BinaryIO) -> tarfile.TarFile:
    return tarfile.TarFile(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, copybufsize=COPIED)


def add_video(tar: tarfile.TarFile, record: VideoRecord, file: IO[bytes]) -> VideoRecord:
    """A token file, and its manifest line beside it; returns the line with the place in the tar."""
    offset = add_member(tar, f"{record.key}.inlay", file)
    add_member(tar, f"{record.key}.json", io.BytesIO(dump_line(_without_place(record)).encode()))
    return replace(record, offset=offset)


def add_member(tar: tarfile.TarFile, name: str, file: IO[bytes]) -> int:
    """A member without times and owners, so that bytes repeat; returns where its bytes begin."""
    info = tarfile.TarInfo(name)
    info.size = file.seek(0, 2)
    file.seek(0)
    tar.addfile(info, file)
    return tar.offset - -(-info.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def write_parquet(path: Path, shard: str, videos: list[Encoded]) -> list[VideoRecord]:
    """One row for each video: its manifest line, and its token file as bytes."""
    arrow, parquet = require("pyarrow", extra="scale"), require("pyarrow.parquet", extra="scale")
    schema = arrow.schema([(name, getattr(arrow, kind)()) for name, kind in COLUMNS.items()])
    with parquet.ParquetWriter(path, schema, compression="NONE", store_schema=False) as writer:
        for first in range(0, len(videos), ROW_GROUP):
            group = videos[first : first + ROW_GROUP]
            rows = [{**_without_place(v.record), TOKENS_COLUMN: v.file.read()} for v in group]
            writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
    return [replace(video.record, shard=shard, offset=row) for row, video in enumerate(videos)]


WRITERS: dict[str, Callable[[Path, str, list[Encoded]], list[VideoRecord]]] = {TAR: write_tar, PARQUET: write_parquet}


def _without_place(record: VideoRecord) -> dict[str, Any]:
    """A manifest line as it lies beside its token file."""
    return {name: value for name, value in asdict(record).items() if name not in ("shard", "offset")}
