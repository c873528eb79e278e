# SPDX-License-Identifier: Apache-2.0
"""Cosmos, NVIDIA's causal continuous video tokeniser, written from its published architecture: pixels <-> latents.

    x [B, 3, 1+4k, H, W] ── Haar ── conv ── levels of 2 blocks, each but the last halving ── middle ── conv ──► z
    z [B, 16, 1+k, H/8, W/8] ── conv ── middle ── levels of 3 blocks, each but the last doubling ── conv ── Haar ──► x

The middle is block, attention over space, attention over time, block. Parameters have the names of the published
checkpoints. Latents are the network's own: no sampling, no scale.

Causal state: convolutions over time keep one or two frames, attention over time keeps its keys and values. Those grow
by 2 C numbers a cell and slot; `attention_window` bounds them, at the price of no longer being the published network
beyond that many slots. A static video gives latents constant in time up to rounding (about 1e-6 of their size).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from inlay.backbones.base import BackboneSpec, check_latents, check_pixels, spec_of
from inlay.backbones.cosmos_layers import (
    Down,
    FactorisedConv,
    FrameNorm,
    Haar,
    Memory,
    ResBlock,
    SpaceAttention,
    SpaceConv,
    State,
    TimeAttention,
    Up,
)
from inlay.errors import ConfigError
from inlay.kernels.tiles import fade_to_neighbours, tiled

LICENCE = "NVIDIA Open Model License; code Apache-2.0"
LATENT_STD = 0.492  # mean over the channels, as the paper measured it
TILE = 1280  # pixels: a frame with a longer side goes through in tiles of this side
OVERLAP = 16  # cells that neighbouring tiles share


@dataclass(frozen=True, kw_only=True)
class CosmosConfig:
    """The shape of the network."""

    patch: int = 2
    width: int = 128
    encoder_levels: tuple[int, ...] = (2, 4, 4)  # width of each level, in units of `width`
    decoder_levels: tuple[int, ...] = (2, 4, 4)
    blocks: int = 2  # a level of the encoder; the decoder has one more
    channels: int = 16
    time_stride: int = 4
    space_stride: int = 8

    def __post_init__(self) -> None:
        for name in ("patch", "time_stride", "space_stride"):
            value = getattr(self, name)
            if value < 2 or value & (value - 1):
                raise ConfigError(f"{name} must be a power of two; got {value}")
        for name in ("encoder_levels", "decoder_levels"):
            if len(getattr(self, name)) <= max(self.halvings):
                raise ConfigError(f"{name} needs more than {max(self.halvings)} levels; got {getattr(self, name)}")

    @property
    def halvings(self) -> tuple[int, int]:
        """How often the levels halve (space, time) after the Haar transform."""
        return int(math.log2(self.space_stride // self.patch)), int(math.log2(self.time_stride // self.patch))

    def down(self, level: int) -> dict[str, bool]:
        space, time = self.halvings
        return {"space": level < space, "time": level < time}

    def up(self, level: int) -> dict[str, bool]:
        """Time doubles one level after space does, and always together with it."""
        space, time = self.halvings
        done = len(self.decoder_levels) - 1 - level
        doubles = 0 < done <= time
        return {"space": doubles or (done < space and space > time), "time": doubles}


def cosmos_360p() -> CosmosConfig:
    """Cosmos-Tokenize1-CV4x8x8-360p, 110.2 M parameters."""
    return CosmosConfig()


def cosmos_01() -> CosmosConfig:
    """Cosmos-0.1-Tokenizer-CV4x8x8, 85.8 M parameters: coarser patches, one decoder level less."""
    return CosmosConfig(patch=4, decoder_levels=(2, 4))


def tiny_cosmos(config: CosmosConfig | None = None) -> CosmosConfig:
    """The same parts, a thousandth of the work, for tests."""
    return replace(config or cosmos_360p(), width=8, blocks=1)


class Cosmos(nn.Module):
    """The autoencoder. `encode` and `decode` take whole clips; the `*_next` forms carry state between chunks."""

    def __init__(
        self,
        config: CosmosConfig | None = None,
        *,
        name: str = "cosmos-cv4x8x8-360p",
        attention_window: int | None = None,
        tile: int = TILE,
        overlap: int = OVERLAP,
    ) -> None:
        super().__init__()
        self.config = c = config or CosmosConfig()
        if attention_window is not None and attention_window < 1:
            raise ConfigError(f"attention_window is a number of slots, at least 1; got {attention_window}")
        if tile % c.space_stride or tile <= overlap * c.space_stride or overlap < 1:
            raise ConfigError(
                f"tile is a multiple of {c.space_stride} pixels, over the overlap of {overlap} cells; got {tile}"
            )
        self.name, self.tile, self.overlap, self.weight_hash = name, tile, overlap, ""
        self.encoder, self.decoder = Encoder(c), Decoder(c)
        self.quant_conv = SpaceConv(c.channels, c.channels, 1)
        self.post_quant_conv = SpaceConv(c.channels, c.channels, 1)
        for module in self.modules():
            if isinstance(module, TimeAttention):
                module.window = attention_window
        self.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]

    @property
    def spec(self) -> BackboneSpec:
        c = self.config
        strides = c.time_stride, c.space_stride
        return spec_of(
            self, channels=c.channels, strides=strides, causal=True, stateful=True, latent_std=LATENT_STD,
            licence=LICENCE,
        )  # fmt: skip

    def encode(self, x_BCTHW: Tensor) -> Tensor:
        check_pixels(x_BCTHW, self.spec)
        return self.run(self.encode_tile, x_BCTHW, None, keep=False)[0]

    def decode(self, z_BCTHW: Tensor) -> Tensor:
        check_latents(z_BCTHW, self.spec)
        return self.run(self.decode_tile, z_BCTHW, None, keep=False)[0]

    def encode_next(self, x_BCTHW: Tensor, state: list[State] | None) -> tuple[Tensor, list[State]]:
        """The next chunk of a video: 1 + 4k frames when `state` is None, 4k frames after that."""
        check_pixels(x_BCTHW, self.spec, continued=state is not None)
        return self.run(self.encode_tile, x_BCTHW, state, keep=True)

    def decode_next(self, z_BCTHW: Tensor, state: list[State] | None) -> tuple[Tensor, list[State]]:
        """The next chunk's pixels: 1 + 4(t-1) frames when `state` is None, 4t frames after that."""
        check_latents(z_BCTHW, self.spec)
        return self.run(self.decode_tile, z_BCTHW, state, keep=True)

    def run(self, half: Any, x_BCTHW: Tensor, state: list[State] | None, *, keep: bool) -> tuple[Tensor, list[State]]:
        """One half of the network over a chunk, in tiles if its frames are large; a state for each tile."""
        stride = self.config.space_stride
        if half == self.decode_tile:
            tile, overlap, grow = self.tile // stride, self.overlap, (stride, 1)
        else:
            tile, overlap, grow = self.tile, self.overlap * stride, (1, stride)
        states: list[State] = []

        def part(rows: slice, columns: slice) -> Tensor:
            out, after = half(x_BCTHW[..., rows, columns], state[len(states)] if state else None, keep)
            states.append(after)
            return out

        out = tiled(part, x_BCTHW, tile=tile, overlap=overlap, ramp=fade_to_neighbours, grow=grow)
        return out, states

    def encode_tile(self, x_BCTHW: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        memory = Memory(state, keep=keep)
        B = x_BCTHW.shape[0]
        z = self.quant_conv(self.encoder(x_BCTHW, memory))
        return z.unflatten(0, (B, -1)).transpose(1, 2), memory.after

    def decode_tile(self, z_BCTHW: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        memory = Memory(state, keep=keep)
        y = z_BCTHW.transpose(1, 2).flatten(0, 1).contiguous(memory_format=torch.channels_last)
        x_BCTHW = self.decoder(self.post_quant_conv(y), z_BCTHW.shape[2], memory)
        return x_BCTHW, memory.after

    def compiled(self, mode: str | None = None) -> Cosmos:
        """This network with both halves compiled for the shapes they meet; the first call of each shape is slow."""
        self.encoder.compile(mode=mode, dynamic=False)
        self.decoder.compile(mode=mode, dynamic=False)
        return self


class Level(nn.Module):
    """Some blocks of one width, then a change of resolution."""

    def __init__(self, width_in: int, width_out: int, blocks: int) -> None:
        super().__init__()
        widths = [width_in] + [width_out] * blocks
        self.block = nn.ModuleList([ResBlock(a, b) for a, b in pairwise(widths)])
        self.downsample: Down | None = None
        self.upsample: Up | None = None

    def forward(self, y: Tensor, T: int, memory: Memory) -> tuple[Tensor, int]:
        for block in self.block:
            y = block(y, T, memory)
        change = self.downsample or self.upsample
        return (y, T) if change is None else change(y, T, memory)


class Middle(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.block_1 = ResBlock(width, width)
        self.attn_1 = nn.ModuleList([SpaceAttention(width), TimeAttention(width)])
        self.block_2 = ResBlock(width, width)

    def forward(self, y: Tensor, T: int, memory: Memory) -> Tensor:
        for layer in (self.block_1, *self.attn_1, self.block_2):
            y = layer(y, T, memory)
        return y


class Encoder(nn.Module):
    def __init__(self, c: CosmosConfig) -> None:
        super().__init__()
        self.patcher3d = Haar(c.patch)
        self.conv_in = FactorisedConv(3 * c.patch**3, c.width)
        widths = [c.width, *(c.width * m for m in c.encoder_levels)]
        self.down = nn.ModuleList([Level(a, b, c.blocks) for a, b in pairwise(widths)])
        for i, level in enumerate(self.down):
            if i + 1 < len(self.down) and any(c.down(i).values()):
                level.downsample = Down(widths[i + 1], **c.down(i))
        self.mid = Middle(widths[-1])
        self.norm_out = FrameNorm(widths[-1])
        self.conv_out = FactorisedConv(widths[-1], c.channels)

    def forward(self, x_BCTHW: Tensor, memory: Memory) -> Tensor:
        p = self.patcher3d.patch
        if memory.first:
            x_BCTHW = torch.cat([x_BCTHW[:, :, :1].expand(-1, -1, p - 1, -1, -1), x_BCTHW], dim=2)
        T = x_BCTHW.shape[2] // p
        y = self.conv_in(self.patcher3d.split(x_BCTHW), T, memory)
        for level in self.down:
            y, T = level(y, T, memory)
        y = self.mid(y, T, memory)
        return self.conv_out(self.norm_out(y, silu=True), T, memory)


class Decoder(nn.Module):
    def __init__(self, c: CosmosConfig) -> None:
        super().__init__()
        widths = [c.width * m for m in c.decoder_levels]
        bands = 3 * c.patch**3
        self.conv_in = FactorisedConv(c.channels, widths[-1])
        self.mid = Middle(widths[-1])
        above = [*widths[1:], widths[-1]]  # the width each level receives from the coarser one
        self.up = nn.ModuleList([Level(a, b, c.blocks + 1) for a, b in zip(above, widths, strict=True)])
        for i, level in enumerate(self.up):
            if i and any(c.up(i).values()):
                level.upsample = Up(widths[i], **c.up(i))
        self.norm_out = FrameNorm(widths[0])
        self.conv_out = FactorisedConv(widths[0], bands)
        self.unpatcher3d = Haar(c.patch)

    def forward(self, z: Tensor, T: int, memory: Memory) -> Tensor:
        y = self.mid(self.conv_in(z, T, memory), T, memory)
        for level in reversed(self.up):
            y, T = level(y, T, memory)
        y = self.conv_out(self.norm_out(y, silu=True), T, memory)
        x_BCTHW = self.unpatcher3d.join(y, T)
        return x_BCTHW[:, :, self.unpatcher3d.patch - 1 :] if memory.first else x_BCTHW
