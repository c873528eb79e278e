# SPDX-License-Identifier: Apache-2.0
"""What an interrupted writer left behind, in, what of it can be gone on from, out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from inlay.container.header import FileHeader
from inlay.container.layout import TIMES, Entry
from inlay.container.scan import contents
from inlay.container.source import ByteSource
from inlay.errors import CutShortError, TokenFileError, UsageError


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """The chunks before the last key chunk of a part: there nothing carries over, so the rest can be made anew."""

    path: Path  # of the part
    header: FileHeader  # its totals are None
    entries: tuple[Entry, ...]
    end: int  # where the bytes of these chunks end

    @property
    def frames(self) -> int:
        return sum(entry.frames for entry in self.entries)

    @property
    def times(self) -> bool:
        return bool(self.entries[0].flags & TIMES)


def part_of(path: str | PathLike[str]) -> Path:
    """Where the bytes of a token file gather until it is whole."""
    place = Path(path)
    return place.with_name(f"{place.name}.part")


def unfinished(path: str | PathLike[str]) -> Unfinished | None:
    """What can be gone on from; None where there is nothing, or nothing before the last key chunk."""
    part = part_of(path)
    if not part.is_file() or part.stat().st_size == 0:
        return None
    source = ByteSource(part)
    try:
        found = contents(source)
    except CutShortError:  # killed before the first chunk
        return None
    except TokenFileError as error:
        raise UsageError(
            f"{part} is not an unfinished token file ({error}); remove it, or begin anew", about="force"
        ) from error
    finally:
        source.close()
    whole = [entry for number, entry in enumerate(found.entries) if entry.number == number]
    keys = [entry.number for entry in whole if entry.key]
    kept = tuple(whole[: keys[-1]]) if keys else ()
    if not kept:
        return None
    header = replace(found.header, frames=None, chunks=None, file_bytes=None)
    return Unfinished(path=part, header=header, entries=kept, end=kept[-1].offset + kept[-1].length)
