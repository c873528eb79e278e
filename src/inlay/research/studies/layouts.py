# SPDX-License-Identifier: Apache-2.0
"""A place with videos in, the files of its test split out: DAVIS, TokenBench, UCF-101, Kinetics-400, a folder, a list.

A video is a file, a folder of numbered pictures, or an array file (.npy, uint8 [T, H, W, 3]).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from inlay.errors import UsageError, VideoError, pick

VIDEO = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".mpg", ".mpeg", ".ts", ".ogv", ".wmv", ".flv", ".npy")
PICTURE = (".jpg", ".jpeg", ".png", ".webp")

DAVIS_VAL = (
    "bike-packing", "blackswan", "bmx-trees", "breakdance", "camel", "car-roundabout", "car-shadow", "cows",
    "dance-twirl", "dog", "dogs-jump", "drift-chicane", "drift-straight", "goat", "gold-fish", "horsejump-high",
    "india", "judo", "kite-surf", "lab-coat", "libby", "loading", "mbike-trick", "motocross-jump",
    "paragliding-launch", "parkour", "pigs", "scooter-black", "shooting", "soapbox",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Names and places of the videos, in order, and what the split names that is not there."""

    videos: tuple[tuple[str, Path], ...]
    absent: tuple[str, ...] = ()
    split: str = "all"  # the one that was found, where another may have been asked for


def is_frame_folder(path: Path) -> bool:
    return path.is_dir() and any(p.suffix.lower() in PICTURE for p in path.iterdir())


def is_one_video(path: Path) -> bool:
    """A video file, or a folder that holds pictures and nothing else to measure."""
    if path.is_file():
        return path.suffix.lower() in VIDEO
    return is_frame_folder(path) and not videos_below(path)


def videos_below(root: Path) -> list[tuple[str, Path]]:
    """Video files and frame folders at any depth, named by their place below `root` without a suffix."""
    files = [p for p in root.rglob("*") if p.suffix.lower() in VIDEO and p.is_file()]
    folders = {p.parent for p in root.rglob("*") if p.suffix.lower() in PICTURE} - {root}
    folders = {p for p in folders if not _is_result(p)}
    found = [(str(p.relative_to(root).with_suffix("")), p) for p in files]
    return sorted(found + [(str(p.relative_to(root)), p) for p in folders])


def _is_result(folder: Path) -> bool:
    """Whether a study drew these pictures: its output may lie among the videos, and is none of them."""
    return folder.name in ("films", "figures") and (folder.parent / "records").is_dir()


def list_folder(root: Path, split: str) -> Listing:
    """Every video below a folder; below its subfolder named like the split, where there is one."""
    if (root / split).is_dir():
        return Listing(videos=tuple(videos_below(root / split)), split=split)
    return Listing(videos=tuple(videos_below(root)))


def list_file(path: Path, split: str) -> Listing:
    """A text file with one path a line, relative to its own folder; `#` begins a comment."""
    del split
    return _look_up(_lines(path), [path.parent])


def list_davis(root: Path, split: str) -> Listing:
    """The official tree (JPEGImages, ImageSets), or a folder of videos or frame folders named after the sequences.

    Splits: `all`, `val` (the 30 sequences of 2017), `train` (the others).
    """
    pictures = root / "JPEGImages"
    base = next((p for p in (pictures / "480p", pictures / "Full-Resolution", pictures) if p.is_dir()), root)
    have = {davis_name(name): path for name, path in videos_below(base)}
    stated = root / "ImageSets" / "2017" / f"{split}.txt"
    if stated.is_file():
        wanted: Iterable[str] = _lines(stated)
    elif split == "val":
        wanted = DAVIS_VAL
    elif split == "train":
        wanted = [name for name in have if name not in DAVIS_VAL]
    else:
        wanted, split = list(have), "all"
    wanted = list(wanted)
    found = tuple((name, have[name]) for name in wanted if name in have)
    return Listing(videos=found, absent=tuple(n for n in wanted if n not in have), split=split)


def davis_name(name: str) -> str:
    """`davis17_bike-packing` and `480p/bike-packing` are the sequence `bike-packing`."""
    return re.sub(r"^davis(-?20)?1[679][-_]", "", name.rsplit("/", 1)[-1], flags=re.I)


def list_tokenbench(path: Path, split: str) -> Listing:
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
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("###"):
            section = line.strip("# \t")
        elif line.strip() and not line.startswith("#"):
            row = next(csv.reader([line.strip()]))[0]
            place = next((p for p in _tokenbench_places(root, section, row) if _is_video(p)), None)
            if place is None:
                absent.append(row)
            else:
                found.append((f"{section}/{row}".strip("/").removesuffix(place.suffix), place))
    return Listing(videos=tuple(found), absent=tuple(absent))


