# SPDX-License-Identifier: Apache-2.0
"""The records of all shards in; manifest, quarantine list and the description of the set out, the same every time."""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import asdict
from typing import Any

from inlay.scale.layout import (
    DATASET,
    LAYOUT_VERSION,
    MANIFEST,
    QUARANTINE,
    DatasetRecord,
    LatentMoments,
    dump,
)
from inlay.scale.plan import Shard, ShardPlan
from inlay.scale.store import OutputError, Store
from inlay.scale.worker import ShardRecord


def finish(store: Store, plan: ShardPlan, shards: list[Shard], recipe: dict[str, Any]) -> tuple[DatasetRecord, Counter]:
    """Write what describes the whole set, and `dataset.json` last. Also counts what people should know of."""
    moments = LatentMoments()
    totals: Counter[str] = Counter()
    entries: list[dict[str, Any]] = []
    lines, refused, hashes = io.StringIO(), [], Counter[str]()
    for shard in shards:
        record = ShardRecord.load(store, shard.number)
        if record is None:
            raise OutputError(f"shard {shard.number} is gone from {store}; run the same command again to make it anew")
        moments += record.moments
        refused += record.refused
        for video in record.videos:
            lines.write(video.line() + "\n")
            hashes[video.sha256] += 1
            totals += Counter(
                videos=1,
                damaged=video.damage is not None,
                frames=video.frames,
                tokens=video.tokens,
                cells=video.cells,
                bytes=video.bytes,
            )
        if record.shard is not None:
            entries.append({"name": record.shard, "videos": len(record.videos), "bytes": record.bytes,
                            "sha256": record.sha256})  # fmt: skip
    dataset = DatasetRecord(
        layout_version=LAYOUT_VERSION,
        format=plan.config.format,
        recipe=recipe,
        options=asdict(plan.config),
        videos=totals["videos"],
        quarantined=len(refused),
        frames=totals["frames"],
        tokens=totals["tokens"],
        cells=totals["cells"],
        keep_rate=totals["tokens"] / totals["cells"] if totals["cells"] else 0.0,
        bytes=totals["bytes"],
        latent_count=moments.count,
        latent_mean=list(moments.mean) if moments.count else [],
        latent_std=list(moments.std) if moments.count else [],
        shards=entries,
    )
    store.write_text(MANIFEST, lines.getvalue())
    store.write_text(QUARANTINE, quarantine_list(refused))
    store.write_text(DATASET, dump(asdict(dataset)))
    return dataset, Counter(repeated=sum(n - 1 for n in hashes.values()), damaged=totals["damaged"])


def quarantine_list(refused: list[dict[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, ("path", "reason"), lineterminator="\n")
    writer.writeheader()
    writer.writerows(refused)
    return text.getvalue()
