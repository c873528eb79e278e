# SPDX-License-Identifier: Apache-2.0
"""Clips read from files as they are drawn, and the loader that cuts batches ahead of time.

Legend: B batch, C colours, T frames, H W height and width.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.errors import InlayError, VideoError
from inlay.files import write_atomic
from inlay.train.checkpoint import explained
from inlay.train.sampler import ClipEntry, Draw
from inlay.video.listing import TRAINING, find_videos


class ClipSource(Protocol):
    """A data set: what it holds, and a clip cut as a draw says. Cutting must be a pure function of the draw."""

    entries: tuple[ClipEntry, ...]
    weights: tuple[float, ...] | None  # how often each entry is drawn; None: equally often, in shuffled rounds
    workers: int  # threads that cut clips ahead of time; 0 where cutting is cheap

    @property
    def problems(self) -> list[str]:
        """A line on each video that turned out to be unreadable; grows as clips are cut."""
        ...

    def cut(self, draw: Draw) -> Tensor:
        """[3, T, size, size] float32 in [-1, 1]."""
        ...


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The clips of one step (or a part of one), and the draws they were cut by."""

    pixels: Tensor  # [B, 3, T, H, W] float32 in [-1, 1]
    draws: tuple[Draw, ...]

    def parts(self, count: int) -> Iterator[Batch]:
        """Equal parts, in order."""
        size = len(self.draws) // count
        for i in range(0, len(self.draws), size):
            yield Batch(pixels=self.pixels[i : i + size], draws=self.draws[i : i + size])


