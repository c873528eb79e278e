# SPDX-License-Identifier: Apache-2.0
"""List the videos of a data set: a folder, a list, DAVIS, TokenBench, UCF-101, Kinetics-400.

A video is a file; where a study measures, it may also be a folder of numbered pictures, or an array file (.npy, uint8
[T, H, W, 3]).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from inlay.errors import UsageError, VideoError, pick

VIDEO_SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".mpg", ".mpeg", ".ts", ".ogv", ".wmv", ".flv")
RAW_SUFFIXES = (".ivf", ".y4m")  # bare streams: tokenised where they are named, seldom kept as a data set
ARRAY_SUFFIXES = (".npy",)
PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")

DAVIS_VAL = (
    "bike-packing", "blackswan", "bmx-trees", "breakdance", "camel", "car-roundabout", "car-shadow", "cows",
    "dance-twirl", "dog", "dogs-jump", "drift-chicane", "drift-straight", "goat", "gold-fish", "horsejump-high",
    "india", "judo", "kite-surf", "lab-coat", "libby", "loading", "mbike-trick", "motocross-jump",
    "paragliding-launch", "parkour", "pigs", "scooter-black", "shooting", "soapbox",
)  # fmt: skip

Videos = Iterable[tuple[str, Path]]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Names and paths of the videos, in order, and what the split names that is not there."""

    videos: tuple[tuple[str, Path], ...]
    absent: tuple[str, ...] = ()
    split: str = "all"  # the one that was found, where another may have been asked for
    layout: str = "folder"

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(path for _, path in self.videos)


@dataclass(frozen=True, kw_only=True)
class Purpose:
    """What counts as a video, and which layouts are guessed, when videos are listed for this purpose."""

    suffixes: tuple[str, ...]
    frame_folders: bool  # whether a folder of pictures is a video
    layouts: tuple[str, ...]
    kinetics_mark: str  # the table by which Kinetics-400 is known
    split: str | None  # taken where it is there, everything otherwise; None: the layout's own, and one named must exist
    absolute: bool  # paths do not depend on the working directory, and are sorted as paths

    def is_video(self, path: Path) -> bool:
        return path.is_file() or (self.frame_folders and is_frame_folder(path))

    def sort(self, videos: Videos) -> tuple[tuple[str, Path], ...]:
        return tuple(sorted(videos, key=lambda video: video[1]) if self.absolute else sorted(videos))


MEASURING = Purpose(
    suffixes=(*VIDEO_SUFFIXES, *ARRAY_SUFFIXES),
    frame_folders=True,
    layouts=("folder", "list", "davis", "tokenbench", "ucf101", "kinetics400"),
    kinetics_mark="val.csv",
    split=None,
    absolute=False,
)
TRAINING = Purpose(  # a run may be resumed, and a cache used, from another working directory
    suffixes=VIDEO_SUFFIXES,
    frame_folders=False,
    layouts=("folder", "list", "ucf101", "kinetics400"),
    kinetics_mark="train.csv",
    split="train",
    absolute=True,
)


def is_frame_folder(path: Path) -> bool:
    return path.is_dir() and any(p.suffix.lower() in PICTURE_SUFFIXES for p in path.iterdir())


def videos_below(root: Path, purpose: Purpose = MEASURING) -> tuple[tuple[str, Path], ...]:
    """Video files and frame folders at any depth, named by their place below `root` without a suffix."""
    files = [p for p in root.rglob("*") if p.suffix.lower() in purpose.suffixes and p.is_file()]
    found = [(str(p.relative_to(root).with_suffix("")), p) for p in files]
    if purpose.frame_folders:
        folders = {p.parent for p in root.rglob("*") if p.suffix.lower() in PICTURE_SUFFIXES} - {root}
        # what a study drew may lie among the videos, and is none of them
        drawn = {p for p in folders if p.name in ("films", "figures") and (p.parent / "records").is_dir()}
        found += [(str(p.relative_to(root)), p) for p in folders - drawn]
    return purpose.sort(found)


def list_folder(root: Path, split: str, purpose: Purpose) -> Listing:
    """Every video below a folder; below its subfolder named like the split, where there is one."""
    if (root / split).is_dir():
        return Listing(videos=videos_below(root / split, purpose), split=split)
    return Listing(videos=videos_below(root, purpose))


def list_file(path: Path, split: str, purpose: Purpose) -> Listing:
    """A text file with one path a line, relative to its own folder; `#` begins a comment."""
    del split
    return _look_up(_entries(path), path.parent, purpose)


