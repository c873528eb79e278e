# SPDX-License-Identifier: Apache-2.0
"""A packed cache as the files it was made of, read on the fly.

`PackedCache.open(path)` gives the bytes of any file of the cache; the trainer's own functions read them.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from os import PathLike
from pathlib import Path, PurePath
from typing import BinaryIO

from torch import Tensor, zeros

from inlay.caches.base import MODELS
from inlay.caches.layout import CACHE, FILES, OTHERS, RESTORE, CacheRecord, PackedFile, packed_files
from inlay.caches.sums import REMAKE, opened
from inlay.caches.table import FORMATS, rebuild
from inlay.caches.target import is_part
from inlay.container import open as open_tokens
from inlay.container.tokens import Tokens
from inlay.errors import TokenFileError, UsageError, pick
from inlay.fill import FILLS
from inlay.scale.layout import DATASET
from inlay.scale.reading.dense import MAKERS_CHOICE
from inlay.scale.reading.files import as_file


class PackedCache:
    """The files of a cache, by their paths in it.

    cache = PackedCache("packed/")
    cache.paths                                  # the files with latents
    torch.load(cache.open("latents/clip.pt"))    # as the trainer would

    Args:
        place: the folder that `inlay cache pack` wrote.
        fill: how dropped cells come back, in place of the packer's choice.
    """

    def __init__(self, place: str | Path, *, fill: str = MAKERS_CHOICE) -> None:
        self.root = Path(place)
        text = self._text(CACHE)
        if not (self.root / DATASET).is_file():
            raise TokenFileError(f"{self.root} is not whole: its packing has not ended; run inlay cache pack again")
        self.record = CacheRecord.parse(text, f"{self.root}/{CACHE}")
        if self.record.format not in FORMATS or self.record.model not in MODELS:
            raise TokenFileError(
                f"{self.root}/{CACHE} names {self.record.format!r} of {self.record.model!r}, which this version does "
                "not know; update inlay"
            )
        self.files = {f.path: f for f in packed_files(self._text(FILES), f"{self.root}/{FILES}")}
        pick("fill", fill, {MAKERS_CHOICE: None, **FILLS})
        self.fill = fill

    def __repr__(self) -> str:
        return f"PackedCache({len(self.files):,} files, {self.record.format} of {self.record.model})"

    def _text(self, name: str) -> str:
        try:
            return (self.root / name).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UsageError(f"{self.root} has no {name}; give the folder that inlay cache pack wrote") from error
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise TokenFileError(f"{self.root}/{name} cannot be read: {reason}; {RESTORE}") from error

    @property
    def paths(self) -> list[str]:
        """The files with latents, in the order of the cache."""
        return list(self.files)

    @property
    def others(self) -> Path:
        """The folder of everything else."""
        return self.root / OTHERS

    def other_paths(self) -> Iterator[str]:
        for path in sorted(self.others.rglob("*")):
            if path.is_file() and not is_part(path.name):
                yield path.relative_to(self.others).as_posix()

    def open(self, path: str | PathLike[str]) -> BinaryIO:
        """The bytes of a file of the cache: with latents as they come back, everything else as it was."""
        path = PurePath(path).as_posix()
        if path not in self.files:
            if ".." in PurePath(path).parts or PurePath(path).anchor:
                raise UsageError(f"{path} lies outside the cache; give its path from the folder of the cache on")
            try:
                return io.BytesIO((self.others / path).read_bytes())
            except OSError as error:
                raise UsageError(f"{self.root} holds no file {path}: {error.strerror or error}") from error
        buffer = io.BytesIO()
        self.write(path, buffer)
        buffer.seek(0)
        buffer.name = path
        return buffer

    def write(self, path: str | PathLike[str], out: BinaryIO) -> None:
        """The same, into an open file."""
        packed = self._file(path)
        rebuild(self.rest(path), len(packed.clips), lambda row: self.latents(packed.path, row), out)

    def tokens(self, path: str | PathLike[str], row: int = 0) -> Tokens:
        """The kept cells of a clip."""
        packed = self._file(path)
        if row >= len(packed.clips):
            raise TokenFileError(f"{self.root} holds {len(packed.clips)} clips of {path}, and no clip {row}")
        tokens = open_tokens(as_file(self._read(packed, *packed.clips[row]), f"{packed.shard}: {path}"))
        if tokens.channels != MODELS[self.record.model].channels:
            raise TokenFileError(f"{packed.shard}: {path} has tokens of {tokens.channels} channels; {REMAKE}")
        return tokens

    def latents(self, path: str | PathLike[str], row: int = 0) -> Tensor:
        """[C, T, H, W] float32, filled."""
        tokens = self.tokens(path, row)
        name = tokens.recipe.fill if self.fill == MAKERS_CHOICE else self.fill
        return pick("fill", name, FILLS)(tokens.dense(), tokens.mask[None])[0]  # a clip is one chunk

    def rest(self, path: str | PathLike[str]) -> bytes:
        """The member of the shard with all but the latents."""
        packed = self._file(path)
        return self._read(packed, packed.rest_offset, packed.rest_bytes)

    def check(self, path: str | PathLike[str]) -> None:
        """Read all of a file's parts, and put them together with zeros for latents; what is damaged is raised."""
        clips = [self.tokens(path, row) for row in range(len(self._file(path).clips))]
        blanks = [zeros(()).expand(tokens.channels, *tokens.mask.shape) for tokens in clips]
        with Path(os.devnull).open("wb") as nowhere:
            rebuild(self.rest(path), len(blanks), blanks.__getitem__, nowhere)

    def _file(self, path: str | PathLike[str]) -> PackedFile:
        name = PurePath(path).as_posix()
        if name not in self.files:
            raise UsageError(f"{self.root} holds no latents of {name}")
        return self.files[name]

    def _read(self, packed: PackedFile, offset: int, size: int) -> bytes:
        name = f"{self.root}/{packed.shard}"
        with opened(self.root / packed.shard, name, REMAKE) as file:
            if os.fstat(file.fileno()).st_size < offset + size:
                raise TokenFileError(f"{name} was cut short; {REMAKE}")
            file.seek(offset)
            return file.read(size)
