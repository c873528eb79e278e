# SPDX-License-Identifier: Apache-2.0
"""Fill the native Cosmos from published files (`model.pt`, `.jit`, safetensors), or run its TorchScript programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inlay.backbones.base import BackboneSpec, check_latents, check_pixels, spec_of
from inlay.backbones.checkpoints import fill_network, load_script, read_checkpoint, strip_prefix
from inlay.backbones.cosmos import LATENT_STD, LICENCE, Cosmos, CosmosConfig
from inlay.errors import MissingError, UsageError

ANCHOR = "encoder.conv_in.0.conv3d.weight"
# constants of the wavelets, and convolutions that some versions define but no path reaches
UNUSED = ("patcher3d.", "distribution.", ".downsample.", ".upsample.")
CHOICES = (("model.safetensors",), ("model.pt",), ("autoencoder.jit",), ("encoder.jit", "decoder.jit"))


def load_cosmos(place: Path, config: CosmosConfig, *, name: str, trust: bool) -> Cosmos:
    """From one file, or from the best of a folder's files."""
    tensors: dict[str, Tensor] = {}
    for path in cosmos_files(place):
        tensors |= read_checkpoint(path, trust=trust).tensors
    network = Cosmos(config, name=name)
    mine = strip_prefix(tensors, ANCHOR)
    network.weight_hash = fill_network(network, mine, source=str(place), unused=UNUSED)
    return network


def cosmos_files(place: Path) -> list[Path]:
    if place.is_file():
        pair = place.with_name("decoder.jit")
        return [place, pair] if place.name == "encoder.jit" and pair.is_file() else [place]
    for names in CHOICES:
        if all((place / name).is_file() for name in names):
            return [place / name for name in names]
    wanted = ", ".join(" + ".join(names) for names in CHOICES)
    raise MissingError(f"no weights of Cosmos in {place}; it should have one of: {wanted}")


class CosmosScript(nn.Module):
    """The published programs behind our protocol. They carry no state and do not tile; `Cosmos` does both."""

    def __init__(self, encoder: Any, decoder: Any, config: CosmosConfig, *, name: str, weight_hash: str) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.config, self.name, self.weight_hash = config, name, weight_hash

    @property
    def spec(self) -> BackboneSpec:
        c = self.config
        strides = c.time_stride, c.space_stride
        return spec_of(self, channels=c.channels, strides=strides, causal=True, latent_std=LATENT_STD, licence=LICENCE)

    def encode(self, x_BCTHW: Tensor) -> Tensor:
        check_pixels(x_BCTHW, self.spec)
        found = self.encoder(x_BCTHW)
        return found if isinstance(found, Tensor) else found[0]  # published encoders return placeholders beside it

    def decode(self, z_BCTHW: Tensor) -> Tensor:
        check_latents(z_BCTHW, self.spec)
        return self.decoder(z_BCTHW)


def load_cosmos_script(folder: Path, config: CosmosConfig, *, name: str, trust: bool) -> CosmosScript:
    """From a folder with both programs; their tensors are checked against the network they should be."""
    for file in ("encoder.jit", "decoder.jit"):
        if not (folder / file).is_file():
            raise MissingError(f"{folder} has no {file}; give the folder that has encoder.jit and decoder.jit")
    encoder, decoder = (load_script(folder / f"{half}.jit", trust=trust) for half in ("encoder", "decoder"))
    with torch.device("meta"):
        plan = Cosmos(config)
    plan.to_empty(device="cpu")  # no time spent on random weights: it is filled only to check and to hash
    tensors = {**encoder.state_dict(), **decoder.state_dict()}
    floating = {n: t for n, t in tensors.items() if t.is_floating_point()}
    if not floating:
        raise UsageError(f"{folder} holds programs without weights")
    weight_hash = fill_network(plan, floating, source=str(folder), unused=UNUSED)
    return CosmosScript(encoder, decoder, config, name=name, weight_hash=weight_hash)
