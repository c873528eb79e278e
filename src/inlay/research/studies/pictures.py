# SPDX-License-Identifier: Apache-2.0
"""Studies that are mostly pictures: masks (Appendices A, B), cells over time (Figure 1), scores (E); and films."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import torch

from inlay.backbones import BackboneSpec, load_backbone
from inlay.codec import encode_clip
from inlay.container.tokens import Tokens
from inlay.draw.animated import avif_bytes
from inlay.draw.caption import Caption
from inlay.draw.film import Shot, compose, side_by_side
from inlay.draw.images import image_bytes, strip
from inlay.draw.plots import Panel, Series
from inlay.draw.sheet import TILE, MaskRow, mask_sheet
from inlay.errors import InlayError, MissingError, VideoError
from inlay.masking import MaskConfig, Profile, keep_mask, scan
from inlay.measure import calibrate
from inlay.research.studies import paper
from inlay.research.studies.datasets import Clip, DataSet, count_frames, read_any
from inlay.research.studies.evaluate import Bench, Scene
from inlay.research.studies.records import Record, Store, file_name, make_key
from inlay.research.studies.rules import Setting
from inlay.research.studies.sections import Cell, Figure, Finding, Section, Table, number, percent, word
from inlay.research.studies.workspace import Workspace
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video

PICTURED = 4  # clips
FACTORS = (1 / 3, 2 / 3, 1.0, 4 / 3, 5 / 3, 3.0)  # thresholds, in multiples of ours
CHUNKS = 4  # of a long video whose use of cells is drawn
SIDES = (176, 256)  # least and most pixels of the short side of a panel
FILMED = 2  # clips


def masks(work: Workspace) -> Section:
    """What each threshold keeps, as pictures."""
    data = work.any_set()
    spec = work.bench.tokenizer.spec
    rows: list[tuple[Cell, ...]] = []
    figures = []
    taus = [work.bench.tau * f for f in FACTORS]
    for clip in example_clips(data, PICTURED):
        work.tell(f"masks: {clip.name}")
        scene = work.bench.scene(clip)
        keep = [MaskRow(tau=tau, keep_Thw=_masked(work, data, clip, scene, tau)) for tau in taus]
        rows.append((word(clip.name), *(percent(row.keep_rate) for row in keep)))
        sheet = mask_sheet(scene.video, keep, spec, title=clip.name)
        caption = f"{clip.name}: kept cells in full light, by threshold; one picture a slot."
        figures.append(work.picture(f"masks-{len(rows)}.jpg", caption, image_bytes(sheet, "jpeg")))
    table = Table(caption="Keep rate by threshold", columns=("Clip", *(f"tau {t:.3g}" for t in taus)), rows=tuple(rows))
    falling = all(
        a.value is not None and b.value is not None and a.value >= b.value for row in rows for a, b in pairwise(row[1:])
    )
    return Section(
        name="masks",
        title="Masks (Appendices A and B)",
        tables=(table,),
        figures=tuple(figures),
        findings=(Finding(claim="a higher threshold keeps no more cells", holds=falling),),
        setup=work.setup(data, metrics=()),
    )


def _masked(work: Workspace, data: DataSet, clip: Clip, scene: Scene, tau: float) -> torch.Tensor:
    """[T, H, W] bool, with a record of its counts."""
    setting = Setting(tau=tau)
    keep_THW = keep_mask(scene.z_BCTHW, MaskConfig(tau=tau))[0].cpu()
    model = work.bench.model(setting)
    key = make_key(kind="mask", clip=clip.identity, setting=setting.record(), weights=model["weights"])
    slots = tuple(keep_THW.flatten(1).sum(1).tolist())
    work.store.write(
        Record(
            study="masks", data=data.name, clip=clip.name, setting=setting.record(), model=model, key=key,
            tokens=sum(slots), cells=keep_THW.numel(), slots=slots,
        )
    )  # fmt: skip
    return keep_THW


def token_usage(work: Workspace) -> Section:
    """Figure 1 and Appendix C: kept cells over time, with the reference begun anew in each chunk, and carried on."""
    data = work.any_set()
    rows: list[tuple[Cell, ...]] = []
    figures = []
    for clip in example_clips(data, PICTURED):
        work.tell(f"usage: {clip.name}")
        frames = min(CHUNKS, max(1, count_frames(clip.path) // clip.spec.span)) * clip.spec.frames
        video = read_any(clip.path, clip.spec, frames=frames)
        anew, carried = use_over_time(work, video.frames.split(clip.spec.frames))
        shares = [percent(float(use.mean())) for use in (anew, carried)]
        rows.append((word(clip.name), number(float(len(video)), 0), *shares))
        weights = work.bench.tokenizer.spec.weight_hash
        key = make_key(kind="usage", clip=clip.identity, tau=work.bench.tau, weights=weights)
        work.store.write_json(
            f"records/usage/{len(rows)}.{key}.json",
            {"clip": clip.name, "per_clip": [float(v) for v in anew], "carried": [float(v) for v in carried]},
        )
        shown = strip(video.frames[[i * (len(video) - 1) // 7 for i in range(8)]], short=TILE)
        curves = {"reference begun anew in each chunk": anew, "reference carried on": carried}
        edges = slot_edges(work.bench.tokenizer.spec, clip.spec.frames, len(video))
        series = tuple(_levels(name, edges, (100 * use).tolist()) for name, use in curves.items())
        panel = Panel(title=clip.name, x_label="frame", y_label="kept cells, %", steps=True, series=series)
        caption = f"{clip.name}: kept cells over time at tau {work.bench.tau:.3g}."
        row = f"{clip.name}: eight frames, evenly spaced."
        figures.append(work.picture(f"usage-{len(rows)}.jpg", row, image_bytes(shown, "jpeg")))
        figures.append(work.plot(f"usage-{len(rows)}.png", caption, [panel]))
    columns = ("Clip", "frames", "begun anew", "carried on")
    saved = all(a[2].value is not None and a[3].value is not None and a[3].value <= a[2].value for a in rows)
    return Section(
        name="usage",
        title="Use of cells over time (Figure 1, Appendix C)",
        text=(
            "Each chunk of frames is encoded on its own; the second curve carries the last-kept reference over the "
            "borders, as the paper's selection cache does.",
        ),
        tables=(Table(caption="Keep rate of whole videos", columns=columns, rows=tuple(rows)),),
        figures=tuple(figures),
        findings=(Finding(claim="carrying the reference saves cells", holds=saved),),
        setup=work.setup(data, metrics=()),
    )


@torch.inference_mode()
def use_over_time(work: Workspace, chunks: tuple[torch.Tensor, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Share of kept cells in each slot: with the reference begun anew in each chunk, and carried on."""
    config = MaskConfig(tau=work.bench.tau)
    state, anew, carried = None, [], []
    for frames in chunks:
        z_BCTHW = encode_clip(work.bench.tokenizer, Video(frames=frames)).z_BCTHW
        anew.append(scan(z_BCTHW, config)[0][0])
        keep_BTHW, state = scan(z_BCTHW, config, state)
        carried.append(keep_BTHW[0])
    first, second = (torch.cat(rows).flatten(1).float().mean(1).cpu().numpy() for rows in (anew, carried))
    return first, second


