# SPDX-License-Identifier: Apache-2.0
"""Rate against distortion: ours at budgets of bits, beside video codecs on the same frames.

Of ours the whole token file counts, mask and container included; of a codec the elementary stream, which has neither.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from inlay.codec import EncodeConfig, SizedVideo
from inlay.container import as_stored
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError, MissingError, VideoError
from inlay.masking import Budget
from inlay.masking.dial import Dial
from inlay.measure.base import remember
from inlay.research.studies.bits_tables import OURS, Point, Results, section_of
from inlay.research.studies.codecs import CODECS, recode, version
from inlay.research.studies.datasets import Clip, DataSet
from inlay.research.studies.evaluate import conventions_of, with_counts
from inlay.research.studies.records import Reading, Record, make_key, read_pair
from inlay.research.studies.rules import Setting
from inlay.research.studies.sections import Section
from inlay.research.studies.workspace import Workspace
from inlay.types import SCALES
from inlay.video.frames import Video

BUDGETS = (0.04, 0.06, 0.08, 0.11, 0.15, 0.2)  # bits a pixel


def bits(work: Workspace) -> Section:
    """DAVIS val and bench, as far as they are given."""
    if _dial(work) is None:
        work.note("The profile has no pairs of tau and step, so budgets are granted by tau alone: calibrate the model.")
    found = {role: measure_bits(work, data) for role, data in _sets(work).items()}
    return section_of(work, _sets(work), found, metrics_of(work))


def _sets(work: Workspace) -> dict[str, DataSet]:
    return {role: work.davis_val() if role == "davis" else data for role, data in work.data.items()}


def metrics_of(work: Workspace) -> tuple[str, ...]:
    """Those that a figure is drawn of."""
    return ("psnr", *(m for m in work.metrics if m == "lpips"))


def points_of(work: Workspace) -> list[Point]:
    """Every budget of ours, every setting of the codecs that are here."""
    points = [Point(system=OURS, at=budget) for budget in BUDGETS]
    for name, codec in CODECS.items():
        try:
            codec.check()
        except MissingError as error:
            work.note(f"{codec.name} is left out: {error}.")
            continue
        points += [Point(system=name, at=crf) for crf in codec.crfs]
    return points


@dataclass(frozen=True, kw_only=True)
class Take:
    """A clip, with its latents computed when they are first asked for and once for all budgets."""

    work: Workspace
    video: Video
    closing: ExitStack

    @cached_property
    def reference(self) -> Video:
        return replace(self.video, frames=remember(self.video.frames.to(self.work.config.device)))

    @cached_property
    def sized(self) -> SizedVideo:
        parts = self.work.bench.tokenizer
        return self.closing.enter_context(SizedVideo.of(parts, [self.video], sizes=list(SCALES)))


def measure_bits(work: Workspace, data: DataSet) -> Results:
    """Records of every clip at every point."""
    with ExitStack() as closing:

        def load(clip: Clip) -> Take:
            closing.close()  # the latents of the clip before
            return Take(work=work, video=clip.load(), closing=closing)

        def measure(take: Take, point: Point, metrics: Sequence[str], base: Record) -> Record:
            record = _ours(take, point, base) if point.system == OURS else _theirs(take, point, base)
            return _read(take, metrics, *record)

        def begin(clip: Clip, point: Point) -> Record:
            setting, model = _setting(clip, point), _model(work, point)
            measured = conventions_of(work.config)
            key = make_key(study="bits", clip=clip.identity, setting=setting, model=model, measure=measured)
            return work.store.find_or_blank("bits", data.name, clip.name, setting, model, key)

        return work.complete("bits", data, points_of(work), metrics_of(work), begin, load, measure)


def _setting(clip: Clip, point: Point) -> dict[str, Any]:
    if point.system == OURS:
        return {"system": OURS, "bits": point.at}
    side = str(clip.spec.size or "")
    command = CODECS[point.system].command(int(point.at), f"{side or 'WIDTH'}x{side or 'HEIGHT'}")
    return {"system": point.system, "crf": point.at, "command": command}


def _model(work: Workspace, point: Point) -> dict[str, Any]:
    if point.system != OURS:
        return {"encoder": CODECS[point.system].encoder, "libavcodec": version()}
    dial = _dial(work)
    known = "" if dial is None else make_key(**asdict(dial))
    return work.bench.model(Setting(precision="q8")) | {"dial": known, "scales": list(SCALES)}


def _dial(work: Workspace) -> Dial | None:
    return work.bench.tokenizer.dial(EncodeConfig())


def _ours(take: Take, point: Point, base: Record) -> tuple[Record, Video | str]:
    """(the record, the frames that come back, or why there are none)."""
    began = time.perf_counter()
    try:
        solved = take.sized.solve(Budget(bits=point.at))
    except ConfigError:
        take.work.tell(f"{base.clip}: {point.at:g} bits a pixel cannot be granted")
        return replace(base, cells=take.sized.full.cells), f"{point.at:g} bits a pixel cannot be granted"
    tokens = Tokens.join(solved)
    chose = time.perf_counter()
    video = take.work.bench.tokenizer.decode(as_stored(tokens))
    granted = {"tau": solved.recipe.tau, "step": solved.recipe.step, "scale": float(SCALES[solved.recipe.scale])}
    record = replace(
        with_counts(base, tokens),
        bits_per_pixel=solved.solution.value / take.sized.full.pixels,
        chosen={name: value for name, value in granted.items() if value is not None},
        seconds={"choose": chose - began, "decode": time.perf_counter() - chose},
    )
    return record, video


def _theirs(take: Take, point: Point, base: Record) -> tuple[Record, Video | str]:
    video, began = take.video, time.perf_counter()
    try:
        result, size = recode(video, CODECS[point.system], int(point.at))
    except VideoError as error:
        return base, str(error)
    pixels = len(video) * video.width * video.height
    spent = {"encode and decode": time.perf_counter() - began}
    return replace(base, bits_per_pixel=8 * size / pixels, seconds=spent), result


def _read(take: Take, metrics: Sequence[str], record: Record, result: Video | str) -> Record:
    work = take.work
    if isinstance(result, str):
        reading = Reading(missing=dict.fromkeys(metrics, result))
    else:
        reading = read_pair(take.reference, result, metrics, work.config)
    return replace(record, reading=record.reading.merged(reading), machine=work.bench.machine)
