# SPDX-License-Identifier: Apache-2.0
"""The autoencoders of the diffusers package as backbones, from folders it saved.

Latents come out normalised as the model's configuration says: (z - mean) / std by channel (and by slot, where the
configuration has such a table), or (z - shift) * scale; `decode` undoes it. Image autoencoders go frame by frame; Wan
carries its causal state from chunk to chunk.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inlay.backbones import wan
from inlay.backbones.base import BackboneSpec, State, check_latents, check_pixels, spec_of
from inlay.backbones.checkpoints import check_trust, cut_tensor
from inlay.errors import MissingError, UsageError, pick, require
from inlay.weightfile import hash_weights

FRAMES_AT_ONCE = 8  # of an image autoencoder, so that a clip's frames need not all be in memory
WEIGHT_FILES = "diffusion_pytorch_model*"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What the adapter must know of a class besides its configuration."""

    strides: Callable[[Any], tuple[int, int]]  # model -> (time, space)
    causal: bool
    by_frame: bool = False
    shows_first: bool = False  # its encoder wants the first frame `time stride` times
    odd_slots: bool = False  # its decoder gives the first frame alone only among an odd number of slots


def _ratios(model: Any) -> tuple[int, int]:
    """As the configuration states them, or the model itself."""
    names = ("temporal_compression_ratio", "spatial_compression_ratio")
    time, space = (int(getattr(model.config, name, None) or getattr(model, name)) for name in names)
    return time, space


def _wan(model: Any) -> tuple[int, int]:
    halves = model.config.temperal_downsample  # spelt so there
    return 2 ** sum(halves), 2 ** len(halves) * (model.config.patch_size or 1)


def _cogvideox(model: Any) -> tuple[int, int]:
    return int(model.config.temporal_compression_ratio), 2 ** (len(model.config.block_out_channels) - 1)


def _vidtok(model: Any) -> tuple[int, int]:
    return model.temporal_compression_ratio, 2 ** len(model.encoder.spatial_ds)


def _image(model: Any) -> tuple[int, int]:
    levels = getattr(model.config, "encoder_block_out_channels", None) or model.config.block_out_channels
    return 1, 2 ** (len(levels) - 1)


KINDS: dict[str, Kind] = {
    "AutoencoderKLWan": Kind(strides=_wan, causal=True),
    "AutoencoderKLCogVideoX": Kind(strides=_cogvideox, causal=False, odd_slots=True),  # norms over several frames
    "AutoencoderKLLTXVideo": Kind(strides=_ratios, causal=False),  # its decoder looks ahead
    "AutoencoderKLHunyuanVideo": Kind(strides=_ratios, causal=False),  # norms over all frames
    "AutoencoderKLMochi": Kind(strides=_ratios, causal=True),
    "AutoencoderKLCosmos": Kind(strides=_ratios, causal=True),
    "AutoencoderVidTok": Kind(strides=_vidtok, causal=False, shows_first=True),
    "AutoencoderTiny": Kind(strides=_image, causal=True, by_frame=True),
    "AutoencoderKL": Kind(strides=_image, causal=True, by_frame=True),
}


def class_name(folder: Path) -> str | None:
    """Which class saved the folder, if diffusers did."""
    try:
        return json.loads((folder / "config.json").read_text()).get("_class_name")
    except (OSError, ValueError, AttributeError):
        return None


def load_diffusers(folder: Path, *, name: str, trust: bool, licence: str = "see the model's card") -> Diffusers:
    """A folder with `config.json` and weights, as `save_pretrained` and the hub have them."""
    kind_name = class_name(folder)
    if kind_name is None:
        raise MissingError(f"{folder} is not a model that diffusers saved (no config.json with a _class_name)")
    kind = pick("diffusers class", kind_name, KINDS)
    package = require("diffusers", extra="hf")
    if not hasattr(package, kind_name):
        raise MissingError(f"diffusers {package.__version__} has no {kind_name}; a newer version may: pip install -U")
    adapter = Wan if kind_name == "AutoencoderKLWan" else Diffusers
    return adapter(_load(getattr(package, kind_name), folder, trust=trust), kind, name=name, licence=licence)


def _load(cls: Any, folder: Path, *, trust: bool) -> Any:
    """`from_pretrained`, but a tensor that is missing, superfluous or misshapen is an error that names it."""
    files = sorted(p for p in folder.glob(WEIGHT_FILES) if p.suffix in (".safetensors", ".bin"))
    safe = [p for p in files if p.suffix == ".safetensors"]
    if not files:
        raise MissingError(f"{folder} has no {WEIGHT_FILES}.safetensors; fetch the model again")
    for path in safe:
        if cut := cut_tensor(path):
            raise UsageError(f"{path} is damaged: tensor {cut} is cut off; fetch or copy it again")
    if not safe:
        check_trust(files[0], trust=trust)
    logging = require("diffusers.utils.logging", extra="hf")
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # what it would warn of is an error here
    try:
        model, info = cls.from_pretrained(
            str(folder), output_loading_info=True, local_files_only=True, use_safetensors=bool(safe)
        )
    except (ValueError, OSError, RuntimeError, KeyError, TypeError) as error:
        what = str(error).split(". ")[0].splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"{folder} does not load as {cls.__name__} ({what}); fetch or save it again") from error
    finally:
        logging.set_verbosity(level)
    for key, word in (("missing_keys", "is missing"), ("unexpected_keys", "has no place in this network")):
        if info[key]:
            raise UsageError(f"{folder}: tensor {sorted(info[key])[0]} {word}; the weights belong to another model")
    return model


