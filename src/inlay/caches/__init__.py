# SPDX-License-Identifier: Apache-2.0
"""Latent caches of trainers (musubi-tuner, DiffSynth-Studio, SimpleTuner, LTX-2, FastVideo): to tokens and back."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_LAZY = {  # public name -> its module, imported on first use
    "PackConfig": "inlay.caches.convert",
    "pack_cache": "inlay.caches.convert",
    "unpack_cache": "inlay.caches.restore",
    "verify_cache": "inlay.caches.restore",
    "MakeConfig": "inlay.caches.make",
    "make_cache": "inlay.caches.make",
    "PackedCache": "inlay.caches.reader",
    "DiffSynthDataset": "inlay.caches.trainers",
    "FastVideoDataset": "inlay.caches.trainers",
    "LtxDataset": "inlay.caches.trainers",
    "SimpleTunerFiles": "inlay.caches.trainers",
    "serve_musubi": "inlay.caches.trainers",
}

__all__ = [
    "DiffSynthDataset",
    "FastVideoDataset",
    "LtxDataset",
    "MakeConfig",
    "PackConfig",
    "PackedCache",
    "SimpleTunerFiles",
    "make_cache",
    "pack_cache",
    "serve_musubi",
    "unpack_cache",
    "verify_cache",
]

if TYPE_CHECKING:
    from inlay.caches.convert import PackConfig, pack_cache
    from inlay.caches.make import MakeConfig, make_cache
    from inlay.caches.reader import PackedCache
    from inlay.caches.restore import unpack_cache, verify_cache
    from inlay.caches.trainers import DiffSynthDataset, FastVideoDataset, LtxDataset, SimpleTunerFiles, serve_musubi


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'inlay.caches' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
