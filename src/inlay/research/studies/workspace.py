# SPDX-License-Identifier: Apache-2.0
"""What every study works with: the bench, the data sets, the store; and the steps they share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any, TypeVar

import torch
from torch import Tensor

from inlay import __version__
from inlay.draw.plots import Panel, png
from inlay.errors import ConfigError, MissingError, UsageError
from inlay.masking import MaskConfig, keep_mask, keep_rate_of, nearest_tau, pixel_grid
from inlay.measure import MeasureConfig
from inlay.origin import commit
from inlay.research.studies.datasets import Clip, DataSet
from inlay.research.studies.evaluate import Bench, Tell, conventions_of
from inlay.research.studies.paper import Quality
from inlay.research.studies.records import Reading, Record, Store, make_key, why_unavailable
from inlay.research.studies.rules import Setting
from inlay.research.studies.sections import (
    Cell,
    Figure,
    Section,
    Table,
    bits_cell,
    conventions,
    heading,
    metric_cell,
    missing_notes,
    number,
    percent,
    rate_cell,
    word,
)
from inlay.video.listing import DAVIS_VAL

S = TypeVar("S", bound=Hashable)  # a setting
V = TypeVar("V")  # what is loaded of a clip


@dataclass(frozen=True, kw_only=True)
class Signal:
    """What a threshold is compared with, for each clip: latents, or pixels pooled onto their grid."""

    latents: tuple[Tensor, ...]
    pooled: tuple[Tensor, ...]

    def keep_rate(self, tau: float, criterion: str, reference: str) -> float:
        """Mean over clips, as tables give it."""
        plain = criterion == "pixel-l1"
        config = MaskConfig(tau=tau, criterion="latent-l1" if plain else criterion, reference=reference)
        rates = [keep_rate_of(keep_mask(z, config)) for z in (self.pooled if plain else self.latents)]
        return fmean(rates)


def match_tau(signal: Signal, target: float, *, criterion: str = "latent-l1", reference: str = "last-kept") -> float:
    """The threshold whose keep rate over the set comes nearest to `target`.

    >>> still = Signal(latents=(torch.zeros(1, 2, 3, 4, 4),), pooled=())
    >>> match_tau(still, 1.0)
    0.0
    """
    if not 0 < target <= 1:
        raise ConfigError(f"a keep rate lies in (0, 1]; got {target}")
    return nearest_tau(lambda tau: signal.keep_rate(tau, criterion, reference), target).tau


class Matcher:
    """Thresholds of a data set at wanted keep rates: found once and stored; the clips are encoded when first needed."""

    def __init__(self, bench: Bench, store: Store, data: DataSet, tell: Tell = lambda line: None) -> None:
        self.bench, self.store, self.data, self.tell = bench, store, data, tell

    @cached_property
    def signal(self) -> Signal:
        """Every clip, encoded once; a clip of 33x256x256 holds about 0.7 MB."""
        latents, pooled = [], []
        for place, clip in enumerate(self.data.clips, 1):
            self.tell(f"matching: {self.data.name} {place}/{len(self.data)}: {clip.name}")
            with torch.inference_mode():
                scene = self.bench.scene(clip)
                _, _, t, h, w = scene.z_BCTHW.shape
                latents.append(scene.z_BCTHW.cpu())
                pooled.append(pixel_grid(scene.x_BCTHW, (t, h, w)).cpu())
        return Signal(latents=tuple(latents), pooled=tuple(pooled))

    def tau(self, target: float, *, criterion: str = "latent-l1", reference: str = "last-kept") -> float:
        """The stored threshold, or the bench's own where that keeps just as much."""
        own = self.bench.tau
        if (criterion, reference) == ("latent-l1", "last-kept"):
            rate = self._once("rate", lambda: self.signal.keep_rate(own, criterion, reference), tau=own)
            if abs(target - rate) < 1e-9:
                return own
        wanted = {"criterion": criterion, "reference": reference}
        return self._once("tau", lambda: match_tau(self.signal, target, **wanted), target=target, **wanted)

    def _once(self, kind: str, compute: Callable[[], float], **parts: float | str) -> float:
        """What `compute` gives, or gave when the same was asked for before."""
        weights = self.bench.tokenizer.spec.weight_hash
        file = f"matching/{kind}-{make_key(kind=kind, data=self.data.digest, weights=weights, **parts)}.json"
        known = (self.store.read_json(file) or {}).get("value")
        if isinstance(known, float):
            return known
        value = compute()
        self.store.write_json(file, {"data": self.data.name, **parts, "value": value})
        return value


