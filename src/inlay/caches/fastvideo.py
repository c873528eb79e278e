# SPDX-License-Identifier: Apache-2.0
"""FastVideo: Parquet tables with a row for each clip; latents are the raw bytes of float32 [C, F, H, W].

The reader takes the bytes as float32 whatever the row says. The rest of a table is a table without that column.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from inlay.caches.base import CacheFile, CacheFormat, ClipFacts, Latents, NewClip, files_below, usual_fps
from inlay.caches.holes import CacheError
from inlay.caches.rest import pack_rest, unpack_rest
from inlay.errors import require
from inlay.files import atomic

BYTES, SHAPE, DTYPE = "vae_latent_bytes", "vae_latent_shape", "vae_latent_dtype"
PLAIN, NONE = "UNCOMPRESSED", "NONE"  # what pyarrow reads under the one name, it writes under the other
CODECS = (NONE, "SNAPPY", "GZIP", "BROTLI", "LZ4", "ZSTD")
FILE_LIST = "map_style_cache"  # absolute paths; the trainer makes it again
TENSORS = ("vae_latent", "text_embedding")
COLUMNS = {  # of a text-to-video table -> type
    "id": "string",
    **{f"{t}_{part}": kind for t in TENSORS for part, kind in (("bytes", "b"), ("shape", "s"), ("dtype", "string"))},
    "file_name": "string",
    "caption": "string",
    "media_type": "string",
    "width": "int64",
    "height": "int64",
    "num_frames": "int64",
    "duration_sec": "float64",
    "fps": "float64",
}


class FastVideo(CacheFormat):
    """FastVideo's text-to-video and image-to-video tables."""

    name, about, dtype = "fastvideo", "FastVideo, Parquet", "F32"
    models = ("wan-2.1", "wan-2.2", "hunyuan-video-1.5", "ltx")
    normalised, needs_text, clips_per_file = False, True, 8

    def find(self, root: Path) -> list[Path]:
        found = [p for p in files_below(root, ".parquet") if FILE_LIST not in p.parts]
        return found if found and any(BYTES in _names(path) for path in found[:3]) else []

    def open(self, path: Path, *, whole: bool = True) -> CacheFile:
        return TableFile(path)

    def left_out(self, relative: Path) -> bool:
        return FILE_LIST in relative.parts

    def write(self, root: Path, number: int, clips: Sequence[NewClip]) -> Path:
        arrow, parquet = require("pyarrow", extra="scale"), require("pyarrow.parquet", extra="scale")
        own = {"b": arrow.binary(), "s": arrow.list_(arrow.int64())}
        schema = arrow.schema([(name, own[k] if k in own else getattr(arrow, k)()) for name, k in COLUMNS.items()])
        path = root / f"data_{number:05d}.parquet"
        with atomic(path) as part, parquet.ParquetWriter(part, schema) as writer:
            for clip in clips:
                writer.write_table(arrow.Table.from_pylist([row_of(clip)], schema=schema))
        return path


def row_of(clip: NewClip) -> dict[str, Any]:
    """The row of a clip; latents are not normalised: the trainer does that."""
    assert clip.text is not None, "this format needs text"
    tensors = {"vae_latent": clip.raw_CTHW, "text_embedding": clip.text}
    row: dict[str, Any] = {"id": clip.name}
    for name, tensor in tensors.items():
        row[f"{name}_bytes"] = tensor.float().contiguous().numpy().tobytes()
        row[f"{name}_shape"] = list(tensor.shape)
        row[f"{name}_dtype"] = "float32"
    _, T, _, _ = clip.raw_CTHW.shape
    return row | {
        "file_name": clip.name, "caption": clip.caption, "media_type": "video", "width": clip.width,
        "height": clip.height, "num_frames": T, "duration_sec": clip.frames / clip.fps, "fps": clip.fps,
    }  # fmt: skip


def _names(path: Path) -> list[str]:
    try:
        with explained():
            return list(require("pyarrow.parquet", extra="scale").read_schema(path).names)
    except CacheError:
        return [BYTES]  # said again when it is opened


@contextmanager
def explained() -> Iterator[None]:
    """Whatever pyarrow says of a table that is not whole."""
    arrow = require("pyarrow", extra="scale")
    try:
        yield
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CacheError("is not a whole Parquet file: it was cut short, or is still being written") from error