def list_davis(root: Path, split: str, purpose: Purpose) -> Listing:
    """The official tree (JPEGImages, ImageSets), or a folder of videos or frame folders named after the sequences.

    Splits: `all`, `val` (the 30 sequences of 2017), `train` (the others).
    """
    pictures = root / "JPEGImages"
    base = next((p for p in (pictures / "480p", pictures / "Full-Resolution", pictures) if p.is_dir()), root)
    have = {davis_name(name): path for name, path in videos_below(base, purpose)}
    stated = root / "ImageSets" / "2017" / f"{split}.txt"
    if stated.is_file():
        wanted = _entries(stated)
    elif split == "val":
        wanted = list(DAVIS_VAL)
    elif split == "train":
        wanted = [name for name in have if name not in DAVIS_VAL]
    else:
        wanted, split = list(have), "all"
    found = tuple((name, have[name]) for name in wanted if name in have)
    return Listing(videos=found, absent=tuple(n for n in wanted if n not in have), split=split)


def davis_name(name: str) -> str:
    """`davis17_bike-packing` and `480p/bike-packing` are the sequence `bike-packing`."""
    return re.sub(r"^davis(-?20)?1[679][-_]", "", name.rsplit("/", 1)[-1], flags=re.I)


def list_tokenbench(path: Path, split: str, purpose: Purpose) -> Listing:
    """The benchmark's list.txt: sections `### NAME` of file names, frame folders or comma-separated rows.

    The videos are looked for beside the list: under the row's own path, under its section's name, or as one file
    whose name is the row with underscores for slashes, in mp4 too (so the preprocessed copies are found).
    """
    del split
    root = path.parent if path.is_file() else path
    path = path if path.is_file() else path / "list.txt"
    found: list[tuple[str, Path]] = []
    absent: list[str] = []
    section = ""
    for line in _lines(path):
        if line.startswith("###"):
            section = line.strip("# \t")
        elif line.strip() and not line.startswith("#"):
            row = next(csv.reader([line.strip()]))[0]
            place = next((p for p in _tokenbench_places(root, section, row) if purpose.is_video(p)), None)
            if place is None:
                absent.append(row)
            else:
                found.append((f"{section}/{row}".strip("/").removesuffix(place.suffix), place))
    return Listing(videos=tuple(found), absent=tuple(absent))


def _tokenbench_places(root: Path, section: str, row: str) -> list[Path]:
    names = [row, f"{row}.mp4", str(Path(row).with_suffix(".mp4"))]
    names += [name.replace("/", "_") for name in names]
    return [folder / name for folder in (root, root / section) for name in names]


def list_ucf101(root: Path, split: str, purpose: Purpose) -> Listing:
    """Class folders of .avi, divided by trainlist01.txt and testlist01.txt where they are found."""
    videos = root / "UCF-101" if (root / "UCF-101").is_dir() else root
    stated = "test" if split == "val" and purpose.split else split  # it has no list of its own for validation
    lists = _first(root, f"{stated}list01.txt")
    if lists is not None:
        rows = [line.split()[0] for line in _entries(lists)]
        return replace(_look_up(rows, videos, purpose), split=stated)
    return list_folder(videos, split, purpose)


def list_kinetics400(root: Path, split: str, purpose: Purpose) -> Listing:
    """Class folders below train/ and val/, or a CSV that names youtube ids; many of those are gone for good."""
    table = _first(root, f"{split}.csv")
    listing = list_folder(root, split, purpose)
    if table is None:
        return listing
    whole = {path.stem: (name, path) for name, path in listing.videos}
    by_id = {path.stem[:11]: (name, path) for name, path in listing.videos}  # an id has 11 letters, then times follow
    rows = [row for row in csv.DictReader(_lines(table)) if row.get("youtube_id")]
    found = [whole.get(_kinetics_stem(row)) or by_id.get(row["youtube_id"]) for row in rows]
    absent = tuple(row["youtube_id"] for row, video in zip(rows, found, strict=True) if video is None)
    return Listing(videos=purpose.sort({video for video in found if video}), absent=absent, split=split)


def _kinetics_stem(row: dict[str, str]) -> str:
    """How downloaders call the clip of a row."""
    try:
        return f"{row['youtube_id']}_{int(float(row['time_start'])):06d}_{int(float(row['time_end'])):06d}"
    except (KeyError, ValueError, TypeError):
        return row["youtube_id"]


@dataclass(frozen=True, kw_only=True)
class DataLayout:
    """How the videos of a data set lie on a disk."""

    find: Callable[[Path, str, Purpose], Listing]
    split: str  # the one that is measured where none is named
    places: tuple[str, ...] = ("a folder",)  # what it can be given as


