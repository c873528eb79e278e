# SPDX-License-Identifier: Apache-2.0
"""A packed cache as the files it was made of, read on the fly.

`PackedCache.open(path)` gives the bytes of any file of the cache; the trainer's own functions read them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from inlay.caches.layout import CACHE, FILES, OTHERS, CacheRecord, PackedFile, packed_files
from inlay.caches.rest import unpack_rest
from inlay.caches.table import BUILDERS, rebuild
from inlay.container import open as open_tokens
from inlay.container.tokens import Tokens
from inlay.errors import TokenFileError, UsageError, pick
from inlay.files import PART
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
        self.files = {f.path: f for f in packed_files(self._text(FILES), f"{self.root}/{FILES}")}
        pick("fill", fill, {MAKERS_CHOICE: None, **FILLS})
        self.fill = fill

    def __repr__(self) -> str:
        return f"PackedCache({len(self.files):,} files, {self.record.format} of {self.record.model})"

    def _text(self, name: str) -> str:
        try:
            return (self.root / name).read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise UsageError(f"{self.root} has no {name}; give the folder that inlay cache pack wrote") from error
        except UnicodeDecodeError as error:
            raise TokenFileError(f"{self.root}/{name} is damaged; run inlay cache pack again to restore it") from error

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
            if path.is_file() and not path.name.endswith(PART):
                yield path.relative_to(self.others).as_posix()

    def open(self, path: str) -> BinaryIO:
        """The bytes of a file of the cache: with latents as they come back, everything else as it was."""
        if path not in self.files:
            try:
                return io.BytesIO((self.others / path).read_bytes())
            except OSError as error:
                raise UsageError(f"{self.root} holds no file {path}: {error.strerror or error}") from error
        buffer = io.BytesIO()
        self.write(path, buffer)
        buffer.seek(0)
        buffer.name = path
        return buffer

    def write(self, path: str, out: BinaryIO) -> None:
        """The same, into an open file."""
        packed = self._file(path)
        rebuild(self.rest(path), lambda row: self.latents(packed.path, row), out)

    def tokens(self, path: str, row: int = 0) -> Tokens:
        """The kept cells of a clip."""
        packed = self._file(path)
        return open_tokens(as_file(self._read(packed, *packed.clips[row]), f"{packed.shard}: {path}"))

    def latents(self, path: str, row: int = 0) -> Tensor:
        """[C, T, H, W] float32, filled."""
        tokens = self.tokens(path, row)
        name = tokens.recipe.fill if self.fill == MAKERS_CHOICE else self.fill
        return pick("fill", name, FILLS)(tokens.dense(), tokens.mask[None])[0]  # a clip is one chunk

    def rest(self, path: str) -> bytes:
        """The member of the shard with all but the latents."""
        packed = self._file(path)
        return self._read(packed, packed.rest_offset, packed.rest_bytes)

    def check(self, path: str) -> None:
        """Read all of a file's parts; what is damaged is raised."""
        head, _ = unpack_rest(self.rest(path))
        pick("kind of cache file", str(head.get("kind")), BUILDERS)
        for row in range(len(self._file(path).clips)):
            self.tokens(path, row)

    def _file(self, path: str) -> PackedFile:
        if path not in self.files:
            raise UsageError(f"{self.root} holds no latents of {path}")
        return self.files[path]

    def _read(self, packed: PackedFile, offset: int, size: int) -> bytes:
        try:
            with (self.root / packed.shard).open("rb") as file:
                file.seek(offset)
                data = file.read(size)
        except OSError as error:
            raise TokenFileError(f"{self.root}/{packed.shard}: {error.strerror or error}; fetch it again") from error
        if len(data) != size:
            raise TokenFileError(f"{self.root}/{packed.shard} was cut short; fetch it again")
        return data
