# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F401 (imported for type checkers only; the names stand in the table)
"""Train a LIT for any backbone, or the embedded backbone, from videos. Read `loop.py` first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

_MODULES = {  # imported on first use of one of their names: the command line starts without torch
    "presets": ("BACKBONE_PRESETS", "LIT_PRESETS", "TOGETHER_PRESETS"),
    "config": ("ClipConfig", "LossConfig", "OptimConfig", "TrainConfig", "TrainError"),
    "sampler": ("ClipEntry", "Draw", "Sampler"),
    "data": ("Batch", "ClipSource", "FileClips", "LatentCache", "Loader"),
    "optim": ("Muon",),
    "tasks": ("BackboneTask", "LitTask", "Task"),
    "together": ("TogetherTask",),
    "validate": ("Validation", "ValidationSet"),
    "loop": ("TrainResult", "fit"),
    "runs": ("RunOptions", "train_backbone", "train_lit", "train_together"),
}
_LAZY = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["presets", *_LAZY]

if TYPE_CHECKING:
    from inlay.train import presets
    from inlay.train.config import ClipConfig, LossConfig, OptimConfig, TrainConfig, TrainError
    from inlay.train.data import Batch, ClipSource, FileClips, LatentCache, Loader
    from inlay.train.loop import TrainResult, fit
    from inlay.train.optim import Muon
    from inlay.train.presets import BACKBONE_PRESETS, LIT_PRESETS, TOGETHER_PRESETS
    from inlay.train.runs import RunOptions, train_backbone, train_lit, train_together
    from inlay.train.sampler import ClipEntry, Draw, Sampler
    from inlay.train.tasks import BackboneTask, LitTask, Task
    from inlay.train.together import TogetherTask
    from inlay.train.validate import Validation, ValidationSet


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "presets":
        return import_module("inlay.train.presets")
    if name not in _LAZY:
        raise AttributeError(f"module 'inlay.train' has no attribute {name!r}")
    return getattr(import_module(f"inlay.train.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
