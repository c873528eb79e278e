# SPDX-License-Identifier: Apache-2.0
"""Pixels <-> latents, by frozen video autoencoders that are found by name."""

from __future__ import annotations

from pathlib import Path

import torch

from inlay.backbones import hub
from inlay.backbones.base import Backbone, BackboneSpec, State, StatefulBackbone, check_latents, check_pixels
from inlay.backbones.diffusers import class_name, load_diffusers
from inlay.backbones.mini import WEIGHTS, Mini, MiniConfig, load_mini, tiny
from inlay.backbones.own import is_own, load_own
from inlay.backbones.table import ALIASES, BACKBONES, Entry
from inlay.errors import MissingError, UsageError, pick

__all__ = [
    "BACKBONES",
    "WEIGHTS",
    "Backbone",
    "BackboneSpec",
    "Entry",
    "Mini",
    "MiniConfig",
    "State",
    "StatefulBackbone",
    "check_latents",
    "check_pixels",
    "default_tau",
    "is_saved_model",
    "load_backbone",
    "load_mini",
    "resolve",
    "tiny",
]


def load_backbone(
    name: str,
    *,
    weights: str | Path | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    trust: bool = False,
) -> Backbone:
    """The backbone called `name`, frozen, on `device`.

    `name` is one of BACKBONES, the hub's name of one of them, a folder that diffusers saved, or `module:Class`.
    `weights` is a file or folder to load instead of the published one; pickles and TorchScript there need `trust`.
    """
    backbone = _load(resolve(name), Path(weights) if weights else None, trust=trust)
    if isinstance(backbone, torch.nn.Module):
        backbone.eval().requires_grad_(False)
    _ = backbone.spec.weight_hash  # of the weights as they were loaded, whatever arithmetic they will run in
    backbone.to(device=device, dtype=dtype)
    return backbone


def _load(name: str, weights: Path | None, *, trust: bool) -> Backbone:
    if weights is not None and not weights.exists():
        raise MissingError(f"no weights at {weights}; give the path of a file or a folder")
    if is_own(name):
        return load_own(name, weights)
    if is_saved_model(Path(name)):
        return load_diffusers(weights or Path(name), name=name, trust=trust)
    entry = pick("backbone", name, BACKBONES)
    if weights is None and entry.source is not None:
        return entry.load(hub.fetch(entry.source), name=name, trust=True)  # the official repository
    loaded = entry.load(weights, name=name, trust=trust)
    found, wanted = _shape(loaded.spec), (entry.strides[0], entry.strides[2], entry.channels)
    if found[:2] != wanted[:2] or (found != wanted and not entry.other_channels):
        given, known = (f"strides {t}x{s}x{s} and {c} channels" for t, s, c in (found, wanted))
        raise UsageError(f"{weights} holds a model with {given}, and {name} has {known}; name the model it is of")
    return loaded


def _shape(spec: BackboneSpec) -> tuple[int, int, int]:
    return spec.time_stride, spec.space_stride, spec.channels


def resolve(name: str) -> str:
    """The name of the table for what the hub calls a model; other names stay as they are."""
    return ALIASES.get(name.lower(), name)


def is_saved_model(folder: Path) -> bool:
    """Whether a folder is a model that diffusers saved."""
    return class_name(folder) is not None


def default_tau(name: str) -> float | None:
    """The threshold that the paper gives for a backbone, if it gives one."""
    entry = BACKBONES.get(name)
    return entry.tau if entry else None
