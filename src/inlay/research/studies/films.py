# SPDX-License-Identifier: Apache-2.0
"""A clip and its reconstruction in, a small film for the report out: input, kept cells, reconstruction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from inlay.container.tokens import Tokens
from inlay.errors import MissingError, VideoError
from inlay.research.studies.datasets import Clip, DataSet
from inlay.research.studies.evaluate import Bench
from inlay.research.studies.plots import lit_cells
from inlay.research.studies.records import Store, file_name, make_key
from inlay.research.studies.rules import Setting
from inlay.research.studies.sections import Figure, Section
from inlay.video.frames import Video

SIDE, GAP = 176, 4  # pixels of a panel, and between two
SHOWN = 2  # clips that are filmed


def example_clips(data: DataSet, count: int = SHOWN) -> list[Clip]:
    """Clips spread evenly over the set."""
    count = min(count, len(data))
    return [data.clips[i * len(data) // count] for i in range(count)]


def film_rules(bench: Bench, store: Store, data: DataSet, settings: Iterable[Setting]) -> tuple[Figure, ...]:
    """Each rule on a few clips; a film that lies there already is not made again."""
    films = []
    for clip in example_clips(data):
        scene = None
        for setting in settings:
            key = make_key(kind="film", clip=clip.identity, setting=setting.record(), model=bench.model(setting))
            file = f"films/{file_name(clip.name)}.{setting.rule}.{key}.webp"
            if not (store.root / file).is_file():
                scene = scene or bench.scene(clip)
                outcome = bench.run(scene, setting)
                store.write_bytes(file, film(scene.video, outcome.video, outcome.tokens))
            caption = f"{clip.name}, {setting.rule}: input, kept cells, reconstruction ({bench.fill_of(setting)})"
            films.append(Figure(file=file, caption=caption))
    return tuple(films)


def film_pairs(store: Store, pairs: Iterable[tuple[str, Video, Video]]) -> tuple[Figure, ...]:
    """Originals beside another system's reconstructions."""
    films = []
    for i, (name, original, other) in enumerate(pairs):
        path = store.write_bytes(f"films/pair-{i}.webp", film(original, other))
        films.append(Figure(file=str(path.relative_to(store.root)), caption=f"{name}: input, reconstruction"))
    return tuple(films)


def film(original: Video, result: Video, tokens: Tokens | None = None) -> bytes:
    """Panels side by side as an animated WebP."""
    from inlay.video.webp import webp_bytes

    panels = [original.frames.cpu(), result.frames.cpu()]
    if tokens is not None:
        panels.insert(1, _lit(panels[0], tokens))
    small = [_small(p) for p in panels]
    gap = torch.full((*small[0].shape[:2], GAP, 3), 255, dtype=torch.uint8)
    row = torch.cat([part for panel in small for part in (gap, panel)][1:], 2)
    even = row[:, : row.shape[1] // 2 * 2, : row.shape[2] // 2 * 2]
    return webp_bytes(Video(frames=even, fps=original.fps), quality=70)


def _lit(frames_THWC: Tensor, tokens: Tokens) -> Tensor:
    stride, last = tokens.recipe.time_stride, len(tokens.mask) - 1
    keep_THW = tokens.mask.cpu().numpy()
    slots = [min((t + stride - 1) // stride, last) for t in range(len(frames_THWC))]  # slot 0 shows one frame
    lit = [lit_cells(frame, keep_THW[slot]) for frame, slot in zip(frames_THWC.numpy(), slots, strict=True)]
    return torch.from_numpy(np.stack(lit))


def _small(frames_THWC: Tensor) -> Tensor:
    height, width = frames_THWC.shape[1:3]
    scale = SIDE / min(height, width)
    size = [round(height * scale), round(width * scale)]
    mode = "area" if scale < 1 else "nearest"
    out = interpolate(frames_THWC.permute(0, 3, 1, 2).float(), size=size, mode=mode)
    return out.round().to(torch.uint8).permute(0, 2, 3, 1)


def with_films(section: Section, bench: Bench, store: Store, data: DataSet) -> Section:
    """The section with films of ours; without the video library, with a sentence instead."""
    try:
        return replace(section, films=film_rules(bench, store, data, [Setting()]))
    except (MissingError, VideoError) as error:
        return replace(section, text=(*section.text, f"No films: {error}."))
