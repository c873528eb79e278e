# SPDX-License-Identifier: Apache-2.0
"""The parts of a tokenizer as modules for other runtimes: encoder, mask, LIT, decoder, each with sample inputs.

Legend: B batch, C channels, T frames or slots, H W grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from inlay.backbones.mini import TIME, Mini
from inlay.errors import MissingError
from inlay.masking import MaskConfig, scored_scan
from inlay.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """One graph: the module, its inputs by name, and the name of its output."""

    module: nn.Module
    inputs: dict[str, Tensor]
    output: str

    def __call__(self) -> Tensor:
        with torch.inference_mode():
            return self.module(*self.inputs.values())


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The clips a graph is made for."""

    height: int = 256
    width: int = 256
    frames: int = 33
    batch: int = 1


class BackboneGraph(nn.Module):
    def __init__(self, backbone: Any) -> None:
        super().__init__()
        self.backbone = backbone


class EncoderGraph(BackboneGraph):
    """x [B, 3, T, H, W] to z; whole clips, all slots at once."""

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        if not isinstance(self.backbone, Mini):
            return self.backbone.encode(x_BCTHW)
        led = torch.cat([x_BCTHW[:, :, :1].expand(-1, -1, TIME - 1, -1, -1), x_BCTHW], dim=2)
        return self.backbone.encoder(led, None)[0]


class DecoderGraph(BackboneGraph):
    """z [B, C, T, H, W] to pixels, not yet clamped."""

    def forward(self, z_BCTHW: Tensor) -> Tensor:
        if not isinstance(self.backbone, Mini):
            return self.backbone.decode(z_BCTHW)
        return self.backbone.decoder(z_BCTHW, None)[0][:, :, TIME - 1 :]


class MaskGraph(nn.Module):
    """z and tau to the keep mask: Algorithm 1, its loop over slots written out."""

    def forward(self, z_BCTHW: Tensor, tau: Tensor) -> Tensor:
        return scored_scan(z_BCTHW, MaskConfig(), tau=tau).keep_BTHW


def encoder(tokenizer: Tokenizer, s: Shape) -> Part:
    return Part(module=EncoderGraph(tokenizer.backbone), inputs={"pixels": pixels(tokenizer, s)}, output="latents")


def decoder(tokenizer: Tokenizer, s: Shape) -> Part:
    return Part(module=DecoderGraph(tokenizer.backbone), inputs={"latents": latents(tokenizer, s)}, output="pixels")


def mask(tokenizer: Tokenizer, s: Shape) -> Part:
    tau = torch.tensor(0.8 * float(sum(tokenizer.spec.latent_std) / tokenizer.spec.channels))
    inputs = {"latents": latents(tokenizer, s), "tau": tau}
    return Part(module=MaskGraph(), inputs=inputs, output="keep")


def lit(tokenizer: Tokenizer, s: Shape) -> Part:
    if "lit" not in tokenizer.filler.lits:
        raise MissingError(f"there are no LIT weights for {tokenizer.spec.name}; leave the part lit out")
    z = latents(tokenizer, s)
    keep = torch.rand(z[:, 0].shape, generator=torch.Generator().manual_seed(1)) < 0.35
    keep[:, 0] = True
    inputs = {"latents": z, "keep": keep, "tau": torch.full((s.batch,), 1.0)}
    return Part(module=tokenizer.filler.lits["lit"], inputs=inputs, output="dense")


PARTS: dict[str, Callable[[Tokenizer, Shape], Part]] = {
    "encoder": encoder,
    "mask": mask,
    "lit": lit,
    "decoder": decoder,
}


def build(tokenizer: Tokenizer, name: str, shape: Shape) -> Part:
    part = PARTS[name](tokenizer, shape)
    part.module.eval().requires_grad_(False)
    return part


def pixels(tokenizer: Tokenizer, s: Shape) -> Tensor:
    spec = tokenizer.spec
    rows, columns = spec.grid(s.height, s.width)
    size = (spec.frames(spec.slots(s.frames)), rows * spec.space_stride, columns * spec.space_stride)
    return torch.rand(s.batch, 3, *size, generator=torch.Generator().manual_seed(0)) * 2 - 1


def latents(tokenizer: Tokenizer, s: Shape) -> Tensor:
    """A walk with steps of the latents' own size."""
    spec = tokenizer.spec
    shape = (s.batch, spec.channels, spec.slots(s.frames), *spec.grid(s.height, s.width))
    steps = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    std = torch.tensor(spec.latent_std).view(1, -1, 1, 1, 1)
    return steps.cumsum(2) * std / shape[2] ** 0.5
