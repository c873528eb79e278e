# SPDX-License-Identifier: Apache-2.0
"""A weight file of ours in, `mini` out; and the untrained one that tests use."""

from __future__ import annotations

from pathlib import Path

import torch

from inlay.backbones.mini import Mini, MiniConfig, tiny
from inlay.errors import UsageError
from inlay.weightfile import fill_module, load_weights

WEIGHTS = Path(__file__).parent.parent / "weights"


def load_mini(weights: Path | None = None) -> Mini:
    """The embedded backbone with its trained weights, or with those at `weights`, a file or a folder that holds one."""
    path = weights or WEIGHTS
    path = path / "mini.safetensors" if path.is_dir() else path
    file = load_weights(path)
    try:
        config = MiniConfig(**file.meta.get("config", {}))
    except TypeError as error:
        raise UsageError(f"{path} holds no mini but something else; give its own weights", about="backbone") from error
    backbone = Mini(
        config,
        latent_mean=tuple(file.meta["latent_mean"]) if "latent_mean" in file.meta else None,
        latent_std=tuple(file.meta["latent_std"]) if "latent_std" in file.meta else None,
    )
    fill_module(backbone, file, source=str(path))
    backbone.weight_hash = file.hash
    return backbone


def load_untrained(weights: Path | None = None) -> Mini:
    """A small network of mini's kind with seeded random weights: for tests, never for pictures."""
    del weights
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20260101)
        backbone = Mini(tiny(), name="mini-untrained")
        for p in backbone.parameters():
            if p.ndim == 4 and not p.any():
                torch.nn.init.normal_(p, std=0.05)  # the zero-initialised halves, so that every path is alive
    return backbone
