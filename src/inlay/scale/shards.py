# SPDX-License-Identifier: Apache-2.0
"""Token files in, a shard out: a WebDataset tar or a Parquet table, always the same bytes for the same videos."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from inlay.errors import require
from inlay.scale.encode import Encoded
from inlay.scale.layout import PARQUET, TAR, TOKENS_COLUMN, VideoRecord, dump_line

ROW_GROUP = 16  # rows that a reader of one video has to fetch


def write_tar(path: Path, shard: str, videos: list[Encoded]) -> list[VideoRecord]:
    """`KEY.inlay` and `KEY.json` for each video; times, owners and modes are left out, so that bytes repeat."""
    records = []
    with path.open("wb") as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for video in videos:
            _add(tar, f"{video.record.key}.inlay", video.file, video.record.bytes)
            offset = tar.offset - _padded(video.record.bytes)
            records.append(replace(video.record, shard=shard, offset=offset))
            text = dump_line(beside(video.record)).encode()
            _add(tar, f"{video.record.key}.json", io.BytesIO(text), len(text))
    return records


def _add(tar: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size = size
    tar.addfile(info, file)


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def write_parquet(path: Path, shard: str, videos: list[Encoded]) -> list[VideoRecord]:
    """One row for each video: its manifest line, and its token file as bytes."""
    arrow, parquet = require("pyarrow", extra="scale"), require("pyarrow.parquet", extra="scale")
    schema = arrow.schema([(name, getattr(arrow, kind)()) for name, kind in COLUMNS.items()])
    with parquet.ParquetWriter(path, schema, compression="NONE", store_schema=False) as writer:
        for first in range(0, len(videos), ROW_GROUP):
            rows = [{**beside(v.record), TOKENS_COLUMN: v.file.read()} for v in videos[first : first + ROW_GROUP]]
            writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
    return [replace(video.record, shard=shard, offset=row) for row, video in enumerate(videos)]


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
WRITERS: dict[str, Callable[[Path, str, list[Encoded]], list[VideoRecord]]] = {TAR: write_tar, PARQUET: write_parquet}


def beside(record: VideoRecord) -> dict[str, Any]:
    """What lies beside a token file in its shard: the manifest line without the place, which it is at."""
    return {name: value for name, value in asdict(record).items() if name not in ("shard", "offset")}
