# SPDX-License-Identifier: Apache-2.0
"""A place with videos in, their paths out: any folder, a list, UCF-101, Kinetics-400; and what each file holds."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from inlay.errors import InlayError, UsageError, VideoError, pick
from inlay.train.sampler import ClipEntry

SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".mpg", ".mpeg", ".ts", ".ogv", ".wmv", ".flv")


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Videos of one split, and how many a list named that are not there."""

    paths: tuple[Path, ...]
    absent: int = 0


def list_folder(root: Path, split: str) -> Listing:
    """Every video below a folder; below its subfolder named like the split, where there is one."""
    if (root / split).is_dir():
        root = root / split
    return Listing(paths=tuple(sorted(p for p in root.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())))


def list_file(path: Path, split: str) -> Listing:
    """A text file with one path a line, relative to its own folder; `#` begins a comment."""
    del split
    lines = (line.split("#")[0].strip() for line in _lines(path))
    return _present([path.parent / line for line in lines if line])


def list_ucf101(root: Path, split: str) -> Listing:
    """Class folders of .avi, divided by trainlist01.txt and testlist01.txt where they are found."""
    name = "trainlist01.txt" if split == "train" else "testlist01.txt"
    lists = _first(root, name)
    videos = root / "UCF-101" if (root / "UCF-101").is_dir() else root
    if lists is None:
        return list_folder(videos, split)
    return _present([videos / line.split()[0] for line in _lines(lists) if line.strip()])


def list_kinetics400(root: Path, split: str) -> Listing:
    """Class folders below train/ and val/, or a train.csv that names youtube ids; many of those are gone for good."""
    table = _first(root, f"{split}.csv")
    if table is None:
        return list_folder(root, split)
    have = {p.stem: p for p in list_folder(root, split).paths}
    rows = [row for row in csv.DictReader(_lines(table)) if row.get("youtube_id")]
    found = [have.get(_kinetics_stem(row)) or have.get(row["youtube_id"]) for row in rows]
    return Listing(paths=tuple(sorted({p for p in found if p})), absent=sum(p is None for p in found))


LAYOUTS: dict[str, Callable[[Path, str], Listing]] = {
    "folder": list_folder,
    "list": list_file,
    "ucf101": list_ucf101,
    "kinetics400": list_kinetics400,
}


def find_videos(place: str | Path, *, layout: str = "auto", split: str = "train") -> Listing:
    """The videos of a data set; an error where there is none."""
    root = Path(place)
    if not root.exists():
        raise UsageError(f"{root}: no such folder or list; give a folder of videos or a text file that names some")
    layout = guess_layout(root) if layout == "auto" else layout
    find = pick("layout", layout, LAYOUTS)
    if root.is_file() != (layout == "list"):
        kind = "a file" if root.is_file() else "a folder"
        raise UsageError(
            f"{root} is {kind}, but the layout {layout!r} needs {'a file' if layout == 'list' else 'a folder'}"
        )
    listing = find(root.resolve(), split)  # a run may be resumed, and a cache used, from another working directory
    if not listing.paths:
        missing = f" (the list names {listing.absent} that are not there)" if listing.absent else ""
        raise VideoError(f"{root}: no videos for split {split!r}{missing}; looked for {', '.join(SUFFIXES)}")
    return listing


def guess_layout(root: Path) -> str:
    """Which layout a place has, from the files that mark it."""
    if root.is_file():
        return "list"
    if _first(root, "trainlist01.txt") or (root / "UCF-101").is_dir():
        return "ucf101"
    if _first(root, "train.csv"):
        return "kinetics400"
    return "folder"


def probe(paths: Sequence[Path], *, workers: int = 4) -> tuple[list[ClipEntry], list[str]]:
    """(what each readable file holds, why each other one cannot be read)."""
    with ThreadPoolExecutor(max_workers=workers) as pool:
        found = list(pool.map(_probe_one, paths))
    return [e for e in found if isinstance(e, ClipEntry)], [str(e) for e in found if isinstance(e, InlayError)]


def _probe_one(path: Path) -> ClipEntry | InlayError:
    from inlay.video import open_video

    try:
        with open_video(path) as reader:
            frames = reader.frames or sum(len(chunk) for chunk in reader.chunks(64))
            size = path.stat().st_size
            return ClipEntry(name=str(path), frames=frames, height=reader.height, width=reader.width, bytes=size)
    except InlayError as error:
        return error


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a list of videos ({error}); give a folder, or a text file in UTF-8") from error


def _present(paths: list[Path]) -> Listing:
    there = tuple(p for p in paths if p.is_file())
    return Listing(paths=there, absent=len(paths) - len(there))


def _first(root: Path, name: str) -> Path | None:
    places = (root / name, root / "ucfTrainTestlist" / name, root / "annotations" / name)
    return next((p for p in places if p.is_file()), None)


def _kinetics_stem(row: dict[str, str]) -> str:
    try:
        return f"{row['youtube_id']}_{int(float(row['time_start'])):06d}_{int(float(row['time_end'])):06d}"
    except (KeyError, ValueError):
        return row["youtube_id"]
