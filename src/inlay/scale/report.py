# SPDX-License-Identifier: Apache-2.0
"""How a job went in, a JSON record and a page for people out."""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import dataclass
from typing import Any

from inlay.scale.layout import QUARANTINE, REPORT, REPORT_PAGE, DatasetRecord, dump
from inlay.scale.store import Store

SHOWN = 20  # sources named on the page; the list has them all


@dataclass(frozen=True, kw_only=True)
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
            "frames": d.frames,
            "tokens": d.tokens,
            "cells": d.cells,
            "keep_rate": d.keep_rate,
            "bytes": d.bytes,
            "videos_before": self.videos_before,
            "videos_now": self.videos_now,
            "seconds": self.seconds,
            "videos_per_second": self.rate,
        }

    def rows(self) -> list[tuple[str, str]]:
        """The same for a person."""
        d = self.dataset
        rows = [
            ("data set", f"{self.out}, {len(d.shards):,} {d.format} shard{'s' * (len(d.shards) != 1)}"),
            ("videos", f"{d.videos:,} tokenised, {d.quarantined:,} in quarantine"),
            (
                "kept",
                f"{d.keep_rate:.1%}: {d.tokens:,} tokens of {d.cells:,} cells, {d.frames:,} frames, "
                f"mode {d.recipe['streaming']}",
            ),
            ("bytes", f"{d.bytes:,} of token files"),
            ("took", f"{self.seconds:.1f} s for {self.videos_now:,} videos, {self.rate:.2f} a second ({self.engine})"),
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
    refused = list(csv.DictReader(io.StringIO(store.read_text(QUARANTINE) or "")))
    store.write_text(REPORT, dump(outcome.record()))
    store.write_text(REPORT_PAGE, page(outcome, refused))


def page(outcome: TokenizeResult, refused: list[dict[str, str]]) -> str:
    """A page in Markdown."""
    parts = [f"# {outcome.source}, tokenised", "| | |\n|---|---|"]
    parts[1] += "".join(f"\n| {name} | {_cell(text)} |" for name, text in outcome.rows())
    d = outcome.dataset
    settings = ", ".join(f"{k} {v}" for k, v in d.recipe.items() if v is not None)
    parts.append(f"Recipe: {_cell(settings)}.")
    if d.latent_mean:
        channels = "".join(
            f"\n| {c} | {mean:.4f} | {std:.4f} |"
            for c, (mean, std) in enumerate(zip(d.latent_mean, d.latent_std, strict=True))
        )
        parts.append(
            f"## Latents\n\nOver {d.latent_count:,} cells.\n\n| channel | mean | std |\n|---|---|---|{channels}"
        )
    if refused:
        parts.append(_quarantine(refused))
    return "\n\n".join(parts) + "\n"


def _quarantine(refused: list[dict[str, str]]) -> str:
    reasons = Counter(entry["reason"] for entry in refused).most_common(SHOWN)
    lines = "".join(f"\n| {count:,} | {_cell(reason)} |" for reason, count in reasons)
    named = "".join(f"\n| {_cell(entry['path'])} | {_cell(entry['reason'])} |" for entry in refused[:SHOWN])
    more = f"\n\n{len(refused) - SHOWN:,} more are in `{QUARANTINE}`." if len(refused) > SHOWN else ""
    return (
        f"## Quarantine\n\n| sources | reason |\n|---|---|{lines}\n\n| source | reason |\n|---|---|{named}{more}\n\n"
        f"To try them again: `inlay tokenize {QUARANTINE} OTHER_OUT`."
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
