# SPDX-License-Identifier: Apache-2.0
"""What describes a finished set: manifest, quarantine list, `dataset.json`, and the report of the run."""

from __future__ import annotations

import csv
import io
import shlex
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from inlay.errors import OutputError, number_of
from inlay.scale.layout import (
    DATASET,
    LAYOUT_VERSION,
    MANIFEST,
    QUARANTINE,
    REPORT,
    REPORT_PAGE,
    DatasetRecord,
    LatentMoments,
    dump,
)
from inlay.scale.plan import Shard, ShardPlan
from inlay.scale.shards import ShardRecord
from inlay.scale.store import Store

SHOWN = 20  # sources named on the page; the list has them all


def finish(store: Store, plan: ShardPlan, shards: list[Shard], recipe: dict[str, Any]) -> tuple[DatasetRecord, Counter]:
    """Write what describes the whole set, and `dataset.json` last. Also counts what people should know of."""
    moments, totals, hashes = LatentMoments(), Counter[str](), set[str]()
    entries: list[dict[str, Any]] = []
    refused: list[dict[str, str]] = []
    lines = io.StringIO()
    for shard in shards:
        record = ShardRecord.load(store, shard.number)
        if record is None:
            raise OutputError(f"shard {shard.number} is gone from {store}; run the same command again to make it anew")
        moments += record.moments
        refused += record.refused
        for video in record.videos:
            lines.write(video.line() + "\n")
            totals.update({name: getattr(video, name) for name in ("frames", "tokens", "cells", "bytes")})
            totals.update(videos=1, damaged=video.damage is not None, repeated=video.sha256 in hashes)
            hashes.add(video.sha256)
        if record.shard is not None:
            entry = {"name": record.shard, "videos": len(record.videos), "bytes": record.bytes, "sha256": record.sha256}
            entries.append(entry)
    dataset = DatasetRecord(
        layout_version=LAYOUT_VERSION, format=plan.config.format, recipe=recipe, options=asdict(plan.config),
        quarantined=len(refused), keep_rate=totals["tokens"] / totals["cells"] if totals["cells"] else 0.0,
        latent_count=moments.count, latent_mean=list(moments.mean) if moments.count else [],
        latent_std=list(moments.std) if moments.count else [], shards=entries,
        **{name: totals[name] for name in ("videos", "frames", "tokens", "cells", "bytes")},
    )  # fmt: skip
    store.write_text(MANIFEST, lines.getvalue())
    store.write_text(QUARANTINE, quarantine_table(refused))
    store.write_text(DATASET, dump(asdict(dataset)))
    return dataset, totals


