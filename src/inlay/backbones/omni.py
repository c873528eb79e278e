# SPDX-License-Identifier: Apache-2.0
"""OmniTokenizer-VAE, written from its published architecture: pixels <-> latents, 4x8x8 with 8 channels.

    x [B, 3, 1+4k, S, S] ── patches, the first frame's of their own kind ── space ── time ── mean ──► z
    z [B, 8, 1+k, S/8, S/8] ── time ── space ── patches ──► x

Its pixels live in [-0.5, 0.5] and its frames are squares: other frames are padded to one by repetition, and the latents
and pixels of the padding are cut off again. Latents are the mean of the posterior, never a sample. The network is not
causal, though its attention is: a convolution before it mixes slots (see omni_layers). Nor is a static video constant
in time here: the first frame has an embedding of its own, and convolutions see zeros before it.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.backbones.base import BackboneSpec, check_latents, check_pixels, spec_of
from inlay.backbones.checkpoints import PublishedCheckpoint, fill_network, read_checkpoint
from inlay.backbones.omni_layers import Transformer
from inlay.errors import ConfigError, UsageError

LATENT_STD = 1.191  # mean over the channels, as the paper measured it
# parts of a training checkpoint that the autoencoder does not have, and weights that nothing reads
UNUSED = (
    "codebook.", "image_discriminator.", "video_discriminator.", "perceptual_model.", "context_norm.",
    "spatial_rel_pos_bias.", "relative_position_index", "rel_pos_bias.",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OmniConfig:
    """The shape of the network; a checkpoint tells its own."""

    patch: int = 8
    time_patch: int = 4
    width: int = 512
    heads: int = 8
    head_width: int = 64
    ff_mult: float = 4.0
    encoder_blocks: str = "ttww"
    decoder_blocks: str = "tttt"
    temporal_depth: int = 4
    window: int = 8
    rope: bool = True
    causal_attention: bool = True
    causal_conv: bool = True
    channels: int = 8

    def __post_init__(self) -> None:
        strange = set(self.encoder_blocks + self.decoder_blocks) - {"t", "w"}
        if strange:
            raise ConfigError(f"blocks are t (all tokens) or w (windows); this network has {sorted(strange)}")

    @property
    def side(self) -> int:
        """Frames are squares whose side is a multiple of this many pixels."""
        return self.patch * (self.window if "w" in self.encoder_blocks + self.decoder_blocks else 1)

    @staticmethod
    def from_args(args: Namespace) -> OmniConfig:
        """From the command line that a checkpoint was trained with; old ones say `casual` for causal."""
        given = vars(args)
        if not given.get("use_vae", False):
            raise UsageError("this checkpoint is the VQ model, whose latents are discrete; take one named *_vae.ckpt")
        if given.get("patch_embed", "linear") != "linear" or given.get("gen_upscale") is not None:
            raise UsageError("this checkpoint has another patch embedding than the published VAEs (linear)")
        if given.get("defer_temporal_pool") or given.get("defer_spatial_pool"):
            raise UsageError("this checkpoint pools after its transformers, which the published VAEs do not")
        depth = given.get("spatial_depth", 4)

        def causal(name: str) -> bool:
            return bool(given.get(f"causal_{name}", given.get(f"casual_{name}", False)))

        return OmniConfig(
            patch=given["patch_size"], time_patch=given["temporal_patch_size"], width=given["embedding_dim"],
            heads=given.get("heads", 8), head_width=given.get("dim_head", 64), ff_mult=given.get("ff_mult", 4.0),
            encoder_blocks=given.get("enc_block", "t" * depth), decoder_blocks=given.get("dec_block", "t" * depth),
            temporal_depth=given.get("temporal_depth", 4), window=given.get("twod_window_size", 4),
            rope=given.get("spatial_pos", "rel") == "rope", causal_attention=causal("in_temporal_transformer"),
            causal_conv=causal("in_peg"), channels=given["codebook_dim"],
        )  # fmt: skip


def tiny_omni() -> OmniConfig:
    """The same parts, a hundredth of the work."""
    return OmniConfig(width=32, heads=2, head_width=16, encoder_blocks="tw", decoder_blocks="t", temporal_depth=1,
                      window=2)  # fmt: skip


class Omni(nn.Module):
    def __init__(self, config: OmniConfig | None = None, *, name: str = "omnitokenizer-ucf") -> None:
        super().__init__()
        self.config = c = config or OmniConfig()
        self.name, self.weight_hash = name, ""
        self.encoder, self.decoder = Encoder(c), Decoder(c)
        # names of the checkpoint: the linear layer stands between two changes of layout
        self.pre_vq_conv = nn.ModuleDict({"1": nn.Linear(c.width, 2 * c.channels)})
        self.post_vq_conv = nn.ModuleDict({"1": nn.Linear(c.channels, c.width)})

    @property
    def spec(self) -> BackboneSpec:
        c = self.config
        strides = c.time_patch, c.patch
        return spec_of(self, channels=c.channels, strides=strides, causal=False, latent_std=LATENT_STD, licence="MIT")

    def encode(self, x_BCTHW: Tensor) -> Tensor:
        check_pixels(x_BCTHW, self.spec)
        H, W = x_BCTHW.shape[3:]
        h_BTHWD = self.encoder(self.square(x_BCTHW, self.config.side) / 2)
        mean, _ = self.pre_vq_conv["1"](h_BTHWD).chunk(2, dim=-1)
        return mean.permute(0, 4, 1, 2, 3)[..., : H // self.config.patch, : W // self.config.patch]

    def decode(self, z_BCTHW: Tensor) -> Tensor:
        check_latents(z_BCTHW, self.spec)
        H, W = (n * self.config.patch for n in z_BCTHW.shape[3:])
        z_BCTHW = self.square(z_BCTHW, self.config.side // self.config.patch)
        h_BTHWD = self.post_vq_conv["1"](z_BCTHW.permute(0, 2, 3, 4, 1))
        return self.decoder(h_BTHWD)[..., :H, :W] * 2

    @staticmethod
    def square(x_BCTHW: Tensor, unit: int) -> Tensor:
        """Padded at the right and below by repetition, to the smallest square of whole units."""
        H, W = x_BCTHW.shape[3:]
        side = -(-max(H, W) // unit) * unit
        if H == W == side:
            return x_BCTHW
        return F.pad(x_BCTHW, (0, side - W, 0, side - H, 0, 0), mode="replicate")


def embedding(numbers: int, width: int) -> nn.Sequential:
    """Norm, linear, norm; the first place is a change of layout in the checkpoint's network."""
    return nn.Sequential(nn.Identity(), nn.LayerNorm(numbers), nn.Linear(numbers, width), nn.LayerNorm(width))


