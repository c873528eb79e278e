# SPDX-License-Identifier: Apache-2.0
"""What lies in the folder of a packed cache. It is a tokenised data set, and all that makes it a cache again.

OUT/
  dataset.json, manifest.jsonl, quarantine.csv, report.json, report.md, job/     as `inlay tokenize` writes them
  shards/shard-00000.tar     KEY.inlay and KEY.json for each clip, KEY.rest for each file of the cache
  cache.json                 format and model, and the mean, deviation and tau that the cache was calibrated to
  files.jsonl                one line for each file of the cache with latents: where its parts lie
  checksums.jsonl            SHA-256 of each file below files/, and of the descriptions; earlier releases wrote none
  files/                     everything else of the cache, as it was
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from inlay.caches.latents import LatentStatistics
from inlay.errors import TokenFileError
from inlay.scale.layout import JOB, VideoRecord, dump_line, known, lines_of

CACHE_VERSION = 1
RESTORE = "run inlay cache pack again to restore it"
CACHE = "cache.json"
FILES = "files.jsonl"
CHECKSUMS = "checksums.jsonl"
OTHERS = "files"
PLAN = f"{JOB}/cache-plan.json"


class OtherVersionError(TokenFileError):
    """Not damaged, but written by a later release."""


def check_inside(name: object) -> None:
    """Refuse the name of a file that leads out of its folder, whatever folder that is: a cache may come from anywhere.

    Names are spelt in one way only: of `files//etc/x` the part below `files/` would lead out.
    """
    if not isinstance(name, str):
        raise TypeError(f"{ascii(name)[:40]} is no name")
    path = PurePath(name)
    if not path.parts or path.anchor or ".." in path.parts or "\0" in name or path.as_posix() != name:
        raise TokenFileError(f"names a file {ascii(name)[:100]}, which leads out of the cache; do not trust it")
    os.fsencode(name)  # half a character, as JSON can spell it, is no name: a ValueError


@dataclass(frozen=True, kw_only=True)
class CacheRecord:
    """`cache.json`."""

    format: str
    model: str
    statistics: LatentStatistics
    version: int = CACHE_VERSION
    checksums: bool = False  # whether there is a list of them: earlier releases wrote none

    @staticmethod
    def parse(text: str, name: str) -> CacheRecord:
        try:
            found = json.loads(text)
            if found["version"] != CACHE_VERSION:
                raise OtherVersionError(
                    f"{name} is of version {found['version']}, this is version {CACHE_VERSION}; update inlay"
                )
            return CacheRecord(
                **known(CacheRecord, found) | {"statistics": LatentStatistics.parse(found["statistics"])}
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TokenFileError(f"{name} is damaged ({error}); {RESTORE}") from error


@dataclass(frozen=True, kw_only=True)
class PackedFile:
    """One line of `files.jsonl`: a file of the cache, and where its parts lie."""

    path: str  # below the cache
    bytes: int
    sha256: str  # of the file as it was
    shard: str
    rest_offset: int  # in the shard
    rest_bytes: int
    clips: tuple[tuple[int, int], ...]  # offset and bytes of the token file of each row

    def __post_init__(self) -> None:
        check_inside(self.path)
        check_inside(self.shard)
        numbers = (self.bytes, self.rest_offset, self.rest_bytes, *(n for clip in self.clips for n in clip))
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("places and sizes are whole numbers")

    @staticmethod
    def parse(line: dict[str, Any]) -> PackedFile:
        return PackedFile(**known(PackedFile, line) | {"clips": tuple((a, b) for a, b in line["clips"])})

    def line(self) -> str:
        return dump_line(vars(self))


@dataclass(frozen=True, kw_only=True)
class Loss:
    """How far latents that were read back are from what they were; adds up over shards."""

    clips: int = 0
    total: float = 0.0  # of the relative errors
    worst: float = 0.0

    def __add__(self, other: Loss) -> Loss:
        return Loss(
            clips=self.clips + other.clips, total=self.total + other.total, worst=max(self.worst, other.worst)
        )  # fmt: skip

    @property
    def mean(self) -> float:
        return self.total / self.clips if self.clips else 0.0


@dataclass(frozen=True, kw_only=True)
class CacheShard:
    """What became of a shard."""

    number: int
    shard: str | None
    bytes: int = 0
    sha256: str = ""
    latent_bytes: int = 0  # of what was packed, before
    videos: tuple[VideoRecord, ...] = ()
    files: tuple[PackedFile, ...] = ()
    refused: tuple[dict[str, str], ...] = ()
    loss: Loss = field(default_factory=Loss)

    def record(self) -> dict[str, Any]:
        """Plain, without the deep copies of `asdict`: there is a line for each clip."""
        lists = {name: [vars(one) for one in getattr(self, name)] for name in ("videos", "files")}
        return vars(self) | lists | {"loss": vars(self.loss)}

    @staticmethod
    def parse(text: str) -> CacheShard:
        given = json.loads(text)
        return CacheShard(
            **known(CacheShard, given)
            | {
                "videos": tuple(VideoRecord(**known(VideoRecord, v)) for v in given["videos"]),
                "files": tuple(PackedFile.parse(f) for f in given["files"]),
                "refused": tuple(given["refused"]),
                "loss": Loss(**given["loss"]),
            }
        )


def packed_files(text: str, name: str) -> Iterator[PackedFile]:
    """The files of `files.jsonl`, in order."""
    for number, line in enumerate(lines_of(text), 1):
        try:
            yield PackedFile.parse(json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise TokenFileError(f"{name}: line {number} is damaged ({error}); {RESTORE}") from error
        except TokenFileError as error:
            raise TokenFileError(f"{name}: line {number} {error}") from error
