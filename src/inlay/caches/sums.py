# SPDX-License-Identifier: Apache-2.0
"""SHA-256 of the files of a packed cache: `checksums.jsonl` has those of what is carried along, of the files that
describe it and of its own lines, `dataset.json` those of the shards.

A cache that was packed by an earlier release has no such list, and only its shards are checked here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from inlay.caches.layout import CHECKSUMS, OTHERS, RESTORE, PackedFile, check_inside
from inlay.errors import TokenFileError
from inlay.scale.layout import DATASET, SHARDS, DatasetRecord, known, lines_of

BLOCK = 1 << 20
REMAKE = "fetch it again, or remove it and run inlay cache pack again"


@dataclass(frozen=True, kw_only=True)
class Checksum:
    """One file."""

    path: str  # below the packed cache
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        check_inside(self.path)
        if type(self.bytes) is not int or not isinstance(self.sha256, str):
            raise TypeError("no size or no checksum")

    @staticmethod
    def of_text(path: str, text: str) -> Checksum:
        data = text.encode()
        return Checksum(path=path, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    @property
    def cure(self) -> str:
        return REMAKE if self.path.startswith((f"{OTHERS}/", f"{SHARDS}/")) else RESTORE

    def check(self, root: Path) -> None:
        """Refuse a file that is gone, or is not what was written."""
        with opened(root / self.path, self.path, self.cure) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        self.compare(found)

    def compare(self, sha256: str) -> None:
        if sha256 != self.sha256:
            raise TokenFileError(f"{self.path}: is damaged, its checksum is another one; {self.cure}")


Checksums = dict[str, Checksum]  # by path


def opened(path: Path, name: str, cure: str) -> BufferedReader:
    """A file of a packed cache, to be read; refused where it is gone, or none."""
    try:
        if path.exists() and not path.is_file():
            raise TokenFileError(f"{name}: is no file; {cure}")
        return path.open("rb")
    except OSError as error:
        raise TokenFileError(f"{name}: cannot be read: {error.strerror or error}; {cure}") from error


def dump_checksums(sums: Iterable[Checksum]) -> str:
    """The list, its own checksum last; ASCII, so that file names that are not valid text survive."""
    text = "".join(line_of(one) for one in sums)
    return text + line_of(Checksum.of_text(CHECKSUMS, text))


def line_of(one: Checksum) -> str:
    return json.dumps(vars(one)) + "\n"


def parse_checksums(text: str) -> Checksums:
    sums, lines = Checksums(), lines_of(text)
    for number, line in enumerate(lines, 1):
        try:
            one = Checksum(**known(Checksum, json.loads(line)))
            sums[one.path] = one
        except (ValueError, TypeError, RecursionError) as error:
            raise TokenFileError(f"{CHECKSUMS}: line {number} is damaged ({error}); {RESTORE}") from error
        except TokenFileError as error:
            raise TokenFileError(f"{CHECKSUMS}: line {number} {error}") from error
    if (own := sums.pop(CHECKSUMS, None)) is None:
        raise TokenFileError(f"{CHECKSUMS}: was cut short; {RESTORE}")
    own.compare(Checksum.of_text(CHECKSUMS, text.removesuffix(f"{lines[-1]}\n")).sha256)
    return sums


def load_checksums(root: Path, *, needed: bool) -> Checksums:
    """Those of what is carried along and of the descriptions; where they are not `needed`, there may be none."""
    try:
        return parse_checksums((root / CHECKSUMS).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError) and not needed:
            return {}
        reason = getattr(error, "strerror", None) or error
        raise TokenFileError(f"{CHECKSUMS}: cannot be read: {reason}; {RESTORE}") from error


def shard_checksums(root: Path, files: Collection[PackedFile]) -> Checksums:
    """Those of the shards; refused where `dataset.json` speaks of other ones, or of other clips than `files`."""
    try:
        dataset = DatasetRecord.parse((root / DATASET).read_text(encoding="utf-8"), DATASET)
        sums = [Checksum(path=s["name"], bytes=s["bytes"], sha256=s["sha256"]) for s in dataset.shards]
        if {one.path for one in sums} != {file.shard for file in files}:
            raise ValueError("it has other shards than files.jsonl")
        if dataset.videos != sum(len(file.clips) for file in files):
            raise ValueError("it has other clips than files.jsonl")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TokenFileError(f"{DATASET}: is damaged ({error}); {RESTORE}") from error
    return {one.path: one for one in sums}


def copy_file(source: BufferedReader, target: Path) -> str:
    """Copy an open file; returns the SHA-256 of what was copied."""
    digest = hashlib.sha256()
    with target.open("wb") as write:
        while block := source.read(BLOCK):
            digest.update(block)
            write.write(block)
    return digest.hexdigest()
