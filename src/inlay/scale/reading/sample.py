# SPDX-License-Identifier: Apache-2.0
"""What training sees of a token file, and the two ways to make a batch of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inlay.container import open as open_tokens
from inlay.container.tokens import Tokens
from inlay.errors import TokenFileError, UsageError, pick
from inlay.pack import Packed, pack
from inlay.scale.layout import VideoRecord
from inlay.scale.reading.dense import DenseConfig, Densifier
from inlay.scale.reading.fetch import Fetched
from inlay.scale.reading.files import as_file
from inlay.scale.reading.members import Member, TokenSet, record_of

MODES = {
    "sparse": "TokenSample: the kept cells with their mask",
    "dense": "a dictionary with latents of every cell, filled",
}
DAMAGED = {
    "raise": "a token file that cannot be read ends the reading with its name",
    "skip": "it is left out, named in the log and counted",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenSample:
    """One video of a data set."""

    tokens: Tokens
    record: VideoRecord

    @property
    def key(self) -> str:
        return self.record.key


@dataclass(frozen=True, kw_only=True, eq=False)
class SparseBatch:
    """Several of them, packed."""

    packed: Packed
    records: tuple[VideoRecord, ...]

    def __len__(self) -> int:
        return len(self.records)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> SparseBatch:
        return replace(self, packed=self.packed.to(device, dtype))

    def pin_memory(self) -> SparseBatch:
        return replace(self, packed=self.packed.pin_memory())


class Opener:
    """Turns members into samples as `mode` says; `also` adds fields of the user's own, such as text embeddings."""

    def __init__(
        self,
        source: TokenSet,
        *,
        mode: str,
        damaged: str,
        normalise: bool,
        dense: DenseConfig,
        also: Callable[[VideoRecord], dict[str, Any]] | None,
    ) -> None:
        pick("mode", mode, MODES)
        pick("choice for damaged files", damaged, DAMAGED)
        self.mode, self.skip, self.also = mode, damaged == "skip", also
        if normalise:
            if source.dataset is None:
                raise UsageError("only a data set written by inlay tokenize knows its latent mean and std")
            mean, std = tuple(source.dataset.latent_mean), tuple(source.dataset.latent_std)
            dense = replace(dense, mean=mean, std=std)
        self.densify = Densifier(dense)
        self.skipped = torch.zeros(64, dtype=torch.int64).share_memory_()  # a place for each worker: no two write one

    def open(self, member: Member, data: Fetched) -> Any:
        """The sample, or None for one that is skipped."""
        try:
            if not isinstance(data, bytes):
                raise data
            return self._sample(member, data)
        except TokenFileError as error:
            if not self.skip:
                raise
            logging.getLogger(__name__).warning("skipped: %s", error)
            worker = torch.utils.data.get_worker_info()
            self.skipped[(worker.id if worker else 0) % len(self.skipped)] += 1
            return None

    def _sample(self, member: Member, data: bytes) -> Any:
        record, tokens = record_of(member, data), open_tokens(as_file(data, member.name))
        if self.mode == "sparse":
            return TokenSample(tokens=tokens, record=record)
        sample = self.densify(tokens, record)
        return sample | self.also(record) if self.also else sample


def collate_sparse(samples: Sequence[TokenSample | None]) -> SparseBatch | None:
    """One packed batch; skipped samples are left out, and a batch of nothing else is None."""
    here = [s for s in samples if s is not None]
    if not here:
        return None
    return SparseBatch(packed=pack([s.tokens for s in here]), records=tuple(s.record for s in here))


def collate_dense(samples: Sequence[dict[str, Any] | None]) -> Any:
    """PyTorch's own collation, with skipped samples left out; a batch of nothing else is None."""
    here = [s for s in samples if s is not None]
    shapes = {tuple(s[name].shape) for s in here for name in ("latents", "pth") if name in s}
    if len(shapes) > 1:
        raise UsageError(
            f"latents of different shapes cannot be stacked: {sorted(shapes)}; "
            "batch clips of one shape together (ShapeSampler), or one at a time"
        )
    return torch.utils.data.default_collate(here) if here else None
