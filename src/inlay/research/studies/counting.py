# SPDX-License-Identifier: Apache-2.0
"""`Tally`: count the evaluations of networks as they happen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from inlay.codec import Watch


@dataclass
class Tally(Watch):
    """Evaluations so far, by phase and kind (`encode`, `decode`, `fill`); each clip that enters a network is one."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    phase: str = "run"

    def on_network(self, network: str, clips: int) -> None:
        self.counts.setdefault(self.phase, Counter())[network] += clips

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """What runs inside is booked under this phase."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    def reset(self) -> None:
        self.counts = {}

    def of(self, phase: str) -> dict[str, int]:
        return {kind: self.counts.get(phase, Counter())[kind] for kind in ("encode", "decode", "fill")}
