# SPDX-License-Identifier: Apache-2.0
"""Which videos of a shard are being worked on in, after a death; which of them are under suspicion out.

A decoder that crashes, or a frame too large for the memory, takes its worker with it. The note says at which videos it
was, so that a video at which workers die again and again is given up and the others are not lost with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from inlay.scale.layout import JOB
from inlay.scale.store import Store

ALONE = 3  # deaths after which a video is encoded by itself
HOPELESS = 6  # deaths after which it is given up


class Attempts:
    """The deaths of one run of the job: those of other runs, killed by people or power cuts, do not count."""

    def __init__(self, store: Store, number: int, run: str) -> None:
        self.store, self.name, self.run = store, f"{JOB}/shard-{number:05d}.attempts", run
        note = self._read()
        self.deaths: dict[int, int] = {}
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
        """Say what is open now."""
        note = {"run": self.run, "open": list(places), "deaths": self.deaths}
        self.store.note(self.name, json.dumps(note))

    def clear(self) -> None:
        self.store.remove(self.name)

    def _read(self) -> dict:
        try:
            return json.loads(self.store.read_text(self.name) or "{}")
        except ValueError:  # died while writing the note itself
            return {}
