# SPDX-License-Identifier: Apache-2.0
"""Small films for the report: input, kept cells, reconstruction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from inlay.container.tokens import Tokens
from inlay.draw.film import Shot, compose, side_by_side
from inlay.draw.webp import webp_bytes
from inlay.errors import MissingError, VideoError
from inlay.research.studies.datasets import Clip, DataSet
from inlay.research.studies.evaluate import Bench
from inlay.research.studies.records import Store, file_name, make_key
from inlay.research.studies.rules import Setting
from inlay.research.studies.sections import Figure, Section
from inlay.video.frames import Video

SIDES = (176, 176)  # pixels of the short side of a panel
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
    """Panels side by side as an animated WebP, small enough to be part of a page."""
    if tokens is not None:
        whole = compose(Shot(original=original, tokens=tokens, result=result), short_side=SIDES)
    else:
        panels = [("input", original.frames), ("reconstruction", result.frames)]
        rows = [([name] * len(frames), frames) for name, frames in panels]
        whole = Video(frames=side_by_side(rows, short_side=SIDES), fps=original.fps)
    return webp_bytes(whole, quality=70)


def with_films(section: Section, bench: Bench, store: Store, data: DataSet) -> Section:
    """The section with films of ours; without the video library, with a sentence instead."""
    try:
        return replace(section, films=film_rules(bench, store, data, [Setting()]))
    except (MissingError, VideoError) as error:
        return replace(section, text=(*section.text, f"No films: {error}."))