LAYOUTS: dict[str, DataLayout] = {
    "folder": DataLayout(find=list_folder, split="all"),
    "list": DataLayout(find=list_file, split="all", places=("a file",)),
    "davis": DataLayout(find=list_davis, split="all"),
    "tokenbench": DataLayout(find=list_tokenbench, split="all", places=("a file", "a folder")),
    "ucf101": DataLayout(find=list_ucf101, split="test"),
    "kinetics400": DataLayout(find=list_kinetics400, split="val"),
}


def find_videos(
    place: str | Path, *, layout: str = "auto", split: str | None = None, purpose: Purpose = MEASURING
) -> Listing:
    """List the videos of a data set; an error where there is none.

    Args:
        place: a folder, a text file that names videos, or, to measure it, a single video.
        layout: one of LAYOUTS, or `auto`.
        split: part of the data set; by default what the purpose or the layout says.
        purpose: MEASURING or TRAINING.
    """
    root = Path(place)
    if not root.exists():
        raise UsageError(f"{root}: no such folder or list; give a folder of videos or a text file that names some")
    if layout == "auto" and _is_one_video(root, purpose):
        where = root.resolve() if purpose.absolute else root
        listing = Listing(videos=((root.stem if root.is_file() else root.name, where),))
    else:
        name = guess_layout(root, purpose) if layout == "auto" else layout
        listing = _listed(root, name, split, purpose)
    if purpose.split is None and split not in (None, listing.split):
        raise UsageError(f"{root}: the layout {listing.layout!r} finds no split {split!r} here; name another, or none")
    if not listing.videos:
        missing = f" ({len(listing.absent)} are named that are not there)" if listing.absent else ""
        asked = split is not None and purpose.split is None  # training always asks, and not every layout is divided
        divided = asked or LAYOUTS[listing.layout].split != "all"
        part = f" for split {(split or purpose.split or listing.split)!r}" if divided else ""
        what = f"no videos{part}{missing}"
        kinds = ", ".join(purpose.suffixes) + (" and pictures" if purpose.frame_folders else "")
        raise VideoError(f"{root}: {what}; looked for {kinds}")
    return listing


def _is_one_video(path: Path, purpose: Purpose) -> bool:
    """A video file, or a folder that holds pictures and nothing else to measure."""
    if path.is_file():
        return path.suffix.lower() in purpose.suffixes
    return purpose.frame_folders and is_frame_folder(path) and not videos_below(path, purpose)


def _listed(root: Path, name: str, split: str | None, purpose: Purpose) -> Listing:
    kind = pick("layout", name, {name: LAYOUTS[name] for name in purpose.layouts})
    given = "a file" if root.is_file() else "a folder"
    if given not in kind.places:
        raise UsageError(f"{root} is {given}, but the layout {name!r} needs {kind.places[0]}")
    where = root.resolve() if purpose.absolute else root
    try:
        return replace(kind.find(where, split or purpose.split or kind.split, purpose), layout=name)
    except OSError as error:
        raise UsageError(f"{root}: cannot be read as {name} ({error}); give a folder or a text file") from error


def guess_layout(root: Path, purpose: Purpose = MEASURING) -> str:
    """Tell which layout a place has, from the files that mark it."""
    if "tokenbench" in purpose.layouts and _is_tokenbench(root if root.is_file() else root / "list.txt"):
        return "tokenbench"
    if root.is_file():
        return "list"
    if "davis" in purpose.layouts and _is_davis(root):
        return "davis"
    if _first(root, "trainlist01.txt") or (root / "UCF-101").is_dir():
        return "ucf101"
    return "kinetics400" if _first(root, purpose.kinetics_mark) else "folder"


def _is_tokenbench(path: Path) -> bool:
    return path.is_file() and "\n### " in "\n" + path.read_text(encoding="utf-8", errors="replace")


def _is_davis(root: Path) -> bool:
    return (root / "JPEGImages").is_dir() or any(p.name.lower().startswith("davis17_") for p in root.iterdir())


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a list of videos ({error}); give a folder, or a text file in UTF-8") from error


def _entries(path: Path) -> list[str]:
    """The lines of a list that are neither empty nor a comment."""
    lines = (line.split("#")[0].strip() for line in _lines(path))
    return [line for line in lines if line]


def _look_up(rows: list[str], root: Path, purpose: Purpose) -> Listing:
    there = {row: purpose.is_video(root / row) for row in rows}
    found = tuple((row.removesuffix(Path(row).suffix), root / row) for row in rows if there[row])
    return Listing(videos=found, absent=tuple(row for row in rows if not there[row]))


def _first(root: Path, name: str) -> Path | None:
    places = (root / name, root / "ucfTrainTestlist" / name, root / "annotations" / name)
    return next((p for p in places if p.is_file()), None)