def backbones(work: Workspace) -> Section:
    """Appendix E: scale and selectivity of the latents of the backbone, and of others that are named."""
    data = work.any_set()
    profiles = {work.bench.tokenizer.spec.name: _profile(work, work.bench.tokenizer, data)}
    for name in work.also:
        try:
            backbone = load_backbone(name, device=work.bench.tokenizer.device, dtype=work.bench.tokenizer.dtype)
        except InlayError as error:
            work.note(f"{name} is left out: {error}.")
            continue
        one = Tokenizer(backbone, device=work.bench.tokenizer.device, dtype=work.bench.tokenizer.dtype)
        profiles[name] = _profile(work, one, data)
    rows: list[tuple[Cell, ...]] = []
    for p in profiles.values():
        spreads = np.mean(p.latent_std), np.mean(p.first_std)
        numbers = (*spreads, p.score_mean, p.score_std, p.selectivity, p.tau)
        rows.append((word(p.backbone), number(float(len(p.latent_std)), 0), *(number(float(v)) for v in numbers)))
    dash = word("-")
    for name, (std, *scores, tau) in paper.LATENT_SCALES.items():
        rows.append((word(f"paper: {name}"), dash, number(std), dash, *(number(v) for v in scores), number(tau, 2)))
    columns = ("Backbone", "channels", "std, mean", "std of slot 0", "score mean", "score std", "CoV", "tau")
    return Section(
        name="backbones",
        title="Scale and selectivity of backbones (Appendix E)",
        text=(
            "Encoder statistics alone. The scores are those of a last-kept scan whose threshold equals their mean; a "
            "higher CoV (std over mean) means that one threshold tells still from moving more cleanly.",
        ),
        tables=(Table(caption=f"Latents on {data.counted}", columns=columns, rows=tuple(rows)),),
        figures=(work.plot("backbones.png", "Per-channel standard deviations and scores.", _distributions(profiles)),),
        setup=work.setup(data, metrics=()),
    )


