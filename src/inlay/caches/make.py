# SPDX-License-Identifier: Apache-2.0
"""Videos to a trainer's cache, by any backbone; called again, it goes on where it was interrupted."""

from __future__ import annotations

import errno
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inlay.caches.base import CacheFormat, NewClip
from inlay.caches.restore import tables_of
from inlay.caches.table import FORMATS
from inlay.errors import InlayError, OutputError, UsageError, VideoError, check_number, pick
from inlay.files import write_atomic, writing
from inlay.scale.feed import fetched
from inlay.scale.layout import dump, dump_line, lines_of
from inlay.scale.sources import SUFFIXES, SourceItem, find_sources
from inlay.scale.store import Place, as_text, open_store
from inlay.tokenizer import Tokenizer
from inlay.video import Geometry, open_video
from inlay.video.frames import Video, join_videos

NOTES = ".inlay"  # folder in OUT that no trainer looks at
SETTINGS, MADE, QUARANTINE = f"{NOTES}/make.json", f"{NOTES}/made.jsonl", f"{NOTES}/quarantine.jsonl"
LOCK = f"{NOTES}/lock"
TEXTS = (".safetensors", ".pt", ".npy")


@dataclass(frozen=True, kw_only=True)
class MakeConfig:
    """What a cache that is made from videos is to be."""

    format: str = field(metadata={"help": "of the cache"})
    frames: int = field(default=81, metadata={"help": "of a clip at most: the first ones of each video"})
    size: str = field(default="keep", metadata={"help": "resize and crop"})
    text: Place | None = field(default=None, metadata={"help": "folder of text embeddings, named like the videos"})

    def __post_init__(self) -> None:
        if self.text is not None:  # the settings of a job are kept as text
            object.__setattr__(self, "text", as_text("text", self.text))
        form = pick("cache format", self.format, FORMATS)
        Geometry.parse(self.size)
        check_number("frames", self.frames, "how many a clip has, 1 or more", lambda n: n >= 1, whole=True)
        if form.needs_text and self.text is None:
            raise UsageError(
                f"{form.about} keeps the text in the same file as the latents; give a folder of embeddings [L, D], "
                f"named like the videos, as {', '.join(TEXTS)}",
                about="text",
            )
        if self.text is not None and not Path(self.text).is_dir():
            raise UsageError(f"{self.text}: no such folder of text embeddings", about="text")


@dataclass(frozen=True, kw_only=True, repr=False)
class MakeResult:
    """The cache that was made."""

    source: str
    out: str
    format: str
    backbone: str
    clips: int
    files: int
    refused: tuple[dict[str, str], ...]
    clips_before: int
    bytes: int
    seconds: float
    note: str | None  # what the trainer would stumble over

    def __repr__(self) -> str:
        refused = f", {len(self.refused):,} videos refused" if self.refused else ""
        made = f"{self.out}: {self.clips:,} clips, {self.format}, latents of {self.backbone}"
        return f"MakeResult({made}, {self.bytes:,} bytes{refused}; {self.seconds:.1f} s)"

    def record(self) -> dict[str, Any]:
        return vars(self) | {"refused": list(self.refused)}

    def rows(self) -> list[tuple[str, str]]:
        rows = [
            ("cache", f"{self.out}, {self.format}, latents of {self.backbone}"),
            ("clips", f"{self.clips:,} in {self.files:,} files, {len(self.refused):,} videos refused"),
            ("bytes", f"{self.bytes:,}"),
            ("took", f"{self.seconds:.1f} s"),
        ]
        if self.clips_before:
            rows.append(("before", f"{self.clips_before:,} clips were there from earlier runs"))
        return rows + [("refused", f"{entry['path']}: {entry['reason']}") for entry in self.refused[:10]]


