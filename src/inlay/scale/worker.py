# SPDX-License-Identifier: Apache-2.0
"""What every worker of every engine does: makes one shard of the plan after the other, and its record.

A decoder that crashes, or a frame too large for the memory, takes its worker with it. A note says at which videos it
was, so that a video at which workers die again and again is given up and the others are not lost with it.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from inlay.codec.calls import BatchLimits
from inlay.scale.config import TokenizeConfig
from inlay.scale.encode import Encoded, Refused, encode_feeds
from inlay.scale.feed import Feed
from inlay.scale.layout import JOB, LatentMoments, dump, shard_name, shard_record_name
from inlay.scale.plan import Shard
from inlay.scale.shards import WRITERS, ShardRecord
from inlay.scale.store import Store, open_store
from inlay.scale.workers import Progress
from inlay.tokenizer import Tokenizer

BATCH_PIXELS = 512 * 512  # of a frame, up to which a whole batch of them is encoded together
ALONE = 3  # deaths after which a video is encoded by itself
HOPELESS = 6  # deaths after which it is given up


@dataclass(frozen=True, kw_only=True)
class Task:
    """What all workers of a job share."""

    out: str
    config: TokenizeConfig
    device: str
    threads: int
    batch: int
    run: str  # a name for this run of the job


class Attempts:
    """At which videos of a shard workers died in this run; runs killed by people or power cuts do not count."""

    def __init__(self, store: Store, number: int, run: str) -> None:
        self.store, self.name, self.run = store, f"{JOB}/shard-{number:05d}.attempts", run
        self.deaths: dict[int, int] = {}
        note: dict[str, Any] = {}
        with suppress(ValueError):  # died while writing the note itself
            note = json.loads(store.read_text(self.name) or "{}")
        if note.get("run") == run:
            self.deaths = {int(place): count for place, count in note["deaths"].items()}
            for place in note["open"]:
                self.deaths[place] = self.deaths.get(place, 0) + 1

    @property
    def careful(self) -> bool:
        """After a death, only what is being encoded is open, so that the next one points at it."""
        return bool(self.deaths)

    def suspect(self, place: int) -> bool:
        return self.deaths.get(place, 0) >= ALONE

    def hopeless(self, place: int) -> bool:
        return self.deaths.get(place, 0) >= HOPELESS

    def reason(self, place: int) -> str:
        return (
            f"the worker died {self.deaths[place]} times while reading or encoding it: a crash in the decoder, or too "
            "little memory for its frames"
        )

    def begin(self, places: Iterable[int]) -> None:
        """Note what is open now."""
        note = {"run": self.run, "open": list(places), "deaths": self.deaths}
        self.store.note(self.name, json.dumps(note))

    def clear(self) -> None:
        self.store.remove(self.name)


class Worker:
    """Holds the model; one shard after the other."""

    def __init__(self, task: Task) -> None:
        import torch

        torch.set_num_threads(task.threads)
        self.task, self.config, self.store = task, task.config, open_store(task.out)
        self.tokenizer: Tokenizer = task.config.load(task.device)
        self.fitting: BatchLimits = {}

    def run(self, shard: Shard, progress: Progress = lambda done, refused: None) -> ShardRecord:
        """Make the shard, or find that it is there already."""
        attempts = Attempts(self.store, shard.number, self.task.run)
        record = ShardRecord.load(self.store, shard.number)
        if record is not None:
            progress(len(shard.items), len(record.refused))
        else:
            results = self._encode(shard, attempts, progress)
            try:
                record = self._write(shard, results)
            finally:
                for result in results:
                    if isinstance(result, Encoded):
                        result.file.close()
            self.store.write_text(shard_record_name(shard.number), dump(asdict(record)))
        attempts.clear()
        return record

    def _encode(self, shard: Shard, attempts: Attempts, progress: Progress) -> list[Encoded | Refused]:
        """Those in the network are open at once, and as many that are being decoded meanwhile."""
        results: list[Encoded | Refused] = []
        waiting = deque(range(len(shard.items)))
        window: dict[int, Feed] = {}  # place in the shard -> its feed, in order
        most = self.task.batch if attempts.careful else 2 * self.task.batch
        try:
            while waiting or window:
                while waiting and len(window) < most:
                    place = waiting.popleft()
                    if attempts.hopeless(place):
                        results.append(Refused(index=shard.first + place, reason=attempts.reason(place)))
                        progress(1, 1)
                    else:
                        window[place] = Feed(shard.items[place], self.config)
                        attempts.begin(window)
                if not window:
                    break
                feeds = {shard.first + place: window.pop(place) for place in self._group(window, attempts)}
                done = encode_feeds(feeds, self.tokenizer, self.config, self.fitting)
                results += done
                attempts.begin(window)
                progress(len(done), sum(isinstance(r, Refused) for r in done))
        finally:
            for feed in window.values():
                feed.stop()
        return sorted(results, key=lambda result: result.index)

    def _group(self, window: dict[int, Feed], attempts: Attempts) -> list[int]:
        """The first of the open videos, and those of its size: always the same ones, whatever opens first."""
        places = list(window)
        if self.task.batch == 1 or attempts.suspect(places[0]):
            return places[:1]
        sizes = {place: feed.size() for place, feed in window.items()}
        first = sizes[places[0]]
        if first is None:
            return places[:1]
        most = max(1, min(self.task.batch, self.task.batch * BATCH_PIXELS // (first[0] * first[1])))
        return [place for place in places if sizes[place] == first and not attempts.suspect(place)][:most]

    def _write(self, shard: Shard, results: list[Encoded | Refused]) -> ShardRecord:
        made = [result for result in results if isinstance(result, Encoded)]
        refused = [
            {"path": shard.items[result.index - shard.first].path, "reason": result.reason}
            for result in results
            if isinstance(result, Refused)
        ]
        if not made:
            return ShardRecord(number=shard.number, shard=None, refused=refused)
        name = shard_name(shard.number, self.config.format)
        with self.store.written(name) as part:
            videos = WRITERS[self.config.format](part, name, made)
            with part.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            size = part.stat().st_size
        return ShardRecord(
            number=shard.number,
            shard=name,
            bytes=size,
            sha256=sha256,
            videos=videos,
            refused=refused,
            moments=sum((video.moments for video in made), LatentMoments()),
        )
