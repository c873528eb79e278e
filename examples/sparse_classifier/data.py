# SPDX-License-Identifier: Apache-2.0
"""Packed batches of the clips in a file of latents, in each of five readings.

Legend: B clips, C channels, T H W the grid of cells, N cells of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from inlay.errors import UsageError
from inlay.fill import hold
from inlay.masking import MaskConfig, keep_mask
from inlay.pack import Packed, pack_kept, pack_latents

READINGS = {
    "dense": "every cell of the latents",
    "hold": "every cell, the dropped ones as the last kept: what mode='dense' reads from a token file",
    "sparse": "the kept cells alone, with their run lengths",
    "sparse, no run lengths": "the kept cells alone, with their places only",
    "random": "as many cells of each clip as are kept, but drawn by lot",
}
FOLDS = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Data:
    """Latents with labels, whitened by the mean and spread of the training clips; the mask is made before that."""

    z_BCTHW: Tensor
    keep_BTHW: Tensor
    labels_B: Tensor
    sources_B: Tensor  # clips cut from one video share theirs
    train: Tensor
    test: Tensor
    classes: tuple[str, ...]
    about: str

    @staticmethod
    def load(
        path: Path,
        tau: float | None = None,
        only: list[str] | None = None,
        *,
        fold: int = FOLDS - 1,
        device: torch.device | str = "cpu",
    ) -> Data:
        """The clips of fold `fold` for testing, all others for training."""
        with np.load(path) as file:
            classes, about = tuple(file["classes"].tolist()), str(file["about"])
            chosen = [name for name in classes if only is None or name in only]
            if len(chosen) < 2:
                raise UsageError(f"a task has at least two classes; {path.name} has {', '.join(classes)}")
            rows = np.isin(file["labels"], [classes.index(name) for name in chosen])
            step_C = torch.from_numpy(file["step"]).view(-1, 1, 1, 1)
            z = torch.from_numpy(file["latents"][rows]).float() * step_C
            train = torch.from_numpy(file["folds"][rows] != fold % FOLDS)
            labels = torch.tensor([chosen.index(classes[i]) for i in file["labels"][rows]])
            sources = torch.from_numpy(file["sources"][rows])
            tau = float(file["tau"]) if tau is None else tau
        keep = keep_mask(z, MaskConfig(tau=tau))
        mean = z[train].mean((0, 2, 3, 4), keepdim=True)
        std = z[train].std((0, 2, 3, 4), keepdim=True).clamp(min=1e-6)
        return Data(
            z_BCTHW=((z - mean) / std).to(device),
            keep_BTHW=keep.to(device),
            labels_B=labels.to(device),
            sources_B=sources,
            train=train.nonzero()[:, 0],
            test=(~train).nonzero()[:, 0],
            classes=tuple(chosen),
            about=f"{about}, tau {tau:g}",
        )

    @property
    def cells(self) -> int:
        return self.keep_BTHW[0].numel()

    @property
    def keep_rate(self) -> float:
        return self.keep_BTHW.float().mean().item()

    def read(self, clips: Tensor, reading: str, rng: torch.Generator) -> Packed:
        """A batch of these clips, the way `reading` says."""
        clips = clips.to(self.z_BCTHW.device)
        z, keep = self.z_BCTHW[clips], self.keep_BTHW[clips]
        if reading == "dense":
            return pack_latents(z)
        if reading == "hold":
            return pack_latents(hold(z * keep[:, None], keep))
        return pack_kept(z, lot(keep, rng) if reading == "random" else keep)


def lot(keep_BTHW: Tensor, rng: torch.Generator) -> Tensor:
    """As many cells of each clip, drawn by lot."""
    flat = keep_BTHW.flatten(1)
    place = torch.rand(flat.shape, generator=rng).to(flat.device).argsort(1).argsort(1)
    return (place < flat.sum(1, keepdim=True)).view_as(keep_BTHW)
