# SPDX-License-Identifier: Apache-2.0
"""What lies in the folder of a tokenised data set, and how it is read.

OUT/
  dataset.json               what the set is; written last, so where it is, the set is whole
  manifest.jsonl             one line for each video, in the order of the sources
  quarantine.csv             the sources that could not be tokenised (path, reason); itself a list that can be tokenised
  shards/shard-00000.tar     KEY.inlay and KEY.json for each video; or shard-00000.parquet, one row for each video
  report.json, report.md     how the last run went; the only files with times in them
  job/                       what a resumed job needs: the plan, the sources, and what became of each shard
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from inlay.errors import TokenFileError

LAYOUT_VERSION = 1

DATASET = "dataset.json"
MANIFEST = "manifest.jsonl"
QUARANTINE = "quarantine.csv"
REPORT = "report.json"
REPORT_PAGE = "report.md"
SHARDS = "shards"
JOB = "job"
PLAN = f"{JOB}/plan.json"
SOURCES = f"{JOB}/sources.jsonl"

TAR, PARQUET = "tar", "parquet"
FORMATS = {  # how shards are stored -> what `offset` in the manifest counts
    TAR: "bytes: where the token file begins in the shard, so that it can be fetched alone",
    PARQUET: "rows: which row of the shard it is",
}
_TYPES = {"str": (str,), "int": (int,), "float": (int, float), "str | None": (str, type(None))}  # as JSON brings them
TOKENS_COLUMN = "inlay"  # of a Parquet shard: the bytes of the token file; the other columns are a manifest line's


def shard_name(number: int, format: str) -> str:
    """`shards/shard-00012.tar`, from OUT on."""
    return f"{SHARDS}/shard-{number:05d}.{format}"


def shard_record_name(number: int) -> str:
    """What became of a shard; it is there once the shard is whole."""
    return f"{JOB}/shard-{number:05d}.json"


def video_key(index: int) -> str:
    """A video's name in its shard: its place among the sources. It has no dots, so WebDataset groups by it."""
    return f"{index:08d}"


@dataclass(frozen=True, kw_only=True)
class VideoRecord:
    """One line of the manifest, and the JSON member beside a token file."""

    key: str  # its name in the shard
    source: str  # below the source folder where there is one, else the path or address as it was listed
    sha256: str  # of the source's bytes
    frames: int
    width: int
    height: int
    fps: str  # exactly, as "30000/1001"
    tokens: int
    cells: int
    keep_rate: float
    bytes: int  # of the token file
    shard: str = ""  # from OUT on: "shards/shard-00000.tar"
    offset: int = 0  # see FORMATS
    caption: str | None = None
    damage: str | None = None  # with --keep-going: what was wrong, and how many frames could be read nonetheless

    @staticmethod
    def parse(line: str) -> VideoRecord:
        given = known(VideoRecord, json.loads(line))
        for field in fields(VideoRecord):
            if field.name in given and type(given[field.name]) not in _TYPES[str(field.type)]:
                raise ValueError(f"{field.name} should be {field.type}; found {ascii(given[field.name])[:40]}")
        return VideoRecord(**given)

    def line(self) -> str:
        return dump_line(asdict(self))


@dataclass(frozen=True, kw_only=True)
class LatentMoments:
    """Sums over latent cells, all of them and not only the kept ones; they add up over chunks, videos and shards."""

    count: int = 0  # cells
    sums: tuple[float, ...] = ()  # of each channel
    squares: tuple[float, ...] = ()

    def __add__(self, other: LatentMoments) -> LatentMoments:
        if not self.count or not other.count:
            return other if other.count else self
        return LatentMoments(
            count=self.count + other.count,
            sums=tuple(a + b for a, b in zip(self.sums, other.sums, strict=True)),
            squares=tuple(a + b for a, b in zip(self.squares, other.squares, strict=True)),
        )

    @property
    def mean(self) -> tuple[float, ...]:
        return tuple(total / self.count for total in self.sums)

    @property
    def std(self) -> tuple[float, ...]:
        return tuple(max(s / self.count - m * m, 0.0) ** 0.5 for s, m in zip(self.squares, self.mean, strict=True))


@dataclass(frozen=True, kw_only=True, repr=False)
class DatasetRecord:
    """`dataset.json`."""

    layout_version: int
    format: str  # see FORMATS
    recipe: dict[str, Any]  # inlay.types.Recipe as a dict; tau is null where a budget chose one for each video
    options: dict[str, Any]  # all that the job was asked for
    videos: int
    quarantined: int
    frames: int
    tokens: int
    cells: int
    keep_rate: float
    bytes: int  # of the token files
    latent_count: int
    latent_mean: list[float]  # of each channel, over all cells of all videos
    latent_std: list[float]
    shards: list[dict[str, Any]]  # name, videos, bytes, sha256; in order, those without a video left out

    def __repr__(self) -> str:
        return f"DatasetRecord({self.about()}, {self.bytes:,} bytes, format {self.format})"

    def about(self) -> str:
        """What the set is, in a few words."""
        recipe = self.recipe
        made = f"{self.videos:,} videos by {recipe.get('backbone')}"
        return f"{made}, {self.keep_rate:.1%} of the cells kept, mode {recipe.get('streaming')}"

    @staticmethod
    def parse(text: str, name: str = DATASET) -> DatasetRecord:
        try:
            fields_ = json.loads(text)
            version = fields_["layout_version"]
            if version != LAYOUT_VERSION:
                raise TokenFileError(
                    f"{name} is of layout version {version}, this is version {LAYOUT_VERSION}; update inlay"
                )
            return DatasetRecord(**known(DatasetRecord, fields_))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TokenFileError(
                f"{name} is damaged ({str(error)[:200]}); run inlay tokenize again to restore it"
            ) from error


def manifest_lines(text: str) -> Iterator[VideoRecord]:
    """The videos of `manifest.jsonl`, in order."""
    for number, line in enumerate(lines_of(text), 1):
        try:
            yield VideoRecord.parse(line)
        except (ValueError, TypeError, RecursionError) as error:
            raise TokenFileError(
                f"{MANIFEST}: line {number} is damaged ({str(error)[:200]}); run inlay tokenize again to restore it"
            ) from error


def lines_of(text: str) -> list[str]:
    """Of a list that was read: names and captions may hold what Python takes for other ends of lines."""
    return text.removesuffix("\n").split("\n") if text else []


def known(cls: type, given: dict[str, Any]) -> dict[str, Any]:
    """Those of the values that are fields of a dataclass; a later version may have written more."""
    return {f.name: given[f.name] for f in fields(cls) if f.name in given}


def dump_line(record: dict[str, Any]) -> str:
    """One JSON line, always the same for the same record."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(", ", ": "))


def dump(record: dict[str, Any]) -> str:
    """A JSON file for people and programs, always the same for the same record."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False, indent=2) + "\n"
