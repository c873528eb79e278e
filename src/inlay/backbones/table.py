# SPDX-License-Identifier: Apache-2.0
"""Every backbone that has a name: what it is, where its weights are published, and how they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from inlay.backbones import diffusers
from inlay.backbones.base import Backbone
from inlay.backbones.cosmos import LICENCE as NVIDIA
from inlay.backbones.cosmos import cosmos_01, cosmos_360p
from inlay.backbones.cosmos_files import load_cosmos, load_cosmos_script
from inlay.backbones.hub import Source
from inlay.backbones.mini import load_mini, load_untrained
from inlay.backbones.omni import load_omni
from inlay.backbones.taef2 import load_taef2

Loader = Callable[..., Backbone]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of the table. `strides` are time, height, width; `million` counts parameters."""

    load: Loader  # (place, name=..., trust=...); place is the folder or file of the weights, None for embedded ones
    about: str
    licence: str
    strides: tuple[int, int, int]
    channels: int
    million: float
    source: Source | None = None  # None: the weights are in the package
    tau: float | None = None  # the paper's; others are calibrated
    aliases: tuple[str, ...] = ()
    stateful: bool = False  # can carry state from chunk to chunk
    other_channels: bool = False  # weights may have another number of them


def _embedded(load: Callable[[Path | None], Backbone]) -> Loader:
    return lambda place, **_: load(place)


def _cosmos(place: Path, *, config: Any, name: str, script: bool, trust: bool) -> Backbone:
    load: Any = load_cosmos_script if script else load_cosmos
    return load(place, config(), name=name.removesuffix("-jit"), trust=trust)


def _omni(place: Path, *, file: str, name: str, trust: bool) -> Backbone:
    return load_omni(place / file if place.is_dir() else place, name=name, trust=trust)


CONFIG_AND_WEIGHTS = ("config.json", "diffusion_pytorch_model.safetensors")
COSMOS_MD5 = {
    "autoencoder.jit": "0690ff725700128424d082b44a1eda08",
    "decoder.jit": "7573744ec14cb1b2abdf9c80318b7224",
    "encoder.jit": "fe3a7193defcb2db0b849b6df480b5e6",
}


def _cosmos_entry(repo: str, file: tuple[str, ...], config: Any, million: float, *, script: bool, **more: Any) -> Entry:
    about = "NVIDIA's Cosmos, " + (
        "its published TorchScript programs" if script else "native: compiles, streams, tiles"
    )
    return Entry(
        load=partial(_cosmos, config=config, script=script), about=about, licence=NVIDIA, strides=(4, 8, 8),
        channels=16, million=million, tau=0.3, aliases=more.get("aliases", ()), stateful=not script,
        source=Source(repo=repo, files=file, gated=True, md5=more.get("md5", {})),
    )  # fmt: skip


def _omni_entry(file: str, data: str, *aliases: str) -> Entry:
    return Entry(
        load=partial(_omni, file=file), about=f"OmniTokenizer-VAE trained on ImageNet and {data}", licence="MIT",
        strides=(4, 8, 8), channels=8, million=51.6, tau=1.2,
        source=Source(repo="Daniel0724/OmniTokenizer", files=(file,)), aliases=aliases,
    )  # fmt: skip


def _diffusers_entry(
    repo: str,
    about: str,
    licence: str,
    strides: tuple[int, int, int],
    channels: int,
    million: float,
    folder: str = "vae",
    *same: str,  # other repositories with this very autoencoder
    stateful: bool = False,
) -> Entry:
    return Entry(
        load=partial(diffusers.load_diffusers, licence=licence), about=f"{about} (diffusers)", licence=licence,
        strides=strides, channels=channels, million=million, stateful=stateful,
        source=Source(repo=repo, files=CONFIG_AND_WEIGHTS, subfolder=folder), aliases=(repo, *same),
    )  # fmt: skip


JIT = ("encoder.jit", "decoder.jit")
TOKENIZE1, COSMOS_01 = "nvidia/Cosmos-Tokenize1-CV4x8x8-360p", "nvidia/Cosmos-0.1-Tokenizer-CV4x8x8"

