# SPDX-License-Identifier: Apache-2.0
"""The plan of a job: which video goes into which shard, decided before the first is read."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from inlay.errors import UsageError
from inlay.scale.config import TokenizeConfig
from inlay.scale.layout import LAYOUT_VERSION, PLAN, SOURCES, dump, known
from inlay.scale.sources import SourceItem, dump_sources, parse_sources
from inlay.scale.store import Store

MOST_VIDEOS = 256  # in a shard
FEWEST_SHARDS = 64  # where there are enough videos, so that many workers have something to do
MOST_BYTES = 1 << 30  # of sources in a shard: what is lost when a worker is


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A unit of work: written whole by one worker."""

    number: int
    first: int  # place of its first video among the sources
    items: tuple[SourceItem, ...]


@dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """All that decides the bytes of OUT."""

    config: TokenizeConfig
    items: tuple[SourceItem, ...] = field(repr=False)
    device: str  # the kind that the job began on: cpu, cuda, mps
    threads: int  # of torch in each worker; sums differ in their last bits with it
    batch: int
    weight_hash: str

    def shards(self) -> list[Shard]:
        """Consecutive sources: so many videos, or so many bytes, whichever is reached first."""
        most = self.config.shard_videos or max(1, min(MOST_VIDEOS, len(self.items) // FEWEST_SHARDS))
        shards: list[Shard] = []
        begin = size = 0
        for place, item in enumerate(self.items):
            if place > begin and (place - begin == most or size + (item.size_bytes or 0) > MOST_BYTES):
                shards.append(Shard(number=len(shards), first=begin, items=self.items[begin:place]))
                begin, size = place, 0
            size += item.size_bytes or 0
        shards.append(Shard(number=len(shards), first=begin, items=self.items[begin:]))
        return shards

    def facts(self) -> dict[str, Any]:
        """What must not change from one run to the next."""
        sources = dump_sources(self.items)
        return {
            "layout_version": LAYOUT_VERSION,
            "options": asdict(self.config),
            "device": self.device,
            "threads": self.threads,
            "batch": self.batch,
            "weight_hash": self.weight_hash,
            "sources": len(self.items),
            "sources_sha256": hashlib.sha256(sources.encode()).hexdigest(),
        }

    def save(self, store: Store) -> None:
        """The sources first: where there is a plan, it is whole."""
        store.write_text(SOURCES, dump_sources(self.items))
        store.write_text(PLAN, dump(self.facts()))


def load_facts(store: Store) -> dict[str, Any] | None:
    """The plan that OUT was begun with; None where there is none."""
    text = store.read_text(PLAN)
    if text is None:
        return None
    try:
        facts = json.loads(text)
        TokenizeConfig(**known(TokenizeConfig, facts["options"]))
        return facts
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{store}/{PLAN} is damaged ({error}); give another OUT, or remove this one") from error


def check_same(store: Store, begun: dict[str, Any], plan: ShardPlan) -> None:
    """Refuse to go on with other sources or settings: the result would be neither one set nor the other."""
    now, before = plan.facts(), begun["options"]
    other = {name: now["options"].get(name) for name in before if now["options"].get(name) != before[name]}
    changed = [f"{name} was {before[name]!r} and is {value!r}" for name, value in other.items()]
    others = [name for name in ("device", "weight_hash") if begun[name] != now[name]]
    changed += [f"the {name.replace('_', ' ')} was {begun[name]} and is {now[name]}" for name in others]
    if begun["layout_version"] != now["layout_version"]:
        changed.append(f"its layout has version {begun['layout_version']}, this is version {now['layout_version']}")
    if changed:
        raise UsageError(
            f"{store} was begun with other settings: {'; '.join(changed)}; give the same settings, or another OUT",
            about=tuple(other),
        )
    if begun["sources_sha256"] != now["sources_sha256"]:
        raise UsageError(
            f"the sources have changed since {store} was begun: {_difference(store, plan)}; "
            "restore them, or give another OUT"
        )


def _difference(store: Store, plan: ShardPlan) -> str:
    before = {item.name: item for item in parse_sources(store.read_text(SOURCES) or "")}
    after = {item.name: item for item in plan.items}
    gone, new = [n for n in before if n not in after], [n for n in after if n not in before]
    other = [n for n in after if n in before and after[n] != before[n]]
    found = [(names, word) for names, word in ((new, "new"), (gone, "gone"), (other, "changed")) if names]
    words = [f"{len(names)} {word} ({names[0]}{' …' if len(names) > 1 else ''})" for names, word in found]
    return ", ".join(words) or "their order is another"