class Diffusers(nn.Module):
    """One of its autoencoders behind our protocol: B C T H W, [-1, 1], the mean of the posterior."""

    mean: Tensor
    std: Tensor
    stateful = False

    def __init__(self, model: Any, kind: Kind, *, name: str, licence: str = "see the model's card") -> None:
        super().__init__()
        if getattr(model.config, "regularizer", "kl") != "kl":
            raise UsageError(f"{name} has discrete latents ({model.config.regularizer}); take a KL model")
        if not getattr(model.config, "is_causal", True):
            raise UsageError(f"{name} takes no single first frame (is_causal=False); take a causal model")
        self.model, self.kind, self.name, self.licence = model, kind, name, licence
        self.time_stride, self.space_stride = kind.strides(model)
        self.channels = latent_channels(model)
        mean, std = normalisation(model, self.channels)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)
        self.weight_hash = hash_weights(model.state_dict())

    @property
    def spec(self) -> BackboneSpec:
        return spec_of(
            self, channels=self.channels, strides=(self.time_stride, self.space_stride), causal=self.kind.causal,
            stateful=self.stateful, licence=self.licence,
        )  # fmt: skip

    def encode(self, x_BCTHW: Tensor) -> Tensor:
        check_pixels(x_BCTHW, self.spec)
        z_BCTHW = by_frame(self.latent, x_BCTHW) if self.kind.by_frame else self.latent(x_BCTHW)
        mean, std = self.tables(z_BCTHW)
        return (z_BCTHW - mean) / std

    def decode(self, z_BCTHW: Tensor) -> Tensor:
        check_latents(z_BCTHW, self.spec)
        mean, std = self.tables(z_BCTHW)
        z_BCTHW = z_BCTHW * std + mean
        return by_frame(self.sample, z_BCTHW) if self.kind.by_frame else self.sample(z_BCTHW)

    def latent(self, x: Tensor) -> Tensor:
        if self.kind.shows_first:
            x = torch.cat([x[:, :, :1].expand(-1, -1, self.time_stride - 1, -1, -1), x], dim=2)
        found = self.model.encode(x)
        return found.latent_dist.mode() if hasattr(found, "latent_dist") else found.latents

    def sample(self, z: Tensor) -> Tensor:
        odd = not self.kind.odd_slots or z.shape[2] % 2 == 1
        found = self.model.decode(z if odd else torch.cat([z, z[:, :, -1:]], dim=2))
        x = found if isinstance(found, Tensor) else found.sample
        return x if odd else x[:, :, : self.spec.frames(z.shape[2])]

    def tables(self, z_BCTHW: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and std [1, C, T or 1, 1, 1]; slots beyond a table have its last column."""
        slots = torch.arange(z_BCTHW.shape[2], device=self.mean.device).clamp(max=self.mean.shape[1] - 1)
        mean, std = (t[None, :, slots, None, None].to(z_BCTHW) for t in (self.mean, self.std))
        return mean, std


class Wan(Diffusers):
    """Wan 2.1 and 2.2: the feature cache is a state that goes from chunk to chunk."""

    stateful = True

    @property
    def encoder(self) -> nn.Module:
        """Runs slot by slot; what INLAY_FAST=compile compiles, as it does the decoder."""
        return self.model.encoder

    @property
    def decoder(self) -> nn.Module:
        return self.model.decoder

    def encode(self, x_BCTHW: Tensor) -> Tensor:
        return self.encode_next(x_BCTHW, None)[0]

    def decode(self, z_BCTHW: Tensor) -> Tensor:
        return self.decode_next(z_BCTHW, None)[0]

    def encode_next(self, x_BCTHW: Tensor, state: State) -> tuple[Tensor, State]:
        """The next chunk of a video: 1 + 4k frames when `state` is None, 4k frames after that."""
        check_pixels(x_BCTHW, self.spec, continued=state is not None)
        z_BCTHW, after = wan.encode_next(self.model, x_BCTHW, state, self.time_stride)
        mean, std = self.tables(z_BCTHW)
        return (z_BCTHW - mean) / std, after

    def decode_next(self, z_BCTHW: Tensor, state: State) -> tuple[Tensor, State]:
        """The next chunk's pixels: 1 + 4(t-1) frames when `state` is None, 4t frames after that."""
        check_latents(z_BCTHW, self.spec)
        mean, std = self.tables(z_BCTHW)
        return wan.decode_next(self.model, z_BCTHW * std + mean, state)


def by_frame(function: Callable[[Tensor], Tensor], x_BCTHW: Tensor) -> Tensor:
    """A function of pictures, on the frames of videos."""
    frames = x_BCTHW.transpose(1, 2).flatten(0, 1)
    done = torch.cat([function(part) for part in frames.split(FRAMES_AT_ONCE)])
    return done.unflatten(0, (x_BCTHW.shape[0], -1)).transpose(1, 2)


def latent_channels(model: Any) -> int:
    names = ("latent_channels", "z_dim", "z_channels")
    return next(int(getattr(model.config, n)) for n in names if getattr(model.config, n, None) is not None)


def normalisation(model: Any, channels: int) -> tuple[Tensor, Tensor]:
    """(mean, std), each [C, slots]: whichever of tables, shift and scale the configuration has."""
    buffers = dict(model.named_buffers())  # some classes keep their tables with the weights

    def find(name: str, default: float) -> Tensor:
        value = getattr(model.config, name, None)
        value = buffers.get(name) if value is None else value
        table = torch.as_tensor(default if value is None else value, dtype=torch.float32).detach().cpu()
        return table.expand(channels)[:, None] if table.ndim == 0 else table.reshape(channels, -1)

    shift = find("shift_factor", 0.0)
    mean, std = find("latents_mean", 0.0) + shift, find("latents_std", 1.0) / find("scaling_factor", 1.0)
    columns = math.lcm(mean.shape[1], std.shape[1])
    return mean.expand(-1, columns).clone(), std.expand(-1, columns).clone()
