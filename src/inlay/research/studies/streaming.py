# SPDX-License-Identifier: Apache-2.0
"""Table 4 of the paper: chunks on their own against streams that carry caches or state on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inlay.codec import EncodeConfig, Encoder
from inlay.container.tokens import Tokens
from inlay.draw.plots import Panel, Series
from inlay.errors import VideoError, number_of
from inlay.measure import count_tokens
from inlay.measure.base import remember
from inlay.research.studies import paper
from inlay.research.studies.datasets import Clip, DataSet, count_frames
from inlay.research.studies.evaluate import with_counts
from inlay.research.studies.quality import compare_records
from inlay.research.studies.records import Record, make_key, mean_rate, read_pair, without_unreadable
from inlay.research.studies.rules import Setting
from inlay.research.studies.sections import Finding, Section
from inlay.research.studies.workspace import Workspace
from inlay.video.frames import Video

CHUNKS = 2  # of 33 frames: what most DAVIS sequences hold
MODE_LABELS = {
    "clips": "per-clip reference",
    "dual-cache": "streaming, dual cache",
    "stateful": "streaming, network state carried on",
}


def measure_streaming(work: Workspace, data: DataSet) -> dict[str, list[Record]]:
    """Records by mode."""
    modes = [m for m in MODE_LABELS if m != "stateful" or work.bench.tokenizer.spec.stateful]

    def begin(clip: Clip, mode: str) -> Record:
        setting, model = {**Setting().record(), "mode": mode}, work.bench.model(Setting())
        key = make_key(clip=clip.identity, setting=setting, model=model)
        return work.store.find_or_blank("streaming", data.name, clip.name, setting, model, key)

    def load(clip: Clip) -> tuple[Video, Video]:
        video = clip.load()
        return video, replace(video, frames=remember(video.frames.to(work.config.device)))

    def measure(loaded: tuple[Video, Video], mode: str, metrics: Sequence[str], base: Record) -> Record:
        tokens, result = _through(work, loaded[0], mode)
        reading = base.reading.merged(read_pair(loaded[1], result, metrics, work.config))
        bits = count_tokens(tokens).bits_per_pixel
        return replace(with_counts(base, tokens), reading=reading, bits_per_pixel=bits, machine=work.bench.machine)

    return work.complete("streaming", data, modes, work.metrics, begin, load, measure)


def streaming(work: Workspace) -> Section:
    """Videos of two chunks; the modes differ in what the second chunk knows of the first."""
    data = without_unreadable(long_videos(work), work.store, work.tell)
    found = measure_streaming(work, data)
    rows = [work.quality_row(MODE_LABELS[m], records) for m, records in found.items()]
    rows += [work.paper_row(label, row) for label, row in paper.STREAMING.items()]
    frames = data.spec.frames
    use = use_by_slot(found)
    caption = (
        "Kept cells by slot, mean over the videos: a full slot where each chunk begins anew, none where it goes on."
    )
    return Section(
        name="streaming",
        title="Streaming (Table 4)",
        text=(
            f"Videos of {frames} frames, encoded in chunks of {frames // CHUNKS}; no scene cuts, no key interval. "
            "The paper compares per-clip masks and the dual cache; the third row carries the "
            "backbone's own causal state on, so that the whole video has one slot 0.",
        ),
        tables=(work.quality_table(f"Streaming on {data.name} ({number_of(len(data), 'video')})", "Mode", rows),),
        figures=(work.plot("streaming.png", caption, [use]),),
        findings=tuple(_findings(found)),
        setup=work.setup(data),
    )


def use_by_slot(found: dict[str, list[Record]]) -> Panel:
    """Appendix C: the share of cells kept in each slot, for every mode."""
    series = []
    for mode, records in found.items():
        slots = min(len(r.slots) for r in records)
        shares = [100 * sum(r.slots[t] * len(r.slots) / r.cells for r in records) / len(records) for t in range(slots)]
        series.append(Series(label=MODE_LABELS[mode], x=tuple(map(float, range(slots))), y=tuple(shares)))
    return Panel(
        title="Kept cells over time", x_label="slot", y_label="kept cells, %", series=tuple(series), steps=True
    )


def long_videos(work: Workspace) -> DataSet:
    """The videos of DAVIS in pieces of two chunks as long as clips, or half as long where all videos are too short."""
    data, backbone = work.need("davis"), work.bench.tokenizer.spec
    seen = {c.path: (c, count_frames(c.path)) for c in reversed(data.clips)}
    for frames in (data.spec.frames, data.spec.frames // 2):
        slots = backbone.slots(frames + 1 - backbone.time_stride)  # as many as are full: a length the backbone takes
        spec = replace(data.spec, frames=CHUNKS * backbone.frames(max(slots, 2)), clips=1)
        long = [replace(c, spec=spec, start=0) for c, count in reversed(seen.values()) if count >= spec.span]
        gone = [f"{c.name}: shorter than {spec.span} frames" for c, count in seen.values() if count < spec.span]
        if long:
            return replace(data, spec=spec, clips=tuple(long), left_out=(*data.left_out, *gone))
    raise VideoError(f"{data.name}: streaming takes videos of {spec.span} frames at least, and none of {len(gone)} is")


def _through(work: Workspace, video: Video, mode: str) -> tuple[Tokens, Video]:
    tokenizer = work.bench.tokenizer
    config = EncodeConfig(mode=mode, key_seconds=0, cuts=False, chunk_frames=len(video) // CHUNKS, precision="fp32")
    tokens = Tokens.join(Encoder(tokenizer, config, tau=work.bench.tau).encode([video]))
    return tokens, tokenizer.decode(tokens)


def _findings(found: dict[str, list[Record]]) -> list[Finding]:
    rate = {m: mean_rate(records) for m, records in found.items()}
    shown = ", ".join(f"{m} {100 * r:.1f} %" for m, r in rate.items())
    rows = [
        Finding(claim="the dual cache keeps fewer cells", holds=rate["dual-cache"] < rate["clips"], detail=shown),
        compare_records("the dual cache costs some quality", found["clips"], found["dual-cache"]),
    ]
    if "stateful" in found:
        untaught = "no network here was trained on clips that go on where another ended"
        claim = "carried state is better than the dual cache"
        rows.append(compare_records(claim, found["stateful"], found["dual-cache"], why=untaught))
    return rows
