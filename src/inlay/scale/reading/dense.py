# SPDX-License-Identifier: Apache-2.0
"""Dense latents of token files, in the dictionary one's trainer expects.

Legend: C channels, T latent slots, h w latent rows and columns.
"""

from __future__ import annotations

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
from inlay.errors import MissingError, pick
from inlay.fill import FILLS, LIT_FILES, Filler, load_lit
from inlay.scale.layout import VideoRecord

MAKERS_CHOICE = "auto"


@dataclass(frozen=True, kw_only=True)
class Densifier:
    """Makes dense latents without a backbone: a worker that only reads need not load a decoder."""

    fill: str = MAKERS_CHOICE  # auto: the one the token file names
    weights: str | None = None  # a LIT's file, or the folder it lies in; None: those that ship with the backbone
    layout: str = "plain"
    dtype: torch.dtype | None = None  # None: the layout's own
    device: str = "cpu"
    mean: tuple[float, ...] | None = None  # of each channel: latents come out normalised
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        pick("fill", self.fill, {MAKERS_CHOICE: None, **FILLS, **LIT_FILES})
        pick("layout", self.layout, LAYOUTS)

    def __call__(self, tokens: Tokens, record: VideoRecord) -> dict[str, Any]:
        layout = LAYOUTS[self.layout]
        return layout.build(self.latents(tokens).to(self.dtype or layout.dtype), record)

    @torch.no_grad()
    def latents(self, tokens: Tokens) -> Tensor:
        """[C, T, h, w] float32 of a whole video."""
        name = tokens.recipe.fill if self.fill == MAKERS_CHOICE else self.fill
        decoder = LatentDecoder(_filler(name, tokens.recipe.backbone, self.weights, self.device))
        z_CThw = torch.cat([decoder.push(chunk) for chunk in tokens.chunks()], dim=2)[0].float().cpu()
        if self.mean is not None and self.std is not None:
            mean, std = (torch.tensor(x).view(-1, 1, 1, 1) for x in (self.mean, self.std))
            z_CThw = (z_CThw - mean) / std.clamp(min=1e-6)
        return z_CThw.clone() if z_CThw.is_inference() else z_CThw  # a trainer wants an ordinary tensor


@lru_cache(maxsize=8)
def _filler(name: str, backbone: str, weights: str | None, device: str) -> Filler:
    if name in FILLS:
        return Filler(default=name, device=device)
    path = Path(weights) if weights else WEIGHTS
    if not path.is_file():
        path = path / f"{Path(backbone).name}.{pick('fill', name, LIT_FILES)}.safetensors"
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


LAYOUTS = {
    "plain": Layout(build=plain, dtype=torch.float32),
    "ltx": Layout(build=ltx, dtype=torch.bfloat16),
    "fastvideo": Layout(build=fastvideo, dtype=torch.float32),
    "nemo": Layout(build=nemo, dtype=torch.bfloat16),
}
