# SPDX-License-Identifier: Apache-2.0
"""`TokenDataset`: the samples of a data set by number, for samplers that know what they want."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from inlay.container import open as open_tokens
from inlay.errors import TokenFileError, UsageError, pick
from inlay.scale.layout import DatasetRecord, VideoRecord
from inlay.scale.reading.dense import MAKERS_CHOICE, Densifier
from inlay.scale.reading.fetch import Fetched, Fetcher
from inlay.scale.reading.files import as_file
from inlay.scale.reading.members import Member, list_members, record_of
from inlay.scale.reading.sample import MODES, TokenSample
from inlay.scale.store import Place

DAMAGED = {
    "raise": "a token file that cannot be read ends the reading with its name",
    "skip": "it is left out, named in the log and counted",
}


class TokenSource:
    """What both readers share: the list of members, how samples are made, and the latent statistics."""

    def __init__(
        self,
        source: Place | Sequence[Place],
        *,
        mode: str = "sparse",
        fill: str = MAKERS_CHOICE,
        layout: str = "plain",
        weights: Place | None = None,
        dtype: torch.dtype | None = None,
        device: str = "cpu",
        normalise: bool = False,
        damaged: str = "raise",
        also: Callable[[VideoRecord], dict[str, Any]] | None = None,
    ) -> None:
        """What is read, and what is made of it.

        Args:
            source: what `inlay tokenize` wrote, shards, loose token files, or several of these.
            mode: "sparse" gives kept cells, "dense" latents of every cell, which all others but `damaged` are about.
            fill: how dropped cells come back; "auto" is the fill that the token file names.
            layout: the dictionary that a trainer expects, one of `LAYOUTS`.
            weights: a LIT's file or folder, where it did not ship with the backbone.
            dtype: of the latents; the layout's own by default.
            device: where the fill runs.
            normalise: latents less the mean, over the deviation, of the data set.
            damaged: "raise", or "skip" token files that cannot be read.
            also: adds fields of the user's own, such as text embeddings.
        """
        dense = Densifier(fill=fill, layout=layout, weights=weights, dtype=dtype, device=device)
        pick("mode", mode, MODES)
        if mode == "sparse" and (normalise or also or dense != Densifier()):
            raise UsageError("kept cells alone are not filled in, laid out or normalised; give mode='dense' as well")
        pick("choice for damaged files", damaged, DAMAGED)
        self.set = list_members(source)
        self.members = self.set.members
        if normalise:
            if self.dataset is None:
                raise UsageError("only a data set written by inlay tokenize knows its latent mean and std")
            dense = replace(dense, mean=tuple(self.dataset.latent_mean), std=tuple(self.dataset.latent_std))
        self.mode, self.dense, self.damaged, self.also = mode, dense, damaged, also
        self.fetcher = Fetcher()
        self._skipped = torch.zeros(64, dtype=torch.int64).share_memory_()  # a place for each worker: no two write one

    def __repr__(self) -> str:
        made = f"{len(self.members):,} videos" if self.dataset is None else self.dataset.about()
        return f"{type(self).__name__}({made}; {self.mode})"

    @property
    def dataset(self) -> DatasetRecord | None:
        """`dataset.json`: recipe, totals, and the latent mean and std of each channel; None for loose files."""
        return self.set.dataset

    @property
    def skipped(self) -> int:
        """Damaged token files left out so far, by all workers of this process together."""
        return int(self._skipped.sum())

    def denormalise(self, latents: Tensor) -> Tensor:
        """The inverse of `normalise`: latents [C, T, h, w] or a batch of them as `Tokenizer.decode` takes them.

        Where the data set does not normalise, they are such already.
        """
        return self.dense.denormalise(latents)

    def sample(self, member: Member, data: Fetched) -> Any:
        """The sample, or None for one that is skipped."""
        try:
            if not isinstance(data, bytes):
                raise data
            record, tokens = record_of(member, data), open_tokens(as_file(data, member.name))
            if self.mode == "sparse":
                return TokenSample(tokens=tokens, record=record)
            return self.dense(tokens, record) | (self.also(record) if self.also else {})
        except TokenFileError as error:
            if self.damaged == "raise":
                raise
            logging.getLogger(__name__).warning("skipped: %s", error)
            worker = get_worker_info()
            self._skipped[(worker.id if worker else 0) % len(self._skipped)] += 1
            return None


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
        return self.sample(member, self.fetcher.many([member])[0])

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
    def shapes(self) -> list[tuple[int, int, int, int]]:
        """(frames, height, width, cells) of each video, for a ShapeSampler: latents of equal ones can be stacked.

        Cells tell what frames alone do not: a scene cut begins a key chunk, which takes slots of its own.
        """
        return [(r.frames, r.height, r.width, r.cells) for r in self.records()]
