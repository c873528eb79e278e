# SPDX-License-Identifier: Apache-2.0
"""Dense latents of token files, in the dictionary one's trainer expects.

Legend: C channels, T latent slots, h w latent rows and columns.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inlay.backbones import WEIGHTS
from inlay.codec import LatentDecoder
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError, MissingError, ShapeError, pick
from inlay.fill import FILLS, LIT_FILES, Filler, load_lit
from inlay.scale.layout import VideoRecord
from inlay.scale.store import Place
from inlay.tokenizer import pick_device

MAKERS_CHOICE = "auto"
KINDS = {**FILLS, **LIT_FILES}
LEAST_STD = 1e-6


@dataclass(frozen=True, kw_only=True)
class Densifier:
    """Makes dense latents without a backbone: a worker that only reads need not load a decoder."""

    fill: str = MAKERS_CHOICE  # auto: the one the token file names
    weights: Place | None = None  # a LIT's file, or the folder it lies in; None: those that ship with the backbone
    layout: str = "plain"
    dtype: torch.dtype | None = None  # None: the layout's own
    device: str = "cpu"
    mean: tuple[float, ...] | None = None  # of each channel: latents come out normalised
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        pick("fill", self.fill, {MAKERS_CHOICE: None, **KINDS})
        layout = pick("layout", self.layout, LAYOUTS)
        if self.dtype is not None and not (isinstance(self.dtype, torch.dtype) and self.dtype.is_floating_point):
            raise ConfigError(f"latents are floating-point numbers, such as torch.bfloat16; got dtype {self.dtype!r}")
        if layout.fixed and self.dtype not in (None, layout.dtype):
            raise ConfigError(f"{self.layout} is read as {layout.dtype} whatever it says; got dtype {self.dtype}")
        if str(self.device) != "cpu":  # who reads on a CPU need not wake a GPU
            object.__setattr__(self, "device", str(pick_device(self.device)))

    def __call__(self, tokens: Tokens, record: VideoRecord) -> dict[str, Any]:
        layout = LAYOUTS[self.layout]
        return layout.build(self.latents(tokens).to(self.dtype or layout.dtype), record)

    @torch.no_grad()
    def latents(self, tokens: Tokens) -> Tensor:
        """[C, T, h, w] float32 of a whole video."""
        name = tokens.recipe.fill if self.fill == MAKERS_CHOICE else self.fill
        weights = None if self.weights is None else os.fspath(self.weights)
        decoder = LatentDecoder(_filler(name, tokens.recipe.backbone, weights, self.device))
        z_CThw = torch.cat([decoder.push(chunk) for chunk in tokens.chunks()], dim=2)[0].float().cpu()
        if self.mean is not None and self.std is not None:
            mean, std = self._tables(z_CThw)
            z_CThw = (z_CThw - mean) / std
        return z_CThw.clone() if z_CThw.is_inference() else z_CThw  # a trainer wants an ordinary tensor

    def denormalise(self, z: Tensor) -> Tensor:
        """[..., C, T, h, w] latents as a decoder takes them, of those that come out of here."""
        if self.mean is None or self.std is None:
            return z
        if z.ndim < 4 or z.shape[-4] != len(self.mean):
            raise ShapeError(
                f"latents of this data set are [C, T, h, w] or [B, C, T, h, w] with C = {len(self.mean)}; "
                f"got {list(z.shape)}"
            )
        mean, std = self._tables(z)
        return (z * std + mean).to(z.dtype)

    def _tables(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """[C, 1, 1, 1] mean and deviation, where `z` lies; a channel that never changes is not divided by nothing."""
        mean, std = (torch.tensor(x, device=z.device).view(-1, 1, 1, 1) for x in (self.mean, self.std))
        return mean, std.clamp(min=LEAST_STD)


@lru_cache(maxsize=8)
def _filler(name: str, backbone: str, weights: str | None, device: str) -> Filler:
    pick("fill", name, KINDS)
    if name in FILLS:
        return Filler(default=name, device=device)
    path = Path(weights) if weights else WEIGHTS
    if not path.is_file():
        path = path / f"{Path(backbone).name}.{LIT_FILES[name]}.safetensors"
    if not path.is_file():
        raise MissingError(f"there are no weights for the fill {name!r} at {path}; choose fill='hold', or name them")
    return Filler({name: load_lit(path).to(device=torch.device(device))}, default=name, device=device)


# --- layouts --------------------------------------------------------------------------------------------------------


def plain(z_CThw: Tensor, record: VideoRecord) -> dict[str, Any]:
    """Ours: sizes are those of the video."""
    return {"key": record.key, "latents": z_CThw, "caption": record.caption or "", **_video(record)}


def ltx(z_CThw: Tensor, record: VideoRecord) -> dict[str, Any]:
    """The dictionary in the `.pt` files of LTX trainers: sizes are those of the latents."""
    _, T, h, w = z_CThw.shape
    return {"latents": z_CThw, "num_frames": T, "height": h, "width": w, "fps": float(Fraction(record.fps))}


def fastvideo(z_CThw: Tensor, record: VideoRecord) -> dict[str, Any]:
    """A row of FastVideo's Parquet files, less the columns of the text encoder."""
    video = _video(record)
    return {
        "id": record.key,
        "vae_latent_bytes": z_CThw.contiguous().numpy().tobytes(),
        "vae_latent_shape": list(z_CThw.shape),
        "vae_latent_dtype": str(z_CThw.dtype).removeprefix("torch."),
        "file_name": record.source,
        "caption": record.caption or "",
        "media_type": "video",
        "width": video["width"],
        "height": video["height"],
        "num_frames": z_CThw.shape[1],  # FastVideo counts latent slots here
        "duration_sec": video["num_frames"] / video["fps"],
        "fps": video["fps"],
    }


def nemo(z_CThw: Tensor, record: VideoRecord) -> dict[str, Any]:
    """A sample of NeMo's WebDataset tars (Energon), less the `pickle` of the text encoder."""
    return {
        "__key__": record.key,
        "pth": z_CThw,
        "json": {"caption": record.caption or "", "source": record.source, **_video(record)},
    }


def _video(record: VideoRecord) -> dict[str, Any]:
    fps = float(Fraction(record.fps))
    return {"num_frames": record.frames, "height": record.height, "width": record.width, "fps": fps}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A dictionary some trainer expects, and the number format it is usually stored in."""

    build: Callable[[Tensor, VideoRecord], dict[str, Any]]
    dtype: torch.dtype
    fixed: bool = False  # the trainer reads no other


LAYOUTS = {
    "plain": Layout(build=plain, dtype=torch.float32),
    "ltx": Layout(build=ltx, dtype=torch.bfloat16),
    "fastvideo": Layout(build=fastvideo, dtype=torch.float32, fixed=True),
    "nemo": Layout(build=nemo, dtype=torch.bfloat16),
}
