# SPDX-License-Identifier: Apache-2.0
"""Read token files in shards or folders as samples for training: sparse tokens, or dense latents."""

from __future__ import annotations

from inlay.scale.reading.dataset import TokenDataset
from inlay.scale.reading.dense import LAYOUTS
from inlay.scale.reading.episodes import EpisodeDataset, EpisodeSample
from inlay.scale.reading.members import Member, TokenSet, list_members
from inlay.scale.reading.sample import MODES, SparseBatch, TokenSample, collate_dense, collate_sparse
from inlay.scale.reading.stream import TokenStream

__all__ = [
    "LAYOUTS",
    "MODES",
    "EpisodeDataset",
    "EpisodeSample",
    "Member",
    "SparseBatch",
    "TokenDataset",
    "TokenSample",
    "TokenSet",
    "TokenStream",
    "collate_dense",
    "collate_sparse",
    "list_members",
]