def _tokenbench_places(root: Path, section: str, row: str) -> list[Path]:
    names = [row, f"{row}.mp4", str(Path(row).with_suffix(".mp4"))]
    names += [name.replace("/", "_") for name in names]
    return [folder / name for folder in (root, root / section) for name in names]


def list_ucf101(root: Path, split: str) -> Listing:
    """Class folders of .avi, divided by trainlist01.txt and testlist01.txt where they are found."""
    lists = _first(root, f"{split}list01.txt")
    videos = root / "UCF-101" if (root / "UCF-101").is_dir() else root
    if lists is None:
        return list_folder(videos, split)
    return replace(_look_up([line.split()[0] for line in _lines(lists)], [videos]), split=split)


def list_kinetics400(root: Path, split: str) -> Listing:
    """Class folders below val/, or a val.csv that names youtube ids; many of those are gone for good."""
    table = _first(root, f"{split}.csv")
    listing = list_folder(root, split)
    if table is None:
        return listing
    have = {path.stem[:11]: (name, path) for name, path in listing.videos}  # an id has 11 letters, then times follow
    with table.open(newline="", encoding="utf-8") as file:
        ids = [row["youtube_id"] for row in csv.DictReader(file) if row.get("youtube_id")]
    found = tuple(sorted({have[i] for i in ids if i in have}))
    return Listing(videos=found, absent=tuple(i for i in ids if i not in have), split=split)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the videos of a data set lie on a disk."""

    find: Callable[[Path, str], Listing]
    split: str  # the one used where none is named


LAYOUTS: dict[str, Layout] = {
    "folder": Layout(find=list_folder, split="all"),
    "list": Layout(find=list_file, split="all"),
    "davis": Layout(find=list_davis, split="all"),
    "tokenbench": Layout(find=list_tokenbench, split="all"),
    "ucf101": Layout(find=list_ucf101, split="test"),
    "kinetics400": Layout(find=list_kinetics400, split="val"),
}


def find_videos(place: str | Path, *, layout: str = "auto", split: str | None = None) -> tuple[str, str, Listing]:
    """(layout, split, the videos); an error where there is none, or where the split that is asked for is not there."""
    root = Path(place)
    if not root.exists():
        raise UsageError(f"{root}: no such folder or list; give a folder of videos or a text file that names some")
    if layout == "auto" and is_one_video(root):
        name, listing = "folder", Listing(videos=((root.stem if root.is_file() else root.name, root),))
    else:
        name = guess_layout(root) if layout == "auto" else layout
        listing = _listed(root, name, split)
    if split not in (None, listing.split):
        raise UsageError(f"{root}: the layout {name!r} finds no split {split!r} here; leave --split out")
    if not listing.videos:
        missing = f" ({len(listing.absent)} are named that are not there)" if listing.absent else ""
        what = f"no videos for split {listing.split!r}{missing}"
        raise VideoError(f"{root}: {what}; looked for {', '.join(VIDEO)} and pictures")
    return name, listing.split, listing


def _listed(root: Path, name: str, split: str | None) -> Listing:
    kind = pick("layout", name, LAYOUTS)
    if name == "list" and root.is_dir():
        raise UsageError(f"{root} is a folder, but the layout 'list' needs a text file")
    if name not in ("list", "tokenbench") and root.is_file():
        raise UsageError(f"{root} is a file, but the layout {name!r} needs a folder")
    try:
        return kind.find(root, split or kind.split)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{root}: cannot be read as {name} ({error}); give a folder or a text file") from error


def guess_layout(root: Path) -> str:
    """Which layout a place has, from the files that mark it."""
    if root.is_file():
        return "tokenbench" if "\n### " in "\n" + root.read_text(encoding="utf-8", errors="replace") else "list"
    if (root / "list.txt").is_file() and guess_layout(root / "list.txt") == "tokenbench":
        return "tokenbench"
    if (root / "JPEGImages").is_dir() or any(p.name.lower().startswith("davis17_") for p in root.iterdir()):
        return "davis"
    if _first(root, "trainlist01.txt") or (root / "UCF-101").is_dir():
        return "ucf101"
    return "kinetics400" if _first(root, "val.csv") else "folder"


def _lines(path: Path) -> list[str]:
    lines = (line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def _is_video(path: Path) -> bool:
    return path.is_file() or is_frame_folder(path)


def _look_up(rows: list[str], roots: list[Path]) -> Listing:
    found: list[tuple[str, Path]] = []
    absent: list[str] = []
    for row in dict.fromkeys(rows):  # one that is named twice would count twice
        place = next((root / row for root in roots if _is_video(root / row)), None)
        if place is None:
            absent.append(row)
        else:
            found.append((row.removesuffix(place.suffix), place))
    return Listing(videos=tuple(found), absent=tuple(absent))


def _first(root: Path, name: str) -> Path | None:
    places = (root / name, root / "ucfTrainTestlist" / name, root / "annotations" / name)
    return next((p for p in places if p.is_file()), None)