def _profile(work: Workspace, tokenizer: Tokenizer, data: DataSet) -> Profile:
    key = make_key(kind="profile", data=data.digest, weights=tokenizer.spec.weight_hash)
    file = f"records/backbones/{file_name(tokenizer.spec.name)}.{key}.json"
    with suppress(TypeError, InlayError):  # there is none yet, or it is damaged
        return Profile(**(work.store.read_json(file) or {}))
    state = calibrate.start(tokenizer.spec)
    for clip in data.clips:
        work.tell(f"backbones: {tokenizer.spec.name}: {clip.name}")
        state = calibrate.update(state, encode_clip(tokenizer, clip.load()).z_BCTHW)
    profile = calibrate.finish(state, data=data.name)
    work.store.write_json(file, asdict(profile))
    return profile


def _distributions(profiles: dict[str, Profile]) -> list[Panel]:
    widest = max(max(p.latent_std) for p in profiles.values()) * 1.05
    edges = tuple(np.linspace(0, widest, 25).tolist())
    channels, scores = [], []
    for name, p in profiles.items():
        counts, mean = np.histogram(p.latent_std, edges)[0].tolist(), float(np.mean(p.latent_std))
        channels.append(_histogram(name, edges, counts, mean, f"mean {mean:.3f}"))
        label = f"{name}: mean {p.score_mean:.3f}, std {p.score_std:.3f}, CoV {p.selectivity:.3f}"
        scores.append(_histogram(label, p.score_edges, p.score_counts, p.tau, f"suggested τ {p.tau:.3g}"))
    return [
        Panel(title="", x_label=x_label, y_label="share, %", steps=True, series=tuple(series))
        for x_label, series in (("standard deviation of a channel", channels), ("score under last-kept", scores))
    ]


def slot_edges(spec: BackboneSpec, chunk: int, frames: int) -> list[float]:
    """The frames at which the slots of whole chunks begin, and where the last one ends."""
    within = [0, *(spec.frames(slots) for slots in range(1, spec.slots(chunk)))]
    return [float(start + first) for start in range(0, frames, chunk) for first in within] + [float(frames)]


def _histogram(label: str, edges: Sequence[float], counts: Sequence[float], mark: float, mark_label: str) -> Series:
    """Scaled to its own total."""
    total = sum(counts) or 1.0
    bars = _levels(label, edges, [100 * c / total for c in counts])
    return replace(bars, mark=mark, mark_label=mark_label)


def _levels(label: str, edges: Sequence[float], levels: Sequence[float]) -> Series:
    """A level from each edge to the next."""
    return Series(label=label, x=tuple(edges), y=(*levels, *levels[-1:]))


def example_clips(data: DataSet, count: int = FILMED) -> list[Clip]:
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
            file = f"films/{file_name(clip.name)}.{setting.rule}.{key}.avif"
            if not (store.root / file).is_file():
                scene = scene or bench.scene(clip)
                outcome = bench.run(scene, setting)
                caption = Caption(title=clip.name, bits_per_pixel=outcome.bits_per_pixel)
                shown = film(scene.video, outcome.video, outcome.tokens, caption)
                store.write_bytes(file, shown)
            beneath = f"{clip.name}, {setting.rule}: input, kept cells, reconstruction ({bench.fill_of(setting)})"
            films.append(Figure(file=file, caption=beneath))
    return tuple(films)


def film_pairs(store: Store, pairs: Iterable[tuple[str, Video, Video]]) -> tuple[Figure, ...]:
    """Originals beside another system's reconstructions."""
    films = []
    for i, (name, original, other) in enumerate(pairs):
        path = store.write_bytes(f"films/pair-{i}.avif", film(original, other))
        films.append(Figure(file=str(path.relative_to(store.root)), caption=f"{name}: input, reconstruction"))
    return tuple(films)


def film(original: Video, result: Video, tokens: Tokens | None = None, caption: Caption | None = None) -> bytes:
    """Panels side by side as an animated AVIF, small enough to be part of a page."""
    if tokens is not None:
        shot = Shot(original=original, tokens=tokens, result=result)
        whole = compose(shot, caption=caption, short_side=SIDES)
    else:
        panels = [("input", original.frames), ("reconstruction", result.frames)]
        rows = [([name] * len(frames), frames) for name, frames in panels]
        whole = Video(frames=side_by_side(rows, short_side=SIDES), fps=original.fps)
    return avif_bytes(whole)


def with_films(section: Section, bench: Bench, store: Store, data: DataSet) -> Section:
    """The section with films of ours; without the video library, with a sentence instead."""
    try:
        return replace(section, films=film_rules(bench, store, data, [Setting()]))
    except (MissingError, VideoError) as error:
        return replace(section, text=(*section.text, f"No films: {error}."))
