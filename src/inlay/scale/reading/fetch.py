# SPDX-License-Identifier: Apache-2.0
"""Read the bytes of token files: one at a time, or many at once in few requests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from inlay.errors import TokenFileError, UsageError
from inlay.scale.layout import TOKENS_COLUMN
from inlay.scale.reading import files
from inlay.scale.reading.members import PARQUET, TAR, Member

Fetched = bytes | TokenFileError | UsageError
LARGEST_GAP = 1 << 16  # bytes between two token files that are rather read and dropped than asked for separately
LARGEST_SPAN = 1 << 26


class Fetcher:
    """Reads token files. Of a Parquet file it keeps the row group it read last; it holds no file open."""

    def __init__(self) -> None:
        self._group: tuple[str, int] | None = None
        self._rows: list[bytes] = []
        self._starts: dict[str, list[int]] = {}  # of Parquet files: the first row of each row group, and the end

    def __getstate__(self) -> dict[str, Any]:
        return {}  # a worker process begins with nothing read

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    def one(self, member: Member) -> bytes:
        if member.kind == PARQUET:
            return self._row(member)
        return _whole(files.read(member.place, member.offset, member.size), member)

    def many(self, members: Sequence[Member]) -> list[Fetched]:
        """Those of neighbours in a tar in one read; an error stands in the place of what could not be read."""
        got: dict[Member, Fetched] = {}
        for span in spans(members):
            try:
                got |= self._span(span)
            except (TokenFileError, UsageError):
                got |= {member: self._one_or_error(member) for member in span}
        return [got[m] for m in members]

    def _one_or_error(self, member: Member) -> Fetched:
        try:
            return self.one(member)
        except (TokenFileError, UsageError) as error:
            return error

    def _span(self, span: list[Member]) -> dict[Member, Fetched]:
        if len(span) == 1:
            return {span[0]: self.one(span[0])}
        start, stop = span[0].offset, span[-1].offset + (span[-1].size or 0)
        data = files.read(span[0].place, start, stop - start)
        return {m: _whole(data[m.offset - start : m.offset - start + (m.size or 0)], m) for m in span}

    def _row(self, member: Member) -> bytes:
        place = member.place
        if place not in self._starts:
            with files.parquet(place) as table:
                groups = (table.metadata.row_group(i).num_rows for i in range(table.num_row_groups))
                self._starts[place] = list(accumulate(groups, initial=0))
        starts = self._starts[place]
        if not 0 <= member.offset < starts[-1]:
            raise TokenFileError(f"{member.name}: row {member.offset} of {starts[-1]} is not there; fetch it again")
        number = bisect_right(starts, member.offset) - 1
        if self._group != (place, number):
            with files.parquet(place) as table:
                self._rows = table.read_row_group(number, columns=[TOKENS_COLUMN])[TOKENS_COLUMN].to_pylist()
            self._group = (place, number)
        return self._rows[member.offset - starts[number]]


def spans(members: Sequence[Member]) -> list[list[Member]]:
    """Neighbours in one tar together, in the order they are stored; everything else alone."""
    found: list[list[Member]] = []
    for member in sorted(members, key=lambda m: (m.place, m.offset)):
        if found and _follows(found[-1], member):
            found[-1].append(member)
        else:
            found.append([member])
    return found


def _follows(span: list[Member], member: Member) -> bool:
    last = span[-1]
    if member.kind != TAR or last.place != member.place or last.size is None or member.size is None:
        return False
    near = member.offset - (last.offset + last.size) <= LARGEST_GAP
    return near and member.offset + member.size - span[0].offset <= LARGEST_SPAN


def _whole(data: bytes, member: Member) -> bytes:
    if member.size is not None and len(data) != member.size:
        raise TokenFileError(
            f"{member.name}: the shard ends after {len(data):,} of {member.size:,} bytes; fetch the shard again"
        )
    return data
