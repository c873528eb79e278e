# SPDX-License-Identifier: Apache-2.0
"""A path, bytes or a binary file in, spans of bytes out: never more of them than are there."""

from __future__ import annotations

import io
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from inlay.errors import TokenFileError, UsageError

SEARCH_BLOCK = 1 << 12

Source = str | PathLike[str] | bytes | bytearray | memoryview | BinaryIO


class ByteSource:
    """Random access to the bytes of a token file."""

    def __init__(self, source: Source) -> None:
        self._own = True
        if isinstance(source, str | PathLike):
            self.name = str(source)
            self._file = _open(Path(source))
        elif isinstance(source, bytes | bytearray | memoryview):
            self.name = "token file"
            self._file = io.BytesIO(source)
        elif hasattr(source, "read"):
            self.name = str(getattr(source, "name", "token file"))
            self._own = False
            self._file = source if source.seekable() else io.BytesIO(source.read())
        else:
            raise UsageError(f"a token file is a path, bytes or a binary file; got {type(source).__name__}")
        self.size = self._file.seek(0, io.SEEK_END)

    def read(self, offset: int, size: int) -> bytes:
        """The bytes from `offset`, fewer where the file ends earlier."""
        if offset >= self.size:
            return b""
        try:
            self._file.seek(offset)
            return self._file.read(max(0, min(size, self.size - offset)))
        except OSError as error:
            raise TokenFileError(f"{self.name}: cannot be read: {error.strerror or error}") from error

    def find(self, marker: bytes, start: int) -> int:
        """Where `marker` next begins, at `start` or after; -1 if nowhere."""
        while start < self.size:
            found = self.read(start, SEARCH_BLOCK + len(marker) - 1).find(marker)
            if found >= 0:
                return start + found
            start += SEARCH_BLOCK
        return -1

    def close(self) -> None:
        if self._own:
            self._file.close()


def _open(path: Path) -> BinaryIO:
    if path.is_dir():
        raise TokenFileError(f"{path} is a folder, not a token file")
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise TokenFileError(f"{path} does not exist; check the name") from error
    except OSError as error:
        raise TokenFileError(f"{path}: cannot be read: {error.strerror or error}") from error