BACKBONES: dict[str, Entry] = {
    "mini": Entry(
        load=_embedded(load_mini), about="ours, ships with the package", licence="research use; code Apache-2.0",
        strides=(4, 8, 8), channels=48, million=23.6, stateful=True, other_channels=True,
    ),
    "mini-untrained": Entry(
        load=_embedded(load_untrained), about="random weights, for tests", licence="Apache-2.0", strides=(4, 8, 8),
        channels=16, million=0.2, tau=None, stateful=True,
    ),
    "cosmos-cv4x8x8-360p": _cosmos_entry(
        TOKENIZE1, ("model.pt",), cosmos_360p, 110.2, script=False, aliases=(TOKENIZE1,)
    ),
    "cosmos-cv4x8x8-360p-jit": _cosmos_entry(TOKENIZE1, JIT, cosmos_360p, 110.2, script=True, md5=COSMOS_MD5),
    "cosmos-0.1-cv4x8x8": _cosmos_entry(
        COSMOS_01, JIT, cosmos_01, 85.8, script=False, aliases=(COSMOS_01, "nvidia/Cosmos-Tokenizer-CV4x8x8")
    ),
    "cosmos-0.1-cv4x8x8-jit": _cosmos_entry(COSMOS_01, JIT, cosmos_01, 85.8, script=True),
    "omnitokenizer-ucf": _omni_entry("imagenet_ucf_vae.ckpt", "UCF-101", "Daniel0724/OmniTokenizer"),
    "omnitokenizer-k600": _omni_entry("imagenet_k600_vae.ckpt", "Kinetics-600"),
    "taef2": Entry(
        load=load_taef2, about="tiny image autoencoder of FLUX.2, frame by frame", licence="MIT", strides=(1, 8, 8),
        channels=32, million=2.7, aliases=("madebyollin/taef2",),
        source=Source(repo="madebyollin/taef2", files=("taef2_encoder.pth", "taef2_decoder.pth")),
    ),
    "wan-2.1": _diffusers_entry(
        "Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "Wan 2.1, also 2.2 A14B", "Apache-2.0", (4, 8, 8), 16, 126.9, "vae",
        "Wan-AI/Wan2.1-T2V-14B-Diffusers", "Wan-AI/Wan2.2-T2V-A14B-Diffusers", "Wan-AI/Wan2.2-I2V-A14B-Diffusers",
        stateful=True,
    ),
    "wan-2.2": _diffusers_entry(
        "Wan-AI/Wan2.2-TI2V-5B-Diffusers", "Wan 2.2 5B", "Apache-2.0", (4, 16, 16), 48, 704.7, stateful=True
    ),
    "cogvideox": _diffusers_entry("THUDM/CogVideoX-2b", "CogVideoX", "Apache-2.0", (4, 8, 8), 16, 215.6),
    "ltx-video": _diffusers_entry("Lightricks/LTX-Video", "LTX-Video", "LTX Video licence", (8, 32, 32), 128, 419.2),
    "hunyuan-video": _diffusers_entry(
        "hunyuanvideo-community/HunyuanVideo", "HunyuanVideo", "Tencent Hunyuan community licence", (4, 8, 8), 16, 246.5
    ),
    "mochi": _diffusers_entry("genmo/mochi-1-preview", "Mochi 1", "Apache-2.0", (6, 8, 8), 12, 459.8),
    "cosmos-1.0-cv8x8x8": _diffusers_entry(
        "nvidia/Cosmos-1.0-Tokenizer-CV8x8x8", "Cosmos 1.0", NVIDIA, (8, 8, 8), 16, 105.7
    ),
    "taesd": _diffusers_entry(
        "madebyollin/taesd", "tiny autoencoder of Stable Diffusion, frame by frame", "MIT", (1, 8, 8), 4, 2.4, ""
    ),
    "sd-vae-ft-mse": _diffusers_entry(
        "stabilityai/sd-vae-ft-mse", "autoencoder of Stable Diffusion, frame by frame", "MIT", (1, 8, 8), 4, 83.7, ""
    ),
}  # fmt: skip

ALIASES = {alias.lower(): name for name, entry in BACKBONES.items() for alias in entry.aliases}
