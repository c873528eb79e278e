# SPDX-License-Identifier: Apache-2.0
"""What training sees of a token file, and the two ways to make a batch of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inlay.container.tokens import Tokens
from inlay.errors import UsageError
from inlay.pack import Packed, pack
from inlay.scale.layout import VideoRecord

MODES = {
    "sparse": "TokenSample: the kept cells with their mask",
    "dense": "a dictionary with latents of every cell, filled",
}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TokenSample:
    """One video of a data set."""

    tokens: Tokens
    record: VideoRecord

    def __repr__(self) -> str:
        return f"TokenSample({self.record.source}: {self.tokens})"

    @property
    def key(self) -> str:
        return self.record.key


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SparseBatch:
    """Several of them, packed."""

    packed: Packed
    records: tuple[VideoRecord, ...]

    def __repr__(self) -> str:
        return f"SparseBatch({self.packed}, with the record of each)"

    def __len__(self) -> int:
        return len(self.records)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> SparseBatch:
        return replace(self, packed=self.packed.to(device, dtype))

    def pin_memory(self) -> SparseBatch:
        return replace(self, packed=self.packed.pin_memory())


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
