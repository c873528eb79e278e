# SPDX-License-Identifier: Apache-2.0
"""The rows of a list or table of videos, local or by address: a path, and a caption where there is one."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inlay.errors import UsageError, require
from inlay.scale.layout import lines_of
from inlay.scale.store import open_bytes

NAMES, NAME = 12, 40  # columns that a message shows, and letters of each
PATH_COLUMNS = ("path", "video", "video_path", "file", "file_name", "filename", "url")
CAPTION_COLUMNS = ("caption", "text", "prompt", "description")


@dataclass(frozen=True, kw_only=True)
class TableRow:
    path: str
    caption: str | None = None
    problem: str | None = None  # why this row names no video; the others are none the worse for it


def read_bytes(place: str) -> bytes:
    try:
        with open_bytes(place) as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"{place}: cannot be read: {error.strerror or error}") from error


def read_text(place: str) -> str:
    try:
        return read_bytes(place).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{place}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from error


def text_rows(place: str) -> Iterator[dict[str, Any]]:
    """One path a line."""
    yield from ({"path": line.strip()} for line in lines_of(read_text(place)) if line.strip())


def csv_rows(place: str) -> Iterator[dict[str, Any]]:
    delimiter = "\t" if place.lower().endswith(".tsv") else ","
    reader = csv.DictReader(io.StringIO(read_text(place)), delimiter=delimiter, strict=True)
    try:
        yield from reader
    except csv.Error as error:
        raise UsageError(f"{place}: line {reader.line_num} is not CSV: {error}") from error


def json_rows(place: str) -> Iterator[dict[str, Any] | str]:
    for number, line in enumerate(lines_of(read_text(place)), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            yield f"line {number} is not JSON: {error}"
        except RecursionError:
            yield f"line {number} is nested too deeply"
        else:
            yield row if isinstance(row, dict) else f"line {number} is not a JSON object"


def parquet_rows(place: str) -> Iterator[dict[str, Any]]:
    arrow, parquet = require("pyarrow", extra="scale"), require("pyarrow.parquet", extra="scale")

    def is_text(kind: Any) -> bool:
        return arrow.types.is_string(kind) or arrow.types.is_large_string(kind) or arrow.types.is_dictionary(kind)

    try:
        file = parquet.ParquetFile(io.BytesIO(read_bytes(place)))
        wanted = [c for c in file.schema_arrow.names if is_text(file.schema_arrow.field(c).type)]
        for batch in file.iter_batches(columns=wanted):
            yield from batch.to_pylist()
    except arrow.ArrowException as error:
        raise UsageError(f"{place}: is not a Parquet table: {str(error).splitlines()[0]}") from error


Rows = Iterator[dict[str, Any]] | Iterator[dict[str, Any] | str]  # in place of a row that cannot be read, why

TABLES: dict[str, Callable[[str], Rows]] = {
    ".txt": text_rows,
    ".list": text_rows,
    ".csv": csv_rows,
    ".tsv": csv_rows,
    ".jsonl": json_rows,
    ".parquet": parquet_rows,
}


def read_table(place: str, *, path_column: str | None = None, caption_column: str | None = None) -> Iterator[TableRow]:
    """The rows in order; columns go by their usual names unless named."""
    reader = TABLES[Path(place.partition("::")[0]).suffix.lower()]
    path_name: str | None = None
    for number, row in enumerate(reader(place), 1):
        if isinstance(row, str):
            yield TableRow(path=f"row {number}", problem=row)
            continue
        if path_name is None:
            path_name = _column(place, row, path_column, PATH_COLUMNS)
            caption_name = _column(place, row, caption_column, CAPTION_COLUMNS)
        if not path_name:
            named = f"none of its columns ({_in_one_line(row)}) is called {', '.join(PATH_COLUMNS)}"
            raise UsageError(f"{place}: {named}; name one", about="path_column")
        path, caption = row.get(path_name), row.get(caption_name)
        if isinstance(path, str) and path:
            yield TableRow(path=path, caption=_text(caption))
        else:
            yield TableRow(path=f"row {number}", problem=f"row {number} has no {path_name}, which is a path as text")


def _text(caption: object) -> str | None:
    """Text, or a number as text; lists and objects are no captions."""
    return str(caption) if isinstance(caption, str | int | float) and caption != "" else None


def _column(place: str, row: dict[str, Any], given: str | None, usual: tuple[str, ...]) -> str:
    """The column that is named, or the first with a usual name; empty where there is none."""
    if given is not None and given not in row:
        raise UsageError(f"{place}: has no column {given!r}; it has {_in_one_line(row)}")
    return given or next((name for name in usual if name in row), "")


def _in_one_line(columns: Iterable[object]) -> str:
    """The names of columns as a message can show them: a table may call them anything."""
    names = [ascii(str(column))[1:-1] for column in columns]
    shown = [name if len(name) <= NAME else f"{name[:NAME]}…" for name in names[:NAMES]]
    return ", ".join([*shown, *["…"] * (len(names) > NAMES)])
