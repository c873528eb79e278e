# SPDX-License-Identifier: Apache-2.0
"""Whole data sets: videos in, shards of token files and a manifest out, on one machine or on many; and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

_DOORS = {  # public name -> the module that holds it, opened on first use
    "tokenize": "inlay.scale.job",
    "Progress": "inlay.scale.job",
    "TokenizeConfig": "inlay.scale.config",
    "RunConfig": "inlay.scale.engine",
    "Outcome": "inlay.scale.report",
    "TokenDataset": "inlay.scale.reading",
    "TokenStream": "inlay.scale.reading",
}

__all__ = ["Outcome", "Progress", "RunConfig", "TokenDataset", "TokenStream", "TokenizeConfig", "tokenize"]

if TYPE_CHECKING:
    from inlay.scale.config import TokenizeConfig
    from inlay.scale.engine import RunConfig
    from inlay.scale.job import Progress, tokenize
    from inlay.scale.reading import TokenDataset, TokenStream
    from inlay.scale.report import Outcome


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _DOORS:
        raise AttributeError(f"module 'inlay.scale' has no attribute {name!r}")
    return getattr(import_module(_DOORS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
