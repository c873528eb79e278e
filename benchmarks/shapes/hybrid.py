# SPDX-License-Identifier: Apache-2.0
"""`mini` with a stage of its own for single frames at either end; begins as the `mini` it is filled from.

    encoder: conv_in(blocks of 4 frames) + zero conv(join(frame blocks(each frame)))
    decoder: inverse DCT(conv_out(..)) + inverse DCT(zero conv(frame blocks(what each frame is so far, slot features)))

Frames share weights, and an eighth of their channels comes from the frame before and an eighth from the frame after,
within the slot; nothing is carried from slot to slot that `mini` does not carry.

Legend: B batch, T slots, C channels, H W grid at the stage at hand, N frames of all slots (B*T*4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from frames import PATCH as FRAME_PATCH
from frames import TIME, FrameBlock, FrameDCT
from torch import Tensor, nn

from inlay.backbones.mini import ChannelNorm, Mini, MiniConfig, MiniDecoder, MiniEncoder, State, run_blocks
from inlay.kernels.winograd import Conv3x3


@dataclass(frozen=True, kw_only=True)
class HybridConfig(MiniConfig):
    """`mini`'s shape, and width and number of blocks of the frame stages."""

    encoder_frames: tuple[int, int] = (48, 1)
    decoder_frames: tuple[int, int] = (64, 3)
    frame_shift: float = 0.125

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "encoder_frames", tuple(self.encoder_frames))
        object.__setattr__(self, "decoder_frames", tuple(self.decoder_frames))


class Hybrid(Mini):
    """The autoencoder, with `mini`'s own way of running and carrying state."""

    def __init__(self, config: HybridConfig | None = None, **facts: object) -> None:
        config = config or HybridConfig()
        super().__init__(config, **facts)  # type: ignore[arg-type]
        self.encoder = HybridEncoder(config)
        self.decoder = HybridDecoder(config)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class HybridEncoder(MiniEncoder):
    def __init__(self, c: HybridConfig) -> None:
        super().__init__(c)
        width, blocks = c.encoder_frames
        self.frame_patch = FrameDCT()
        self.frame_in = Conv3x3(FRAME_PATCH, width)
        self.frames = nn.ModuleList([FrameBlock(width, shift=c.frame_shift) for _ in range(blocks)])
        self.frame_out = zeroed(nn.Conv2d(TIME * width, c.encoder_fine, 1))

    def forward(self, x_BCTHW: Tensor, state: State | None) -> tuple[Tensor, State]:
        B, T = x_BCTHW.shape[0], x_BCTHW.shape[2] // TIME
        past: Iterator[Tensor] = iter(state or ())
        after: State = []
        y = self.conv_in(self.patch.forward(x_BCTHW)) + self.frame_out(self.seen_alone(x_BCTHW))
        y = run_blocks(self.fine, y, T, past, after)
        y = self.down(torch.nn.functional.pixel_unshuffle(y, 2))
        y = run_blocks(self.coarse, y, T, past, after)
        z = self.conv_out(self.norm_out(y))
        return z.unflatten(0, (B, T)).transpose(1, 2), after

    def seen_alone(self, x_BCTHW: Tensor) -> Tensor:
        """[B*T, 4*C, H/4, W/4]: the features of each frame, those of a slot joined."""
        h = self.frame_in(self.frame_patch.forward(x_BCTHW))
        for block in self.frames:
            h = block(h)
        return h.unflatten(0, (-1, TIME)).flatten(1, 2).contiguous(memory_format=torch.channels_last)


class HybridDecoder(MiniDecoder):
    def __init__(self, c: HybridConfig) -> None:
        super().__init__(c)
        width, blocks = c.decoder_frames
        self.frame_patch = FrameDCT()
        self.frame_up = nn.Conv2d(c.decoder_fine, TIME * width, 1)
        self.frame_in = Conv3x3(FRAME_PATCH, width)
        self.frames = nn.ModuleList([FrameBlock(width, shift=c.frame_shift) for _ in range(blocks)])
        self.frame_norm = ChannelNorm(width)
        self.frame_out = zeroed(Conv3x3(width, FRAME_PATCH))

    def forward(self, z_BCTHW: Tensor, state: State | None) -> tuple[Tensor, State]:
        T = z_BCTHW.shape[2]
        past: Iterator[Tensor] = iter(state or ())
        after: State = []
        y = self.conv_in(z_BCTHW.transpose(1, 2).flatten(0, 1).contiguous(memory_format=torch.channels_last))
        y = run_blocks(self.coarse, y, T, past, after)
        y = torch.nn.functional.pixel_shuffle(self.up(y), 2)
        y = self.norm_out(run_blocks(self.fine, y, T, past, after))
        x_BCTHW = self.patch.inverse(self.conv_out(y), T)
        return x_BCTHW + self.sharpen(x_BCTHW, y), after

    def sharpen(self, x_BCTHW: Tensor, y: Tensor) -> Tensor:
        """What single frames lack: from their own pixels so far and the features of their slot."""
        h = self.frame_up(y).unflatten(1, (TIME, -1)).flatten(0, 1).contiguous(memory_format=torch.channels_last)
        h = h + self.frame_in(self.frame_patch.forward(x_BCTHW))
        for block in self.frames:
            h = block(h)
        more_NCHW = self.frame_patch.inverse(self.frame_out(self.frame_norm(h)))
        return more_NCHW.unflatten(0, (len(x_BCTHW), -1)).transpose(1, 2)


def zeroed(conv: nn.Conv2d) -> nn.Conv2d:
    """The convolution with all weights zero: what it is added to stays as it was."""
    nn.init.zeros_(conv.weight)
    nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
    return conv
