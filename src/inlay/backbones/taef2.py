# SPDX-License-Identifier: Apache-2.0
"""TAEF2, a tiny image autoencoder in the latent space of FLUX.2, frame by frame: pixels <-> latents, 1x8x8, 32 ch.

Parameters have the names of the published files; the two files are one network here (`encoder.*`, `decoder.*`).
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.backbones.base import BackboneSpec, check_latents, check_pixels, spec_of
from inlay.backbones.checkpoints import fill_network, read_checkpoint
from inlay.backbones.diffusers import by_frame
from inlay.errors import MissingError

WIDTH, CHANNELS, SPACE = 64, 32, 8
FILES = ("taef2_encoder", "taef2_decoder")


def conv(width_in: int, width_out: int, *, stride: int = 1, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(width_in, width_out, 3, stride, 1, bias=bias)


class Squash(nn.Module):
    """Latents softly bounded to [-3, 3]."""

    def forward(self, z: Tensor) -> Tensor:
        return 3 * torch.tanh(z / 3)


class Block(nn.Module):
    """Three convolutions beside the input; `pooled` blocks first add what a norm over the whole frame tells."""

    def __init__(self, *, pooled: bool = False) -> None:
        super().__init__()
        self.conv = nn.Sequential(conv(WIDTH, WIDTH), nn.ReLU(), conv(WIDTH, WIDTH), nn.ReLU(), conv(WIDTH, WIDTH))
        self.pool: nn.Sequential | None = None
        if pooled:
            wide = 4 * WIDTH
            self.pool = nn.Sequential(
                nn.Conv2d(WIDTH, wide, 1, bias=False), nn.GroupNorm(4, wide), nn.ReLU(),
                nn.Conv2d(wide, WIDTH, 1, bias=False),
            )  # fmt: skip

    def forward(self, y: Tensor) -> Tensor:
        if self.pool is not None:
            y = y + self.pool(y)
        return F.relu(y + self.conv(y))


def encoder() -> nn.Sequential:
    layers: list[nn.Module] = [conv(3, WIDTH), Block()]
    for stage in range(3):
        layers += [conv(WIDTH, WIDTH, stride=2, bias=False), *(Block(pooled=stage == 2) for _ in range(3))]
    return nn.Sequential(*layers, conv(WIDTH, CHANNELS))


def decoder() -> nn.Sequential:
    layers: list[nn.Module] = [Squash(), conv(CHANNELS, WIDTH), nn.ReLU()]
    for stage in range(3):
        layers += [*(Block(pooled=stage == 0) for _ in range(3)), nn.Upsample(scale_factor=2)]
        layers += [conv(WIDTH, WIDTH, bias=False)]
    return nn.Sequential(*layers, Block(), conv(WIDTH, 3))


class Taef2(nn.Module):
    def __init__(self, *, name: str = "taef2") -> None:
        super().__init__()
        self.name, self.weight_hash = name, ""
        self.encoder, self.decoder = encoder(), decoder()

    @property
    def spec(self) -> BackboneSpec:
        return spec_of(self, channels=CHANNELS, strides=(1, SPACE), causal=True, licence="MIT")

    def encode(self, x_BCTHW: Tensor) -> Tensor:
        check_pixels(x_BCTHW, self.spec)
        return by_frame(lambda x: self.encoder((x + 1) / 2), x_BCTHW)  # its pixels live in [0, 1]

    def decode(self, z_BCTHW: Tensor) -> Tensor:
        check_latents(z_BCTHW, self.spec)
        return by_frame(lambda z: self.decoder(z) * 2 - 1, z_BCTHW)


def load_taef2(folder: Path, *, name: str, trust: bool) -> Taef2:
    """From a folder with the encoder's and the decoder's file, .safetensors or .pth."""
    tensors: dict[str, Tensor] = {}
    for stem, half in zip(FILES, ("encoder", "decoder"), strict=True):
        found = [p for suffix in (".safetensors", ".pth") if (p := folder / f"{stem}{suffix}").is_file()]
        if not found:
            raise MissingError(
                f"{folder} has no {stem}.pth or {stem}.safetensors; give the folder that has both halves"
            )
        checkpoint = read_checkpoint(found[0], trust=trust)
        tensors |= {f"{half}.{n}": t for n, t in checkpoint.tensors.items()}
    network = Taef2(name=name)
    network.weight_hash = fill_network(network, tensors, source=str(folder))
    return network
