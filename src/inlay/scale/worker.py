# SPDX-License-Identifier: Apache-2.0
"""A shard of the plan in, the shard and the record of it in OUT out: what every worker of every engine does."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inlay.codec.calls import Room
from inlay.scale.attempts import Attempts
from inlay.scale.config import TokenizeConfig
from inlay.scale.encode import Encoded, Refused, encode_feeds
from inlay.scale.feed import Feed
from inlay.scale.layout import LatentMoments, VideoRecord, dump, known, shard_name, shard_record_name
from inlay.scale.plan import Shard
from inlay.scale.shards import WRITERS
from inlay.scale.store import Store, open_store
from inlay.tokenizer import Tokenizer

BATCH_PIXELS = 512 * 512  # of a frame, up to which a whole batch of them is encoded together
Told = Callable[[int, int], None]  # videos done, of which refused


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a worker is told once."""

    out: str
    config: TokenizeConfig
    device: str
    threads: int
    batch: int
    run: str  # a name for this run of the job


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """What became of a shard."""

    number: int
    shard: str | None  # None where no video of it could be tokenised
    bytes: int = 0
    sha256: str = ""
    videos: list[VideoRecord] = field(default_factory=list)
    refused: list[dict[str, str]] = field(default_factory=list)  # path, reason
    moments: LatentMoments = field(default_factory=LatentMoments)

    @staticmethod
    def load(store: Store, number: int) -> ShardRecord | None:
        """The record of a shard that is whole; None where it is still to be made."""
        text = store.read_text(shard_record_name(number))
        if text is None:
            return None
        try:
            given: dict[str, Any] = json.loads(text)
            record = ShardRecord(
                **known(ShardRecord, given)
                | {
                    "videos": [VideoRecord(**known(VideoRecord, video)) for video in given["videos"]],
                    "moments": LatentMoments(**{k: _tuple(v) for k, v in given["moments"].items()}),
                }
            )
        except (ValueError, KeyError, TypeError):
            return None
        return record if record.shard is None or store.size(record.shard) == record.bytes else None


class Worker:
    """Holds the model; one shard after the other."""

    def __init__(self, task: Task) -> None:
        import torch

        torch.set_num_threads(task.threads)
        self.task, self.config, self.store = task, task.config, open_store(task.out)
        self.tokenizer: Tokenizer = task.config.load(task.device)
        self.room: Room = {}

    def run(self, shard: Shard, told: Told = lambda done, refused: None) -> ShardRecord:
        """Make the shard, or find that it is there already."""
        attempts = Attempts(self.store, shard.number, self.task.run)
        there = ShardRecord.load(self.store, shard.number)
        if there is not None:
            told(len(shard.items), len(there.refused))
            attempts.clear()
            return there
        results = self._encode(shard, attempts, told)
        try:
            record = self._write(shard, results)
        finally:
            for result in results:
                if isinstance(result, Encoded):
                    result.close()
        self.store.write_text(shard_record_name(shard.number), dump(asdict(record)))
        attempts.clear()
        return record

    def _encode(self, shard: Shard, attempts: Attempts, told: Told) -> list[Encoded | Refused]:
        results: list[Encoded | Refused] = []
        waiting = deque(range(len(shard.items)))
        window: dict[int, Feed] = {}  # place in the shard -> its feed, in order
        try:
            while waiting or window:
                room = self._window(attempts)
                while waiting and len(window) < room:
                    place = waiting.popleft()
                    if attempts.hopeless(place):
                        results.append(Refused(index=shard.first + place, reason=attempts.reason(place)))
                        told(1, 1)
                    else:
                        window[place] = self._feed(shard, place)
                        attempts.begin(window)
                if not window:
                    break
                group = self._group(window, attempts)
                done = self._encode_group(shard, {place: window.pop(place) for place in group})
                results += done
                attempts.begin(window)
                told(len(done), sum(isinstance(r, Refused) for r in done))
        finally:
            for feed in window.values():
                feed.stop()
        return sorted(results, key=lambda result: result.index)

    def _window(self, attempts: Attempts) -> int:
        """How many videos are open at once: those in the network, and as many that are being decoded meanwhile."""
        return self.task.batch if attempts.careful else 2 * self.task.batch

    def _feed(self, shard: Shard, place: int) -> Feed:
        c = self.config
        return Feed(shard.items[place], size=c.size, chunk_frames=c.chunk_frames, keep_going=c.keep_going)

    def _group(self, window: dict[int, Feed], attempts: Attempts) -> list[int]:
        """The first of the open videos, and those of its size: always the same ones, whatever opens first."""
        places = list(window)
        if not places or self.task.batch == 1 or attempts.suspect(places[0]):
            return places[:1]
        sizes = {place: _size(window[place]) for place in places}
        first = sizes[places[0]]
        if first is None:
            return places[:1]
        most = max(1, min(self.task.batch, self.task.batch * BATCH_PIXELS // (first[0] * first[1])))
        alike = [place for place in places if sizes[place] == first and not attempts.suspect(place)]
        return alike[:most]

    def _encode_group(self, shard: Shard, feeds: dict[int, Feed]) -> list[Encoded | Refused]:
        named = {shard.first + place: feed for place, feed in feeds.items()}
        return encode_feeds(named, self.tokenizer, self.config, self.room)

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
            size, sha256 = part.stat().st_size, _sha256(part)
        return ShardRecord(
            number=shard.number,
            shard=name,
            bytes=size,
            sha256=sha256,
            videos=videos,
            refused=refused,
            moments=sum((video.moments for video in made), LatentMoments()),
        )


def _size(feed: Feed) -> tuple[int, int] | None:
    try:
        opened = feed.opened()
    except Exception:  # raised again where the video is encoded, and told there
        return None
    return opened.height, opened.width


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
