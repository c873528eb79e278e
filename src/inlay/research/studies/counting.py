# SPDX-License-Identifier: Apache-2.0
"""A backbone and its fills in, the same out, with every evaluation of a network counted as it happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from inlay.backbones import Backbone, BackboneSpec
from inlay.fill import Lit


@dataclass
class Tally:
    """Evaluations so far, by phase and kind (`encode`, `decode`, `fill`)."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    phase: str = "run"

    def add(self, kind: str, evaluations: int = 1) -> None:
        self.counts.setdefault(self.phase, Counter())[kind] += evaluations

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


class CountingBackbone:
    """Stands in for a backbone; each clip that enters `encode` or `decode` is one evaluation."""

    def __init__(self, backbone: Backbone, tally: Tally) -> None:
        self.inner, self.tally = backbone, tally

    @property
    def spec(self) -> BackboneSpec:
        return self.inner.spec

    def encode(self, x_BCTHW: Tensor) -> Tensor:
        self.tally.add("encode", len(x_BCTHW))
        return self.inner.encode(x_BCTHW)

    def decode(self, z_BCTHW: Tensor) -> Tensor:
        self.tally.add("decode", len(z_BCTHW))
        return self.inner.decode(z_BCTHW)

    def encode_next(self, x_BCTHW: Tensor, state: Any) -> Any:
        self.tally.add("encode", len(x_BCTHW))
        return self.inner.encode_next(x_BCTHW, state)  # type: ignore[attr-defined]

    def decode_next(self, z_BCTHW: Tensor, state: Any) -> Any:
        self.tally.add("decode", len(z_BCTHW))
        return self.inner.decode_next(z_BCTHW, state)  # type: ignore[attr-defined]

    def to(self, *args: Any, **kwargs: Any) -> CountingBackbone:
        self.inner.to(*args, **kwargs)
        return self


def count_lits(lits: Mapping[str, Lit], tally: Tally) -> None:
    """Book each forward pass of these networks, whoever calls it."""
    for lit in lits.values():
        lit.register_forward_pre_hook(lambda module, inputs: tally.add("fill", len(inputs[0])))
