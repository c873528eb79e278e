# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F401 (imported for type checkers only; the names stand in the table)
"""Videos in, weights out: training of LIT and of the embedded backbone. Read `loop.py` first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

_DOORS = {  # public name -> the module that holds it; opened on first use: the command line starts without torch
    "BACKBONE_PRESETS": "presets", "LIT_PRESETS": "presets", "TOGETHER_PRESETS": "presets",
    "ClipConfig": "config", "LossConfig": "config", "OptimConfig": "config", "TrainConfig": "config",
    "TrainError": "errors",
    "ClipEntry": "sampler", "Draw": "sampler", "Sampler": "sampler",
    "Batch": "data", "ClipSource": "data", "FileClips": "data", "Loader": "data",
    "MixedClips": "resident", "ResidentClips": "resident", "PhotoClips": "photos",
    "PlanarVideo": "ivf", "decode_ivf": "ivf", "i420_to_rgb": "ivf", "remux_to_ivf": "ivf",
    "Muon": "optim", "LatentCache": "cache",
    "BackboneTask": "tasks", "LitTask": "tasks", "Task": "tasks", "Validation": "validate", "ValidationSet": "validate",
    "TogetherTask": "together",
    "Outcome": "loop", "fit": "loop", "train_backbone": "runs", "train_lit": "runs", "train_together": "runs",
}  # fmt: skip

__all__ = ["presets", *_DOORS]

if TYPE_CHECKING:
    from inlay.train import presets
    from inlay.train.cache import LatentCache
    from inlay.train.config import ClipConfig, LossConfig, OptimConfig, TrainConfig
    from inlay.train.data import Batch, ClipSource, FileClips, Loader
    from inlay.train.errors import TrainError
    from inlay.train.ivf import PlanarVideo, decode_ivf, i420_to_rgb, remux_to_ivf
    from inlay.train.loop import Outcome, fit
    from inlay.train.optim import Muon
    from inlay.train.photos import PhotoClips
    from inlay.train.presets import BACKBONE_PRESETS, LIT_PRESETS, TOGETHER_PRESETS
    from inlay.train.resident import MixedClips, ResidentClips
    from inlay.train.runs import train_backbone, train_lit, train_together
    from inlay.train.sampler import ClipEntry, Draw, Sampler
    from inlay.train.tasks import BackboneTask, LitTask, Task
    from inlay.train.together import TogetherTask
    from inlay.train.validate import Validation, ValidationSet


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "presets":
        return import_module("inlay.train.presets")
    if name not in _DOORS:
        raise AttributeError(f"module 'inlay.train' has no attribute {name!r}")
    return getattr(import_module(f"inlay.train.{_DOORS[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