def quarantine_table(refused: Iterable[dict[str, str]]) -> str:
    """`quarantine.csv`: path and reason of each source that could not be used."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ("path", "reason"), lineterminator="\n")
    writer.writeheader()
    writer.writerows(refused)
    return text.getvalue()


@dataclass(frozen=True, kw_only=True, repr=False)
class TokenizeResult:
    """The set, and the run that finished it."""

    source: str
    out: str
    engine: str
    dataset: DatasetRecord
    repeated: int  # videos whose bytes are those of another one
    damaged: int  # videos of which only a part could be read
    videos_before: int  # done by earlier runs
    seconds: float  # of this run

    def __repr__(self) -> str:
        d = self.dataset
        refused = f", {d.quarantined:,} in quarantine" if d.quarantined else ""
        return f"TokenizeResult({self.out}: {d.about()}, {d.bytes:,} bytes{refused}; {self.seconds:.1f} s)"

    @property
    def videos_now(self) -> int:
        return self.dataset.videos + self.dataset.quarantined - self.videos_before

    @property
    def rate(self) -> float:
        """Videos a second of this run, start and end of it included."""
        return self.videos_now / self.seconds if self.seconds else 0.0

    def record(self) -> dict[str, Any]:
        """What `--json` prints."""
        d = self.dataset
        return {
            "source": self.source,
            "out": self.out,
            "engine": self.engine,
            "format": d.format,
            "videos": d.videos,
            "quarantined": d.quarantined,
            "repeated": self.repeated,
            "damaged": self.damaged,
            "shards": len(d.shards),
            **{name: getattr(d, name) for name in ("frames", "tokens", "cells", "keep_rate", "bytes")},
            "videos_before": self.videos_before,
            "videos_now": self.videos_now,
            "seconds": self.seconds,
            "videos_per_second": self.rate,
        }

    def rows(self) -> list[tuple[str, str]]:
        """The same for a person."""
        d = self.dataset
        now = ", nothing was left to tokenise"
        if self.videos_now:
            now = f" for {self.videos_now:,} videos, {self.rate:.2f} a second ({self.engine})"
        rows = [
            ("data set", f"{self.out}, {number_of(len(d.shards), f'{d.format} shard')}"),
            ("videos", f"{d.videos:,} tokenised, {d.quarantined:,} in quarantine"),
            (
                "kept",
                f"{d.keep_rate:.1%}: {d.tokens:,} tokens of {d.cells:,} cells, {d.frames:,} frames, "
                f"mode {d.recipe['streaming']}",
            ),
            ("bytes", f"{d.bytes:,} of token files"),
            ("took", f"{self.seconds:.1f} s{now}"),
        ]
        if self.videos_before:
            rows.append(("before", f"{self.videos_before:,} videos were there from earlier runs"))
        if self.repeated:
            rows.append(("repeated", f"{self.repeated:,} videos have the same bytes as another one"))
        if self.damaged:
            rows.append(("damaged", f"{self.damaged:,} videos were used in part; the manifest says what was wrong"))
        if d.quarantined:
            rows.append(("see", f"{self.out}/{QUARANTINE} for the reasons"))
        return rows


def write_report(store: Store, outcome: TokenizeResult) -> None:
    """The JSON record, and a page in Markdown for people."""
    d = outcome.dataset
    rows = "".join(f"\n| {name} | {_cell(text)} |" for name, text in outcome.rows())
    settings = ", ".join(f"{k} {_setting(v)}" for k, v in d.recipe.items() if v is not None)
    parts = [f"# {outcome.source}, tokenised", f"| | |\n|---|---|{rows}", f"Recipe: {_cell(settings)}."]
    if d.latent_mean:
        channels = enumerate(zip(d.latent_mean, d.latent_std, strict=True))
        lines = "".join(f"\n| {c} | {mean:.4f} | {std:.4f} |" for c, (mean, std) in channels)
        parts.append(f"## Latents\n\nOver {d.latent_count:,} cells.\n\n| channel | mean | std |\n|---|---|---|{lines}")
    if refused := list(csv.DictReader(io.StringIO(store.read_text(QUARANTINE) or ""))):
        parts.append(_quarantine(refused, outcome.out))
    store.write_text(REPORT, dump(outcome.record()))
    store.write_text(REPORT_PAGE, "\n\n".join(parts) + "\n")


def _quarantine(refused: list[dict[str, str]], out: str) -> str:
    reasons = Counter(entry["reason"] for entry in refused).most_common(SHOWN)
    lines = "".join(f"\n| {count:,} | {_cell(reason)} |" for reason, count in reasons)
    named = "".join(f"\n| {_cell(entry['path'])} | {_cell(entry['reason'])} |" for entry in refused[:SHOWN])
    more = f"\n\n{len(refused) - SHOWN:,} more are in `{QUARANTINE}`." if len(refused) > SHOWN else ""
    return (
        f"## Quarantine\n\n| sources | reason |\n|---|---|{lines}\n\n| source | reason |\n|---|---|{named}{more}\n\n"
        f"To try them again: `inlay tokenize {shlex.quote(f'{out}/{QUARANTINE}')} OTHER_OUT`."
    )


def _setting(value: object) -> str:
    """A value of the recipe; `dataset.json` has the numbers of each channel."""
    return f"of {len(value)} channels" if isinstance(value, tuple | list) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