def make_cache(
    source: Place,
    out: Place,
    config: MakeConfig,
    tokenizer: Tokenizer,
    *,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> MakeResult:
    """Encode the first frames of each video into a cache; one clip in memory at a time."""
    source, out = as_text("source", source), as_text("out", out)
    start, root, form = time.perf_counter(), Path(out), FORMATS[config.format]
    items = find_sources(source)
    if form.flat:  # of robots, every camera has an episode 0
        items = [
            replace(item, name=item.name.replace("/", "_")) if item.listed and item.offset is None else item
            for item in items
        ]
    check_names(items, form)
    store = open_store(out)
    store.prepare()
    agree(root, config, tokenizer, items)
    with store.locked(LOCK):
        return _make(start, source, out, items, config, tokenizer, watch)


def _make(
    start: float, source: str, out: str, items: list[SourceItem], config: MakeConfig, tokenizer: Tokenizer,
    watch: Callable[[int, int], None],
) -> MakeResult:  # fmt: skip
    root, form = Path(out), FORMATS[config.format]
    made = {line["number"]: line for line in _lines(root / MADE) if (root / line["path"]).is_file()}
    before = sum(len(line["names"]) for line in made.values())
    refused: list[dict[str, str]] = []
    groups = [items[at : at + form.clips_per_file] for at in range(0, len(items), form.clips_per_file)]
    for number, group in enumerate(groups):
        watch(number, len(groups))
        if number in made and is_made(group, made[number], config, form, tokenizer):
            refused += made[number]["refused"]
            continue
        line = make_file(root, number, group, config, form, tokenizer)
        if line["path"]:
            made[number] = line
            with writing(root / MADE), (root / MADE).open("a", encoding="utf-8") as file:
                file.write(dump_line(line) + "\n")
        refused += line["refused"]
    watch(len(groups), len(groups))
    if not made:
        (root / SETTINGS).unlink()  # other ones may do better
        raise VideoError(
            f"none of the {len(items)} videos could be encoded; {refused[0]['path']} {refused[0]['reason']}"
        )
    write_atomic(root / QUARANTINE, "".join(dump_line(r) + "\n" for r in refused).encode())
    note = form.stranger(tokenizer.spec.name, tokenizer.spec.channels)
    return MakeResult(
        source=source, out=out, format=form.name, backbone=tokenizer.spec.name,
        clips=sum(len(line["names"]) for line in made.values()), files=len(made), refused=tuple(refused),
        clips_before=before, bytes=sum((root / line["path"]).stat().st_size for line in made.values()),
        seconds=time.perf_counter() - start, note=note or form.mixed([root / line["path"] for line in made.values()]),
    )  # fmt: skip


def is_made(
    items: list[SourceItem], line: dict[str, Any], config: MakeConfig, form: CacheFormat, tokenizer: Tokenizer
) -> bool:
    """Whether a file stays: its videos are those it was made of, and what was refused is no better by now."""
    if line.get("versions", versions_of(items)) != versions_of(items):
        return False
    names = {entry["path"] for entry in line["refused"]}
    for item in items:
        if item.name in names:
            with suppress(InlayError):
                encode_clip(item, config, form, tokenizer)
                return False
    return True


def versions_of(items: list[SourceItem]) -> list[str]:
    return [item.version for item in items]


def agree(root: Path, config: MakeConfig, tokenizer: Tokenizer, items: list[SourceItem]) -> None:
    """Refuse to go on with other settings or videos: the cache would be neither one nor the other."""
    spec = tokenizer.spec
    now = asdict(config) | {"backbone": spec.name, "weight_hash": spec.weight_hash, "videos": [i.name for i in items]}
    path = root / SETTINGS
    if not path.is_file():
        if there := FORMATS[config.format].find(root):
            raise UsageError(
                f"{root} holds latents that this command did not make ({there[0].relative_to(root)}), and would "
                "write over them; give a folder of its own"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, dump(now).encode())
        return
    try:
        begun = json.loads(path.read_text(encoding="utf-8"))
        changed = [name for name, value in now.items() if begun.get(name) != value]
    except (ValueError, AttributeError) as error:
        raise UsageError(f"{path} is damaged ({error}); give another OUT, or remove this one") from error
    if changed:
        raise UsageError(
            f"{root} was begun with other settings ({', '.join(changed)}); give the same, or another OUT",
            about=tuple(changed),
        )


def check_names(items: list[SourceItem], form: CacheFormat) -> None:
    """Refuse videos of one name: their files would overwrite one another, or both would get the text of one."""
    found: dict[str, str] = {}
    for item in items:
        name = Path(name_of(item)).name if form.flat else name_of(item)
        if name in found:
            flat = ", which knows no folders" * form.flat
            raise UsageError(
                f"{found[name]} and {item.name} would both be {name!r} in this format{flat}; rename one, or make a "
                "cache of each"
            )
        found[name] = item.name


def make_file(
    root: Path, number: int, items: list[SourceItem], config: MakeConfig, form: CacheFormat, tokenizer: Tokenizer
) -> dict[str, Any]:
    """One file of the cache; what is wrong with a video ends in `refused`."""
    clips: list[NewClip] = []
    refused: list[dict[str, str]] = []
    for item in items:
        try:
            clips.append(encode_clip(item, config, form, tokenizer))
        except InlayError as error:
            refused.append({"path": item.name, "reason": item.reason(error)})
    path = ""
    try:
        path = form.write(root, number, clips).relative_to(root).as_posix() if clips else ""
    except OutputError as error:
        if getattr(error.__cause__, "errno", None) != errno.ENAMETOOLONG:
            raise
        reason = "has a name too long for a file of this format; give it a shorter one"
        refused += [{"path": item.name, "reason": reason} for item in items]
        clips = []
    names = [clip.name for clip in clips]
    return {"number": number, "path": path, "names": names, "refused": refused, "versions": versions_of(items)}


@torch.inference_mode()
def encode_clip(item: SourceItem, config: MakeConfig, form: CacheFormat, tokenizer: Tokenizer) -> NewClip:
    """The latents of a video's first frames."""
    spec, name = tokenizer.spec, name_of(item)
    text = text_of(name, config.text) if form.takes_text else None  # before the work
    video, width, height = read_frames(item, config)
    step = max(form.frame_step, spec.time_stride)
    frames = 1 + (min(len(video), config.frames) - 1) // step * step
    side = max(16, spec.space_stride) if form.name.startswith("musubi") else spec.space_stride
    if video.width % side or video.height % side:
        raise VideoError(
            f"is {video.width}x{video.height}, and {form.name} takes multiples of {side}; give a size WxH of such"
        )
    z_BCTHW = tokenizer.encode_pixels(tokenizer.pixels([video[:frames]])).float()
    mean, std = tables_of(tokenizer, z_BCTHW)
    return NewClip(
        name=name, z_CTHW=z_BCTHW[0].cpu(), raw_CTHW=(z_BCTHW * std + mean)[0].cpu(), width=width, height=height,
        frames=frames, fps=float(video.fps), caption=item.caption or "", text=text,
    )  # fmt: skip


def name_of(item: SourceItem) -> str:
    """What a clip is called: the video below its folder, without the suffix of a video; where a list or a tar has a
    path that would lead out of the cache, the last part of it."""
    name = item.name if item.offset is None else re.sub(r"(?i)\.tar!", ".tar/", item.name, count=1)
    path = Path(name)
    path = Path(path.name) if path.anchor or ".." in path.parts else path
    return str(path.with_suffix("") if path.suffix.lower() in SUFFIXES else path)


def read_frames(item: SourceItem, config: MakeConfig) -> tuple[Video, int, int]:
    """The first frames at the size asked for, and the size of the source."""
    with fetched(item) as found:
        frames = min(config.frames, found.frames or config.frames)
        with open_video(found.media, frames=1) as reader:
            width, height = reader.width, reader.height
        if not isinstance(found.media, str):
            found.media.seek(0)
        with open_video(found.media, size=config.size, start=found.start, frames=frames) as reader:
            return join_videos(list(reader.chunks())), width, height


def text_of(name: str, folder: Place | None) -> Tensor | None:
    """[L, D] the text embedding of a video."""
    if folder is None:
        return None
    path = next((p for p in (Path(folder) / f"{name}{suffix}" for suffix in TEXTS) if p.is_file()), None)
    if path is None:
        raise UsageError(f"has no text embedding; looked for {Path(folder).name}/{name} with {', '.join(TEXTS)}")
    try:
        found = _load_text(path)
    except (OSError, ValueError, RuntimeError, EOFError) as error:
        raise UsageError(f"{path.name}: is no tensor of text ({type(error).__name__}); make it again") from error
    if found.ndim == 3 and len(found) == 1:
        found = found[0]
    if found.ndim != 2 or not found.is_floating_point():
        raise UsageError(f"{path.name}: a text embedding is [L, D]; this one is {list(found.shape)}")
    return found


def _load_text(path: Path) -> Tensor:
    if path.suffix == ".npy":
        import numpy as np

        return torch.from_numpy(np.load(path, allow_pickle=False))
    if path.suffix == ".pt":
        found = torch.load(path, map_location="cpu", weights_only=True)
    else:
        from safetensors.torch import load_file

        found = load_file(path)
    while isinstance(found, dict | list | tuple):
        found = next(iter(found.values() if isinstance(found, dict) else found), None)
    if not isinstance(found, Tensor):
        raise ValueError("no tensor")
    return found


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a job that may have been killed while writing the last one."""
    if not path.is_file():
        return
    for line in lines_of(path.read_text(encoding="utf-8")):
        try:
            yield json.loads(line)
        except ValueError:
            continue
