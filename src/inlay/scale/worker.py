# SPDX-License-Identifier: Apache-2.0
"""What every worker of every engine does: makes one shard of the plan after the other, and its record.

A decoder that crashes, or a frame too large for the memory, takes its worker with it. A note says at which videos it
was, so that a video at which workers die again and again is given up and the others are not lost with it.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from inlay.codec.calls import BatchLimits
from inlay.scale.config import TokenizeConfig
from inlay.scale.encode import Encoded, Refused, encode_feeds
from inlay.scale.feed import Decode, Feed, OpenVideo, decode_item
from inlay.scale.gpu_helpers import HelperDied, Helpers
from inlay.scale.layout import JOB, LatentMoments, dump, shard_name, shard_record_name
from inlay.scale.plan import Shard
from inlay.scale.shards import WRITERS, ShardRecord
from inlay.scale.store import Store, open_store
from inlay.scale.workers import Progress
from inlay.tokenizer import Tokenizer
from inlay.video import open_video

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
    helpers: int = 0  # processes beside each worker that pack tokens; with any, others decode. 0: all in the worker
    opens: OpenVideo = open_video  # what opens videos, by a name that other processes can import


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

        helpers = None
        if task.helpers:  # begun before the GPU is: they start while the network is loaded
            pins = task.device.startswith("cuda")
            helpers = Helpers(videos=2 * task.batch, packers=task.helpers, pins=pins, opens=task.opens)
        torch.set_num_threads(task.threads)
        self.task, self.config, self.store = task, task.config, open_store(task.out)
        self.tokenizer: Tokenizer = task.config.load(task.device)
        self.fitting: BatchLimits = {}
        self.helpers = helpers

    def close(self) -> None:
        """End the processes that help."""
        if self.helpers is not None:
            self.helpers.close()

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
        results: list[Encoded | Refused] = []
        opened = OpenVideos(self, shard, attempts)
        pack = None if self.helpers is None else self.helpers.pack
        # after a death nothing of the next group is open before this one is done
        rows: Iterable[Iterable[dict[int, Feed]]] = ([group] for group in opened) if attempts.careful else [opened]
        try:
            for groups in rows:
                made = encode_feeds(groups, self.tokenizer, self.config, self.fitting, batch=self.task.batch, pack=pack)
                with closing(made):
                    for done in made:
                        results += done
                        opened.done(result.index for result in done)
                        progress(len(done), sum(isinstance(r, Refused) for r in done))
        except BrokenProcessPool as error:
            raise HelperDied("a process that packed tokens died") from error
        finally:
            opened.close()
        for refused in opened.refused:
            progress(1, 1)
            results.append(refused)
        return sorted(results, key=lambda result: result.index)

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
        moments = sum((video.moments for video in made), LatentMoments())
        return ShardRecord(
            number=shard.number, shard=name, bytes=size, sha256=sha256, videos=videos, refused=refused, moments=moments
        )  # fmt: skip


class OpenVideos:
    """The videos of a shard, opened in order: those in the network, and as many that are being decoded meanwhile."""

    def __init__(self, worker: Worker, shard: Shard, attempts: Attempts) -> None:
        self.shard, self.attempts, self.batch, self.config = shard, attempts, worker.task.batch, worker.config
        helpers = worker.helpers
        self.decode: Decode = helpers.decode if helpers else partial(decode_item, opens=worker.task.opens)
        self.refused: list[Refused] = []
        self._waiting = deque(range(len(shard.items)))
        self._window: dict[int, Feed] = {}  # place in the shard -> its feed, in order
        self._working: list[int] = []  # places in the network, or on their way out of it
        self._most = self.batch if attempts.careful else 2 * self.batch

    def __iter__(self) -> Iterator[dict[int, Feed]]:
        """Groups that are encoded in step, by index among the sources."""
        while self._waiting or self._window:
            self._open()
            if not self._window:
                return
            places = self._group()
            self._working += places
            yield {self.shard.first + place: self._window.pop(place) for place in places}

    def done(self, indices: Iterable[int]) -> None:
        """These are out of the network."""
        gone = {index - self.shard.first for index in indices}
        self._working = [place for place in self._working if place not in gone]
        self._note()

    def close(self) -> None:
        for feed in self._window.values():
            feed.stop()

    def _open(self) -> None:
        while self._waiting and len(self._window) < self._most:
            place = self._waiting.popleft()
            if self.attempts.hopeless(place):
                self.refused.append(Refused(index=self.shard.first + place, reason=self.attempts.reason(place)))
            else:
                self._window[place] = Feed(self.shard.items[place], self.config, self.decode)
                self._note()

    def _note(self) -> None:
        self.attempts.begin([*self._working, *self._window])

    def _group(self) -> list[int]:
        """The first of the open videos, and those of its size: always the same ones, whatever opens first."""
        places = list(self._window)
        if self.batch == 1 or self.attempts.suspect(places[0]):
            return places[:1]
        sizes = {place: feed.size() for place, feed in self._window.items()}
        first = sizes[places[0]]
        if first is None:
            return places[:1]
        most = max(1, min(self.batch, self.batch * BATCH_PIXELS // (first[0] * first[1])))
        return [place for place in places if sizes[place] == first and not self.attempts.suspect(place)][:most]