def transformer(c: OmniConfig, blocks: str, *, time: bool) -> Transformer:
    return Transformer(
        blocks, width=c.width, heads=c.heads, head_width=c.head_width, ff_mult=c.ff_mult, window=c.window,
        causal=time and c.causal_attention, causal_conv=c.causal_conv, rope=not time and c.rope,
    )  # fmt: skip


def over_time(module: Transformer, h_BTHWD: Tensor) -> Tensor:
    B, T, H, W, _ = h_BTHWD.shape
    rows = module(h_BTHWD.permute(0, 2, 3, 1, 4).flatten(0, 2), (B, T, H, W))
    return rows.unflatten(0, (B, H, W)).permute(0, 3, 1, 2, 4)


def over_space(module: Transformer, h_BTHWD: Tensor) -> Tensor:
    B, T, H, W, _ = h_BTHWD.shape
    rows = module(h_BTHWD.flatten(2, 3).flatten(0, 1), (B, T, H, W))
    return rows.unflatten(0, (B, T)).unflatten(2, (H, W))


class Encoder(nn.Module):
    def __init__(self, c: OmniConfig) -> None:
        super().__init__()
        self.patch, self.time_patch = c.patch, c.time_patch
        self.to_patch_emb_first_frame = embedding(3 * c.patch**2, c.width)
        self.to_patch_emb = embedding(3 * c.patch**2 * c.time_patch, c.width)
        self.enc_spatial_transformer = transformer(c, c.encoder_blocks, time=False)
        self.enc_temporal_transformer = transformer(c, "t" * c.temporal_depth, time=True)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        h = self.to_patch_emb_first_frame(self.patches(x_BCTHW[:, :, :1], 1))
        if x_BCTHW.shape[2] > 1:
            h = torch.cat([h, self.to_patch_emb(self.patches(x_BCTHW[:, :, 1:], self.time_patch))], dim=1)
        return over_time(self.enc_temporal_transformer, over_space(self.enc_spatial_transformer, h))

    def patches(self, x_BCTHW: Tensor, time: int) -> Tensor:
        """[B, T, H, W, C t p p]."""
        B, C, T, H, W = x_BCTHW.shape
        p = self.patch
        blocks = x_BCTHW.reshape(B, C, T // time, time, H // p, p, W // p, p)
        return blocks.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4)


class Decoder(nn.Module):
    def __init__(self, c: OmniConfig) -> None:
        super().__init__()
        self.patch, self.time_patch = c.patch, c.time_patch
        self.dec_spatial_transformer = transformer(c, c.decoder_blocks, time=False)
        self.dec_temporal_transformer = transformer(c, "t" * c.temporal_depth, time=True)
        self.to_pixels_first_frame = nn.Sequential(nn.Linear(c.width, 3 * c.patch**2))
        self.to_pixels = nn.Sequential(nn.Linear(c.width, 3 * c.patch**2 * c.time_patch))

    def forward(self, h_BTHWD: Tensor) -> Tensor:
        h = over_space(self.dec_spatial_transformer, over_time(self.dec_temporal_transformer, h_BTHWD))
        x_BCTHW = self.pixels(self.to_pixels_first_frame(h[:, :1]), 1)
        if h.shape[1] == 1:
            return x_BCTHW
        return torch.cat([x_BCTHW, self.pixels(self.to_pixels(h[:, 1:]), self.time_patch)], dim=2)

    def pixels(self, blocks: Tensor, time: int) -> Tensor:
        B, T, H, W, _ = blocks.shape
        p = self.patch
        x = blocks.reshape(B, T, H, W, 3, time, p, p).permute(0, 4, 1, 5, 2, 6, 3, 7)
        return x.reshape(B, 3, T * time, H * p, W * p)


def omni_from(checkpoint: PublishedCheckpoint, *, name: str) -> Omni:
    """The network that a checkpoint describes, filled with its weights."""
    args = checkpoint.beside.get("hyper_parameters", {}).get("args")
    config = OmniConfig.from_args(args) if isinstance(args, Namespace) else OmniConfig()
    network = Omni(config, name=name)
    network.weight_hash = fill_network(network, checkpoint.tensors, source=checkpoint.source, unused=UNUSED)
    return network


def load_omni(path: Path, *, name: str, trust: bool) -> Omni:
    """From a published Lightning checkpoint, or from safetensors of the published size."""
    return omni_from(read_checkpoint(path, trust=trust), name=name)
