# SPDX-License-Identifier: Apache-2.0
"""`TokenDataset`: the samples of a data set by number, for samplers that know what they want."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from inlay.scale.layout import DatasetRecord, VideoRecord
from inlay.scale.reading.dense import MAKERS_CHOICE, DenseConfig
from inlay.scale.reading.fetch import Fetcher
from inlay.scale.reading.files import Place
from inlay.scale.reading.members import list_members, record_of
from inlay.scale.reading.sample import Opener


class TokenSource:
    """What both readers share: the list of members, how samples are made, and the latent statistics."""

    def __init__(
        self,
        source: Place | Sequence[Place],
        *,
        mode: str = "sparse",
        fill: str = MAKERS_CHOICE,
        layout: str = "plain",
        weights: str | None = None,
        dtype: torch.dtype | None = None,
        device: str = "cpu",
        normalise: bool = False,
        damaged: str = "raise",
        also: Callable[[VideoRecord], dict[str, Any]] | None = None,
    ) -> None:
        dense = DenseConfig(fill=fill, layout=layout, weights=weights, dtype=dtype, device=device)
        self.set = list_members(source)
        self.members = self.set.members
        self.opener = Opener(self.set, mode=mode, damaged=damaged, normalise=normalise, dense=dense, also=also)
        self.fetcher = Fetcher()

    @property
    def dataset(self) -> DatasetRecord | None:
        """`dataset.json`: recipe, totals, and the latent mean and std of each channel; None for loose files."""
        return self.set.dataset

    @property
    def skipped(self) -> int:
        """Damaged token files left out so far, by all workers of this process together."""
        return int(self.opener.skipped.sum())


class TokenDataset(TokenSource, Dataset[Any]):
    """A data set by number.

    data = TokenDataset("tokens/", mode="sparse")
    sampler = TokenBudgetSampler(data.token_counts, budget=16_384, rank=rank, world=world)
    for batch in DataLoader(data, batch_sampler=sampler, collate_fn=collate_sparse, num_workers=4): ...

    With damaged="skip" such a sample is None: the collations here leave it out.
    """

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, i: int) -> Any:
        member = self.members[i]
        return self.opener.open(member, self.fetcher.many([member])[0])

    def records(self) -> list[VideoRecord]:
        """The manifest; of loose files each is opened once to see what it holds."""
        if any(m.record is None for m in self.members):
            self.members = tuple(
                m if m.record else replace(m, record=record_of(m, self.fetcher.one(m))) for m in self.members
            )
        return [m.record for m in self.members if m.record is not None]

    @property
    def token_counts(self) -> np.ndarray:
        """[videos] int64, for a TokenBudgetSampler."""
        return np.array([r.tokens for r in self.records()], dtype=np.int64)

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """(frames, height, width) of each video, for a ShapeSampler."""
        return [(r.frames, r.height, r.width) for r in self.records()]
