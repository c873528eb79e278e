# SPDX-License-Identifier: Apache-2.0
"""Published files of Cosmos in, the native network filled out: `model.pt`, the `.jit` programs, or safetensors."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from inlay.backbones.checkpoints import fill_network, read_checkpoint, strip_prefix
from inlay.backbones.cosmos import Cosmos, CosmosConfig
from inlay.errors import MissingError

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