class TableFile(CacheFile):
    """An open table."""

    def __init__(self, path: Path) -> None:
        parquet = require("pyarrow.parquet", extra="scale")
        with explained():
            self.file = parquet.ParquetFile(path)
            names = self.file.schema_arrow.names
            lacking = [name for name in (BYTES, SHAPE, DTYPE) if name not in names]
            if lacking:
                raise CacheError(f"is no FastVideo table: it has no column {lacking[0]!r}")
            wanted = [name for name in (SHAPE, DTYPE, "fps", "caption") if name in names]
            rows = self.file.read(columns=wanted).to_pylist()
        self.facts = tuple(_facts(number, row) for number, row in enumerate(rows))
        groups = [self.file.metadata.row_group(g).num_rows for g in range(self.file.num_row_groups)]
        self.starts = [sum(groups[:g]) for g in range(len(groups) + 1)]
        self._group: tuple[int, Any] | None = None

    def latents(self, row: int) -> Tensor:
        group = next(g for g in range(len(self.starts) - 1) if row < self.starts[g + 1])
        if self._group is None or self._group[0] != group:
            with explained():
                self._group = group, self.file.read_row_group(group, columns=[BYTES]).column(0)
        found = self._group[1][row - self.starts[group]].as_py()
        data = found if isinstance(found, bytes) else b""
        shape = self.facts[row].shape
        if len(data) != 4 * math.prod(shape):
            raise CacheError(f"row {row} has {len(data):,} bytes of latents, its shape {list(shape)} needs "
                             f"{4 * math.prod(shape):,}")  # fmt: skip
        return torch.from_numpy(np.frombuffer(data, dtype="<f4").astype(np.float32)).view(shape)

    def rest(self) -> bytes:
        parquet = require("pyarrow.parquet", extra="scale")
        schema = self.file.schema_arrow
        place = schema.get_field_index(BYTES)
        metadata = self.file.metadata
        stored = metadata.row_group(0).column(0).compression if metadata.num_row_groups else PLAIN
        codec = NONE if stored == PLAIN else stored
        others = [name for name in schema.names if name != BYTES]
        buffer = io.BytesIO()
        with explained(), parquet.ParquetWriter(buffer, schema.remove(place), compression=codec) as writer:
            for group in range(self.file.num_row_groups):
                writer.write_table(self.file.read_row_group(group, columns=others))
        kind = str(schema.field(place).type)
        return pack_rest({"kind": "parquet", "place": place, "type": kind, "codec": codec}, buffer.getvalue())

    def same_rest(self, member: bytes) -> bool:
        """The same rows: another release of pyarrow writes other bytes."""
        parquet = require("pyarrow.parquet", extra="scale")
        there = parquet.ParquetFile(io.BytesIO(unpack_rest(member)[1]))
        groups = range(self.file.num_row_groups)
        others = [name for name in self.file.schema_arrow.names if name != BYTES]
        return there.num_row_groups == len(groups) and all(
            there.read_row_group(g).equals(self.file.read_row_group(g, columns=others)) for g in groups
        )


def _facts(number: int, row: dict[str, Any]) -> ClipFacts:
    shape, dtype = row[SHAPE], row[DTYPE]
    if dtype != "float32":
        raise CacheError(f"row {number} says {dtype!r}, and FastVideo reads every row as float32; make it again")
    if not isinstance(shape, list) or len(shape) != 4 or not all(type(side) is int and side > 0 for side in shape):
        raise CacheError(f"row {number} has latents of shape {shape}, and those of a video are [C, T, H, W]")
    caption = row.get("caption")
    C, T, H, W = shape
    return ClipFacts(
        shape=(C, T, H, W), dtype="F32", fps=usual_fps(row.get("fps")),
        caption=caption if isinstance(caption, str) else None,
    )  # fmt: skip


def rest_of_table(rest: bytes, clips: int) -> Any:
    """The open table without its latents; refused where its rows are not as many as its clips."""
    with explained():
        file = require("pyarrow.parquet", extra="scale").ParquetFile(io.BytesIO(rest))
    if file.metadata.num_rows != clips:
        raise CacheError(f"is damaged: its table has {file.metadata.num_rows:,} rows, and there are {clips:,} clips")
    return file


def write_table(head: dict[str, Any], rest: bytes, clips: int, latents: Latents, out: BinaryIO) -> None:
    """The inverse of `TableFile.rest`: the same rows in the same groups, one group in memory at a time."""
    arrow, parquet = require("pyarrow", extra="scale"), require("pyarrow.parquet", extra="scale")
    file, place = rest_of_table(rest, clips), head.get("place")
    columns = range(len(file.schema_arrow.names) + 1)
    if type(place) is not int or place not in columns or head.get("codec") not in CODECS:
        raise CacheError("the part of a shard beside the tokens says nothing of its table")
    kind = arrow.large_binary() if head.get("type") == "large_binary" else arrow.binary()
    schema = file.schema_arrow.insert(place, arrow.field(BYTES, kind))
    row = 0
    with parquet.ParquetWriter(out, schema, compression=head["codec"]) as writer:
        for group in range(file.num_row_groups):
            with explained():
                table = file.read_row_group(group)
            rows = range(row, row + len(table))
            column = arrow.array([latents(r).float().contiguous().numpy().tobytes() for r in rows], type=kind)
            writer.write_table(table.add_column(place, schema.field(place), column))
            row += len(table)
