# SPDX-License-Identifier: Apache-2.0
"""What `prepare.py` wrote, as each kind of training set holds it: latents, latents filled in, tokens alone.

Legend: B clips, C channels, T slots, H W the grid of cells.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from inlay import Tokenizer
from inlay.container import choose_steps, dequantise, quantise
from inlay.errors import UsageError
from inlay.fill import hold
from inlay.pack import Packed, pack_kept

HOWS = {  # what a model sees, and what it is to predict
    "latents": "all of the backbone's latents",
    "filled": "all latents, dropped ones as LIT fills them in",
    "tokens": "kept cells alone; a dropped one of the future is as it was when it was last kept",
    "tokens+fill": "kept cells alone; a dropped one of the future is as LIT fills it in",
}
FILL_BATCH = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class Clips:
    """Clips with a value for every cell, in units of the channels' deviations; a model is shown those of `keep`."""

    z_BCTHW: Tensor
    keep_BTHW: Tensor

    def past(self, rows: Tensor, slots: int) -> Packed:
        """The cells shown of the first slots, all clips in one sequence."""
        return pack_kept(self.z_BCTHW[rows, :, :slots], self.keep_BTHW[rows, :slots])


@dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """The file of `prepare.py`, on the device that trains."""

    z_BCTHW: Tensor  # the backbone's own latents
    keeps: dict[str, Tensor]  # keep rate -> [B, T, H, W]
    train: Tensor
    test: Tensor
    frames_JTHWC: Tensor  # of the last slots of the clips `judged`
    judged: Tensor
    mean_C: Tensor
    std_C: Tensor
    about: dict[str, Any]
    tokenizer: Tokenizer

    @staticmethod
    def load(path: Path, device: str, weights: str | None = None) -> World:
        if not path.is_file():
            raise UsageError(f"{path}: no such file; make it with prepare.py")
        try:
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
                about = json.loads((file.metadata() or {})["about"])
            z, test_B = tensors["latents"].float(), tensors["test"]
            frames, judged = tensors["frames"], tensors["judged"]
            keeps = {share: tensors[f"keep {share}"].to(device) for share in about["taus"]}
        except (SafetensorError, KeyError, ValueError) as error:
            raise UsageError(f"{path} is not a whole file of prepare.py ({error}); make it again") from error
        tokenizer = Tokenizer.from_pretrained(about["backbone"], device=device, weights=weights)
        if tokenizer.spec.weight_hash != about["weight_hash"]:
            here = tokenizer.spec.weight_hash
            raise UsageError(f"{path} was made with weights {about['weight_hash']} of {about['backbone']}, not {here}; "
                             "prepare it again")  # fmt: skip
        std, mean = torch.std_mean(z[~test_B], dim=(0, 2, 3, 4))
        return World(
            z_BCTHW=z.to(device),
            keeps=keeps,
            train=(~test_B).nonzero()[:, 0].to(device),
            test=test_B.nonzero()[:, 0].to(device),
            frames_JTHWC=frames.to(device),
            judged=judged.to(device),
            mean_C=mean.to(device),
            std_C=std.clamp(min=1e-6).to(device),
            about=about,
            tokenizer=tokenizer,
        )

    @property
    def future(self) -> int:
        return int(self.about["future"])

    @property
    def past(self) -> int:
        """Slots a model sees when it is tested."""
        return self.z_BCTHW.shape[2] - self.future

    @property
    def kinds(self) -> list[str]:
        return ["latents", *(f"{how} {share}" for how in HOWS if how != "latents" for share in self.keeps)]

    def clips(self, kind: str, slots: int | None = None) -> Clips:
        """All clips, or their first slots, as a training set of this kind holds them."""
        how, _, share = kind.partition(" ")
        z = self.z_BCTHW[:, :, :slots]
        if how == "latents":
            return Clips(z_BCTHW=self.normal(z), keep_BTHW=torch.ones_like(z[:, 0], dtype=torch.bool))
        keep = self.keeps[share][:, :slots]
        read = as_read(z, keep)
        if how == "tokens":
            return Clips(z_BCTHW=self.normal(hold(read, keep)), keep_BTHW=keep)
        pairs = zip(read.split(FILL_BATCH), keep.split(FILL_BATCH), strict=True)
        tau = float(self.about["taus"][share])
        filled = torch.cat([torch.where(k[:, None], z, self.tokenizer.fill_cells(z, k, tau)) for z, k in pairs])
        shown = torch.ones_like(keep) if how == "filled" else keep
        return Clips(z_BCTHW=self.normal(filled), keep_BTHW=shown)

    def normal(self, z_BCTHW: Tensor) -> Tensor:
        return (z_BCTHW - self.mean_C.view(-1, 1, 1, 1)) / self.std_C.view(-1, 1, 1, 1)

    def raw(self, z_BCTHW: Tensor) -> Tensor:
        return z_BCTHW * self.std_C.view(-1, 1, 1, 1) + self.mean_C.view(-1, 1, 1, 1)


def as_read(z_BCTHW: Tensor, keep_BTHW: Tensor) -> Tensor:
    """The kept cells as a token file gives them back (q8), zeros elsewhere."""
    read = torch.zeros_like(z_BCTHW).movedim(1, -1)
    for z_THWC, keep_THW, out in zip(z_BCTHW.movedim(1, -1), keep_BTHW, read, strict=True):
        steps = choose_steps(values := z_THWC[keep_THW].cpu())
        out[keep_THW] = dequantise(quantise(values, steps), steps).to(out)
    return read.movedim(-1, 1)