class FileClips:
    """Clips decoded from their files when they are drawn: for data sets larger than the memory."""

    def __init__(self, entries: Sequence[ClipEntry], *, workers: int = 2, problems: list[str] | None = None) -> None:
        self.entries, self.workers = tuple(entries), workers
        self.problems = [] if problems is None else problems
        self.weights: tuple[float, ...] | None = None

    @staticmethod
    def find(
        place: str | Path, *, layout: str = "auto", split: str = "train", workers: int = 2
    ) -> tuple[FileClips, list[str]]:
        """The videos of a folder, list or known layout, and a line on each that cannot be used."""
        listing = find_videos(place, layout=layout, split=split, purpose=TRAINING)
        entries, problems = probe(listing.paths, workers=workers)
        if not entries:
            raise VideoError(f"{place}: none of {len(listing.paths)} videos can be read; the first: {problems[0]}")
        if listing.absent:
            problems.append(f"{len(listing.absent)} videos of the list are not there")
        return FileClips(entries, workers=workers), problems

    def split(self, held_out: int, *, shortest: int = 1) -> tuple[FileClips, FileClips]:
        """(the rest, `held_out` videos spread over the list): for validation where no other videos are given.

        Only videos of at least `shortest` frames are held out.
        """
        long = [i for i, e in enumerate(self.entries) if e.frames >= shortest]
        if not 0 < held_out < len(long):
            raise VideoError(
                f"cannot hold out {held_out} of {len(long)} videos for validation; give a folder of others, or fewer"
            )
        chosen = {long[k * len(long) // held_out] for k in range(held_out)}
        rest = [e for i, e in enumerate(self.entries) if i not in chosen]
        held = [self.entries[i] for i in sorted(chosen)]
        return self.of(rest), self.of(held)

    def of(self, entries: Sequence[ClipEntry]) -> FileClips:
        """Other videos, read in the same way, their problems noted in the same place."""
        return FileClips(entries, workers=self.workers, problems=self.problems)

    def cut(self, draw: Draw) -> Tensor:
        """The clip; where its video cannot be read, one of the next video that can: a long run outlives a bad file.

        What is read depends on the draw and the files alone, never on what was met before.
        """
        first: VideoError | None = None
        for instead in self._and_others(draw):
            try:
                return self._cut(instead)
            except VideoError as error:
                first = first or error
                self._note(self.entries[instead.clip].name, error)
        assert first is not None, "the draw itself was tried"
        raise first

    def _and_others(self, draw: Draw) -> Iterator[Draw]:
        yield draw
        n = len(self.entries)
        for clip in ((draw.clip + k) % n for k in range(1, n)):
            spare = self.entries[clip].frames - draw.span
            if spare >= 0:
                yield replace(draw, clip=clip, start=min(draw.start, spare))

    def _note(self, name: str, error: VideoError) -> None:
        if not any(line.startswith(f"{name}:") for line in self.problems):
            reason = str(error).removeprefix(f"{name}: ").split("; ")[0]
            self.problems.append(f"{name}: {reason}; clips of the next video take its place")

    def _cut(self, draw: Draw) -> Tensor:
        from inlay.video import read_video

        entry = self.entries[draw.clip]
        video = read_video(entry.name, start=draw.start, frames=draw.frames, interval=draw.interval)
        if len(video) < draw.frames:
            raise VideoError(
                f"{entry.name}: {len(video)} frames could be read from frame {draw.start} at interval {draw.interval}, "
                f"{draw.frames} were promised; the file is damaged or has changed"
            )
        return cut_rgb(video.frames, draw)


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


def cut_all(source: ClipSource, draws: Sequence[Draw]) -> list[Tensor]:
    """Every draw's clip; together where the source knows how (`cut_many`), one by one otherwise."""
    together: Callable[[Sequence[Draw]], list[Tensor]] | None = getattr(source, "cut_many", None)
    return together(draws) if together is not None and draws else [source.cut(d) for d in draws]


def cut_rgb(frames_THWC: Tensor, draw: Draw) -> Tensor:
    """[3, T, size, size] from uint8 frames that are already the draw's own."""
    top, left, side = draw.window(frames_THWC.shape[1], frames_THWC.shape[2])
    x_TCHW = frames_THWC[:, top : top + side, left : left + side].permute(0, 3, 1, 2).float().div(127.5).sub(1)
    return finish(x_TCHW, draw)


def finish(x_TCHW: Tensor, draw: Draw) -> Tensor:
    """The size, the mirror and the direction of a draw; [T, 3, side, side] to [3, T, size, size]."""
    if x_TCHW.shape[-1] != draw.size:
        resize = resizing(x_TCHW.shape[-1], draw.size, x_TCHW.device)
        x_TCHW = (resize @ x_TCHW @ resize.T).clamp(-1, 1)
    if draw.flip:
        x_TCHW = x_TCHW.flip(-1)
    if draw.reverse:
        x_TCHW = x_TCHW.flip(0)
    return x_TCHW.transpose(0, 1).contiguous()


@lru_cache(maxsize=1024)
def resizing(side: int, size: int, device: torch.device) -> Tensor:
    """[size, side]: antialiased bicubic resampling of one axis; two products with it are far quicker than a kernel."""
    whole = torch.eye(side)[None, None]
    return F.interpolate(whole, size=(size, side), mode="bicubic", antialias=True)[0, 0].to(device)


class Loader:
    """Batches for steps first, first + 1, ...; where the source has workers, the next ones are cut meanwhile."""

    def __init__(
        self,
        source: ClipSource,
        draws_of: Callable[[int], Sequence[Draw]],
        *,
        device: torch.device | str = "cpu",
        ahead: int = 2,
    ) -> None:
        self.source, self.draws_of, self.device = source, draws_of, torch.device(device)
        self.ahead = ahead if source.workers else 0

    def batches(self, first: int, last: int) -> Iterator[Batch]:
        """One batch a step, in order; `last` is not included."""
        steps = (tuple(self.draws_of(step)) for step in range(first, last))
        if not self.ahead:
            for draws in steps:
                yield self._join(cut_all(self.source, draws), draws)
            return
        with ThreadPoolExecutor(max_workers=self.source.workers) as pool:
            waiting: deque[tuple[tuple[Draw, ...], list[Future[Tensor]]]] = deque()
            try:
                while True:
                    for draws in islice(steps, self.ahead + 1 - len(waiting)):
                        waiting.append((draws, [pool.submit(self.source.cut, d) for d in draws]))
                    if not waiting:
                        return
                    draws, clips = waiting.popleft()
                    yield self._join([c.result() for c in clips], draws)
            finally:
                for _, clips in waiting:
                    for clip in clips:
                        clip.cancel()

    def _join(self, clips: list[Tensor], draws: tuple[Draw, ...]) -> Batch:
        return Batch(pixels=torch.stack(clips).to(self.device, non_blocking=True), draws=draws)


class LatentCache:
    """One safetensors file a clip, found by the backbone's weights, the video and the way it was cut."""

    def __init__(self, folder: str | Path, *, weight_hash: str, entries: tuple[ClipEntry, ...]) -> None:
        self.folder, self.weight_hash, self.entries = Path(folder), weight_hash, entries
        self.hits = self.misses = 0

    def latents(self, batch: Batch, encode: Callable[[Tensor], Tensor]) -> Tensor:
        """[B, C, t, h, w]; clips are encoded one by one, so that a latent does not depend on its neighbours."""
        found = [self._latent(x, draw, encode) for x, draw in zip(batch.pixels, batch.draws, strict=True)]
        return torch.stack(found)

    def _latent(self, x_CTHW: Tensor, draw: Draw, encode: Callable[[Tensor], Tensor]) -> Tensor:
        path = self.path_of(draw)
        stored = _read(path)
        if stored is not None:
            self.hits += 1
            return stored.to(x_CTHW.device)
        self.misses += 1
        z_CTHW = encode(x_CTHW[None])[0]
        from safetensors.torch import save

        with explained(f"latents into {self.folder}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, save({"latents": z_CTHW.detach().cpu().contiguous()}), durable=True)
        return z_CTHW

    def path_of(self, draw: Draw) -> Path:
        e = self.entries[draw.clip]
        cut = (draw.start, draw.frames, draw.interval, draw.size, draw.zoom, draw.y, draw.x, draw.flip, draw.reverse)
        key = hashlib.sha256(repr((e.name, e.bytes, e.frames, cut)).encode()).hexdigest()
        return self.folder / self.weight_hash / key[:2] / f"{key[2:34]}.safetensors"


def _read(path: Path) -> Tensor | None:
    """The latents there, or None: a missing or damaged file is simply made again."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)["latents"]
    except (OSError, SafetensorError, KeyError):
        return None
