# SPDX-License-Identifier: Apache-2.0
"""Whole data sets: videos to shards of token files with a manifest, on one machine or on many; and readers of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_LAZY = {  # public name -> its module, imported on first use
    "tokenize": "inlay.scale.job",
    "TokenizeProgress": "inlay.scale.job",
    "TokenizeConfig": "inlay.scale.config",
    "RunConfig": "inlay.scale.config",
    "TokenizeResult": "inlay.scale.report",
    "EpisodeDataset": "inlay.scale.reading",
    "TokenDataset": "inlay.scale.reading",
    "TokenStream": "inlay.scale.reading",
}

__all__ = [
    "EpisodeDataset",
    "RunConfig",
    "TokenDataset",
    "TokenStream",
    "TokenizeConfig",
    "TokenizeProgress",
    "TokenizeResult",
    "tokenize",
]

if TYPE_CHECKING:
    from inlay.scale.config import RunConfig, TokenizeConfig
    from inlay.scale.job import TokenizeProgress, tokenize
    from inlay.scale.reading import EpisodeDataset, TokenDataset, TokenStream
    from inlay.scale.report import TokenizeResult


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'inlay.scale' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