@dataclass(kw_only=True)
class Workspace:
    """One run of `inlay study`."""

    bench: Bench
    store: Store
    data: dict[str, DataSet]  # by role: davis, bench
    metrics: tuple[str, ...]
    also: tuple[str, ...] = ()  # other backbones, for the study that compares them
    command: str = ""
    tell: Tell = lambda line: None
    notes: list[str] = field(default_factory=list)  # what the study at hand wants to say in its section
    seen: list[Record] = field(default_factory=list)  # the records it is made of
    asked: tuple[str, ...] = ()  # the metrics it asked for
    _matchers: dict[str, Matcher] = field(default_factory=dict)

    @property
    def config(self) -> MeasureConfig:
        return self.bench.measure

    def need(self, role: str) -> DataSet:
        if role not in self.data:
            raise UsageError(f"this study needs the data set {role}; name its folder", about=f"data_{role}")
        return self.data[role]

    def davis_val(self) -> DataSet:
        """The val split of DAVIS, on which the paper's ablations and flicker tables stand; any other set as it is."""
        return self.need("davis").only(DAVIS_VAL, "val")

    def any_set(self) -> DataSet:
        return self.data["davis"] if "davis" in self.data else next(iter(self.data.values()))

    def matcher(self, data: DataSet) -> Matcher:
        return self._matchers.setdefault(data.digest, Matcher(self.bench, self.store, data, self.tell))

    def collect(
        self, study: str, data: DataSet, settings: Iterable[Setting], metrics: Sequence[str] | None = None
    ) -> dict[Setting, list[Record]]:
        """The records of every clip under every setting, each setting once; a clip is encoded once for all of them."""

        def begin(clip: Clip, setting: Setting) -> Record:
            model, chosen = self.bench.model(setting), setting.record()
            key = make_key(clip=clip.identity, setting=chosen, model=model, measure=conventions_of(self.config))
            return self.store.find_or_blank(study, data.name, clip.name, chosen, model, key)

        chosen = self.metrics if metrics is None else metrics
        return self.complete(study, data, dict.fromkeys(settings), chosen, begin, self.bench.scene, self.bench.record)

    def complete(
        self,
        study: str,
        data: DataSet,
        settings: Iterable[S],
        metrics: Sequence[str],
        begin: Callable[[Clip, S], Record],
        load: Callable[[Clip], V],
        measure: Callable[[V, S, Sequence[str], Record], Record],
    ) -> dict[S, list[Record]]:
        """Records of every clip under every setting: from the store where they are complete, made and stored where not.

        Args:
            begin: the record as far as it is there.
            load: what all settings share of a clip; called once a clip, and only where something is lacking.
            measure: the record with these metrics added.
        """
        unavailable = why_unavailable(metrics, self.config)
        wanted = [m for m in metrics if m not in unavailable]
        found: dict[S, list[Record]] = {s: [] for s in settings}
        for place, clip in enumerate(data.clips, 1):
            loaded: V | None = None
            for setting, records in found.items():
                record = replace(begin(clip, setting), data=data.name)
                lacking = record.reading.lacks(wanted)
                if lacking or not (record.cells or record.bits_per_pixel):
                    if loaded is None:
                        self.tell(f"{study}: {data.name} {place}/{len(data)}: {clip.name}")
                        loaded = load(clip)
                    record = measure(loaded, setting, lacking, record)
                said = Reading(unavailable=dict(unavailable))
                record = replace(record, study=study, reading=said.merged(record.reading))
                if self.store.find(study, clip.name, record.key) != record:
                    self.store.write(record)
                records.append(record)
        self.saw(found, metrics)
        return found

    def saw(self, found: Mapping[Any, Sequence[Record]], metrics: Sequence[str] = ()) -> None:
        """Remember what a section is made of."""
        self.seen += [record for records in found.values() for record in records]
        self.asked = tuple(dict.fromkeys((*self.asked, *metrics)))

    def note(self, line: str) -> None:
        """Say this in the section, once."""
        if line not in self.notes:
            self.notes.append(line)

    def run(self, study: Callable[[Workspace], Section]) -> Section:
        """The section of a study, with its notes and what could not be measured."""
        self.notes, self.seen, self.asked = [], [], ()
        section = study(self)
        return replace(section, text=(*section.text, *missing_notes(self.seen, self.asked), *self.notes))

    def fills(self) -> list[str]:
        """hold, linear, and the networks that are at hand."""
        return ["hold", "linear", *self.bench.tokenizer.filler.lits]

    def picture(self, file: str, caption: str, data: bytes) -> Figure:
        self.store.write_bytes(f"figures/{file}", data)
        return Figure(file=f"figures/{file}", caption=caption)

    def plot(self, file: str, caption: str, panels: Sequence[Panel]) -> Figure:
        """Panels as a file, and as numbers for the report, which draws them so that one can point at them.

        Where the drawing package is absent, as numbers alone.
        """
        try:
            figure = self.picture(file, caption, png(panels))
        except MissingError as error:
            figure = Figure(file="", caption=caption)
            self.note(f"No plots: {error}.")
        return replace(figure, panels=tuple(panels))

    def quality_row(self, label: str, records: Sequence[Record]) -> tuple[Cell, ...]:
        scores = [metric_cell(records, m, self.config) for m in self.metrics]
        return (word(label), rate_cell(records), bits_cell(records), *scores)

    def paper_row(self, label: str, row: Quality) -> tuple[Cell, ...]:
        """The paper's numbers under the same columns; a dash where it gives none."""
        digits = {"psnr": 2, "ssim": 3, "lpips": 3, "fvd": 2}
        scores = [number(getattr(row, m), digits[m]) if m in digits else word("-") for m in self.metrics]
        return (word(f"paper: {label}"), percent(row.keep), word("-"), *scores)

    def quality_table(self, caption: str, first: str, rows: Sequence[tuple[Cell, ...]]) -> Table:
        columns = (first, "Keep rate ↓", "bits/pixel ↓", *(heading(m) for m in self.metrics))
        return Table(caption=caption, columns=columns, rows=tuple(rows))

    def setup(self, *sets: DataSet, metrics: Sequence[str] | None = None) -> dict[str, Any]:
        """Every choice behind the numbers; `metrics` where a study has its own."""
        spec = self.bench.tokenizer.spec
        return {
            "command": self.command,
            "version": __version__,
            "commit": commit(),
            "backbone": f"{spec.name}, weights {spec.weight_hash}",
            "tau": self.bench.tau,
            "fill": self.bench.tokenizer.filler.default,
            "device": "; ".join(sorted({r.machine for r in self.seen if r.machine})) or self.bench.machine,
            "data": [d.record() for d in sets],
            "conventions": conventions(self.metrics if metrics is None else metrics, self.config),
        }
