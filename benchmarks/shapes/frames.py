# SPDX-License-Identifier: Apache-2.0
"""`frames`, an embedded backbone that keeps frames apart where they are sharp: causal 4x8x8 with 16 channels.

    x  [B, 3, 1+4k, H, W] ── first frame shown 4 times ── each frame: 4x4 blocks ── DCT ──► [B*T*4, 48, H/4, W/4]
       ── conv ── frame blocks (H/4) ── join 4 frames, fold 2x2 ── blocks with shift (H/8) ── conv ──► z [B, 16, 1+k, .]

    z  ── conv ── blocks with shift (H/8) ── unfold 2x2, part 4 frames ── frame blocks (H/4) ── conv ── inverse DCT
       (── finish at H/2) ──► x

At H/4 every frame has channels of its own and all four use the same weights; an eighth of the channels comes from the
frame before and an eighth from the frame after, within the slot. At H/8 a slot is one grid, and time is mixed as in
`mini`: a block reads a quarter of its channels from the slot before (the first slot its own), and, where `align` asks
for it, attends to places of the slot before within a window. So the network is causal by slots, a static video gives
latents constant in time, and the state carried from chunk to chunk is what the last slot hands on.

Legend: B batch, T slots, C channels, H W grid at the stage at hand, N frames of all slots (B*T*4).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.backbones.base import BackboneSpec, check_latents, check_pixels
from inlay.backbones.mini import ChannelNorm, shift_time
from inlay.errors import ConfigError
from inlay.kernels.winograd import Conv3x3
from inlay.weightfile import hash_weights

TIME, SPACE, FOLD = 4, 4, 2  # frames a slot, pixels a block side at the first stage, and once more
PATCH = 3 * SPACE * SPACE
WINDOW, HALO = 8, 4  # cells a side that attend together, and how much further they see in the slot before
State = list[Tensor]


@dataclass(frozen=True, kw_only=True)
class FramesConfig:
    """The shape of the network; stored beside its weights."""

    channels: int = 16
    encoder_fine: int = 64  # width at H/4, a frame
    encoder_coarse: int = 320  # width at H/8, a slot
    encoder_blocks: tuple[int, int] = (2, 3)  # at H/4, at H/8
    decoder_coarse: int = 320
    decoder_fine: int = 96
    decoder_blocks: tuple[int, int] = (7, 5)  # at H/8, at H/4
    shift: float = 0.25  # share of a block's channels read from the slot before
    frame_shift: float = 0.125  # share of a frame's channels read from the frame before, and as much from the one after
    align: int = 0  # width of attention to the slot before, in every second coarse block; 0: none
    finish: int = 0  # width of the finish at H/2; 0: none

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoder_blocks", tuple(self.encoder_blocks))
        object.__setattr__(self, "decoder_blocks", tuple(self.decoder_blocks))
        if not 0 <= self.shift <= 0.5 or not 0 <= self.frame_shift <= 0.5:
            raise ConfigError(f"shifts are shares of channels, in [0, 0.5]; got {self.shift} and {self.frame_shift}")


class Frames(nn.Module):
    """The autoencoder. `encode` and `decode` take whole clips; the `*_next` forms carry state between chunks."""

    def __init__(
        self,
        config: FramesConfig | None = None,
        *,
        name: str = "frames",
        latent_mean: tuple[float, ...] | None = None,
        latent_std: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__()
        self.config = config or FramesConfig()
        self.encoder = FramesEncoder(self.config)
        self.decoder = FramesDecoder(self.config)
        self.name = name
        self.latent_mean = latent_mean or (0.0,) * self.config.channels
        self.latent_std = latent_std or (1.0,) * self.config.channels
        self.weight_hash = ""
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def spec(self) -> BackboneSpec:
        if not self.weight_hash:
            self.weight_hash = hash_weights(self.state_dict())
        return BackboneSpec(
            name=self.name,
            channels=self.config.channels,
            time_stride=TIME,
            space_stride=SPACE * FOLD,
            causal=True,
            stateful=True,
            latent_mean=self.latent_mean,
            latent_std=self.latent_std,
            weight_hash=self.weight_hash,
            parameters=sum(p.numel() for p in self.parameters()),
            licence="research use (trained on clips under research terms); code Apache-2.0",
        )

    def encode(self, x_BCTHW: Tensor) -> Tensor:
        return self.encode_next(x_BCTHW, None)[0]

    def decode(self, z_BCTHW: Tensor) -> Tensor:
        return self.decode_next(z_BCTHW, None)[0]

    def encode_next(self, x_BCTHW: Tensor, state: State | None) -> tuple[Tensor, State]:
        """The next chunk of a video: 1 + 4k frames when `state` is None, 4k frames after that."""
        check_pixels(x_BCTHW, self.spec, continued=state is not None)
        if state is None:
            x_BCTHW = torch.cat([x_BCTHW[:, :, :1].expand(-1, -1, TIME - 1, -1, -1), x_BCTHW], dim=2)
        return self.run(self.encoder, x_BCTHW, state, stride=TIME)

    def decode_next(self, z_BCTHW: Tensor, state: State | None) -> tuple[Tensor, State]:
        """The next chunk's pixels: 1 + 4(t-1) frames when `state` is None, 4t frames after that."""
        check_latents(z_BCTHW, self.spec)
        x_BCTHW, after = self.run(self.decoder, z_BCTHW, state, stride=1)
        return (x_BCTHW[:, :, TIME - 1 :] if state is None else x_BCTHW), after

    def run(self, half: nn.Module, x: Tensor, state: State | None, *, stride: int) -> tuple[Tensor, State]:
        """All slots at once, or each on its own where bits must not depend on how many come together."""
        if self.training or x.device.type != "cpu":
            return half(x, state)
        parts = []
        for slot in x.split(stride, dim=2):
            part, state = half(slot, state)
            parts.append(part)
        assert state is not None, "there is at least one slot"
        return torch.cat(parts, dim=2), state


class FramesEncoder(nn.Module):
    def __init__(self, c: FramesConfig) -> None:
        super().__init__()
        fine, coarse = c.encoder_blocks
        self.patch = FrameDCT()
        self.conv_in = Conv3x3(PATCH, c.encoder_fine)
        self.fine = nn.ModuleList([FrameBlock(c.encoder_fine, shift=c.frame_shift) for _ in range(fine)])
        self.down = nn.Conv2d(c.encoder_fine * TIME * FOLD**2, c.encoder_coarse, 1)
        self.coarse = coarse_blocks(c.encoder_coarse, coarse, c, rough=False)
        self.norm_out = ChannelNorm(c.encoder_coarse)
        self.conv_out = Conv3x3(c.encoder_coarse, c.channels)

    def forward(self, x_BCTHW: Tensor, state: State | None) -> tuple[Tensor, State]:
        B, T = x_BCTHW.shape[0], x_BCTHW.shape[2] // TIME
        y = self.conv_in(self.patch.forward(x_BCTHW))  # [N, C, H/4, W/4]
        for block in self.fine:
            y = block(y)
        y = self.down(join_frames(y))
        y, after = run_blocks(self.coarse, y, T, state)
        z = self.conv_out(self.norm_out(y))
        return z.unflatten(0, (B, T)).transpose(1, 2), after


class FramesDecoder(nn.Module):
    def __init__(self, c: FramesConfig) -> None:
        super().__init__()
        coarse, fine = c.decoder_blocks
        self.conv_in = Conv3x3(c.channels, c.decoder_coarse)
        self.coarse = coarse_blocks(c.decoder_coarse, coarse, c, rough=True)
        self.up = nn.Conv2d(c.decoder_coarse, c.decoder_fine * TIME * FOLD**2, 1)
        self.fine = nn.ModuleList([FrameBlock(c.decoder_fine, shift=c.frame_shift) for _ in range(fine)])
        self.norm_out = ChannelNorm(c.decoder_fine)
        self.conv_out = Conv3x3(c.decoder_fine, PATCH)
        self.patch = FrameDCT()
        self.finish = Finish(c.finish) if c.finish else None

    def forward(self, z_BCTHW: Tensor, state: State | None) -> tuple[Tensor, State]:
        B, T = z_BCTHW.shape[0], z_BCTHW.shape[2]
        y = self.conv_in(z_BCTHW.transpose(1, 2).flatten(0, 1).contiguous(memory_format=torch.channels_last))
        y, after = run_blocks(self.coarse, y, T, state)
        y = part_frames(self.up(y))
        for block in self.fine:
            y = block(y)
        x_NCHW = self.patch.inverse(self.conv_out(self.norm_out(y)))
        if self.finish is not None:
            x_NCHW = self.finish(x_NCHW)
        return x_NCHW.unflatten(0, (B, T * TIME)).transpose(1, 2), after


class FrameBlock(nn.Module):
    """norm, channels from the frames beside, conv, SiLU, conv, added to its input; starts as the identity."""

    def __init__(self, width: int, *, shift: float) -> None:
        super().__init__()
        self.shifted = int(width * shift)
        self.norm = ChannelNorm(width)
        self.conv1 = Conv3x3(width, width)
        self.conv2 = Conv3x3(width, width)
        nn.init.zeros_(self.conv2.weight)
        nn.init.zeros_(self.conv2.bias)  # type: ignore[arg-type]

    def forward(self, y_NCHW: Tensor) -> Tensor:
        h = shift_frames(self.norm(y_NCHW), self.shifted)
        return y_NCHW + self.conv2(F.silu(self.conv1(h)))


class CoarseBlock(nn.Module):
    """`mini`'s block: norm, shift, conv, SiLU, conv, added to its input; before it, attention to the slot before."""

    def __init__(self, width: int, *, shift: float, align: int = 0, rough: bool = False) -> None:
        super().__init__()
        self.shifted = int(width * shift)
        self.align = Align(width, align) if align else None
        self.norm = ChannelNorm(width)
        self.conv1 = Conv3x3(width, width, rough=rough)
        self.conv2 = Conv3x3(width, width, rough=rough)
        nn.init.zeros_(self.conv2.weight)
        nn.init.zeros_(self.conv2.bias)  # type: ignore[arg-type]

    @property
    def states(self) -> int:
        """How many tensors the block carries from slot to slot."""
        return int(self.shifted > 0) + int(self.align is not None)

    def forward(self, y: Tensor, T: int, past: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        after = []
        if self.align is not None:
            y, last = self.align(y, T, past[0] if past else None)
            after.append(last)
        h = self.norm(y)
        if self.shifted:
            h, last = shift_time(h, T, self.shifted, past[-1] if past else None)
            after.append(last)
        y = y + self.conv2(F.silu(self.conv1(h)))
        return y, [a.detach() for a in after] if self.training else after


class Align(nn.Module):
    """Each cell looks for what it shows in the slot before, HALO cells around its window; starts as the identity.

    Places enter by rotation of queries and keys. Beyond the border keys and values are zero.
    """

    turn_query: Tensor
    turn_key: Tensor

    def __init__(self, width: int, inner: int, *, head: int = 32) -> None:
        super().__init__()
        self.inner, self.heads = inner, inner // head
        self.norm = ChannelNorm(width)
        self.query = nn.Conv2d(width, inner, 1, bias=False)
        self.key_value = nn.Conv2d(width, 2 * inner, 1, bias=False)
        self.out = nn.Conv2d(inner, width, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)  # type: ignore[arg-type]
        self.register_buffer("turn_query", turns(WINDOW, HALO, head), persistent=False)
        self.register_buffer("turn_key", turns(WINDOW + 2 * HALO, 0, head), persistent=False)

    def forward(self, y: Tensor, T: int, past_BCHW: Tensor | None) -> tuple[Tensor, Tensor]:
        h = self.norm(y)
        kv_BTCHW = self.key_value(h).unflatten(0, (-1, T))
        first = kv_BTCHW[:, :1] if past_BCHW is None else past_BCHW[:, None]
        before = torch.cat([first, kv_BTCHW[:, :-1]], dim=1).flatten(0, 1)
        return y + self.out(self.attend(self.query(h), before)), kv_BTCHW[:, -1]

    def attend(self, q_MCHW: Tensor, kv_MCHW: Tensor) -> Tensor:
        M, C, H, W = q_MCHW.shape
        more_h, more_w = -H % WINDOW, -W % WINDOW
        q = self.windows(F.pad(q_MCHW, (0, more_w, 0, more_h)), WINDOW)
        padded = F.pad(kv_MCHW, (HALO, HALO + more_w, HALO, HALO + more_h))
        k, v = (self.windows(part, WINDOW + 2 * HALO) for part in padded.chunk(2, dim=1))
        q, k = turn(q, self.turn_query.to(q.dtype)), turn(k, self.turn_key.to(k.dtype))
        o = F.scaled_dot_product_attention(q, k, v)  # [M*h*w, heads, 64, head]
        h, w = (H + more_h) // WINDOW, (W + more_w) // WINDOW
        o = o.view(M, h, w, self.heads, WINDOW, WINDOW, -1).permute(0, 3, 6, 1, 4, 2, 5)
        o = o.reshape(M, C, h * WINDOW, w * WINDOW)[:, :, :H, :W]
        return o.contiguous(memory_format=torch.channels_last)

    def windows(self, x_MCHW: Tensor, side: int) -> Tensor:
        """[M*h*w, heads, side*side, head]: one window every WINDOW cells."""
        cut = x_MCHW.unfold(2, side, WINDOW).unfold(3, side, WINDOW).unflatten(1, (self.heads, -1))
        return cut.permute(0, 3, 4, 1, 5, 6, 2).flatten(0, 2).flatten(2, 3)


class Finish(nn.Module):
    """Pixels in, pixels out: three narrow convolutions at H/2 whose answer is added; starts as the identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = Conv3x3(12, width)
        self.conv2 = Conv3x3(width, width)
        self.conv3 = Conv3x3(width, 12)
        nn.init.zeros_(self.conv3.weight)
        nn.init.zeros_(self.conv3.bias)  # type: ignore[arg-type]

    def forward(self, x_NCHW: Tensor) -> Tensor:
        h = F.pixel_unshuffle(x_NCHW, 2).contiguous(memory_format=torch.channels_last)
        h = self.conv3(F.silu(self.conv2(F.silu(self.conv1(h)))))
        return x_NCHW + F.pixel_shuffle(h, 2)


class FrameDCT(nn.Module):
    """Video <-> 4x4 blocks of each frame, all three colours, under an orthonormal transform of about unit variance."""

    basis: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        basis, scale = _frame_dct()
        self.register_buffer("basis", basis, persistent=False)
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        B, C, T, H, W = x_BCTHW.shape
        p = x_BCTHW.reshape(B, C, T, H // SPACE, SPACE, W // SPACE, SPACE).permute(0, 2, 3, 5, 1, 4, 6)
        weight = (self.basis / self.scale[:, None]).to(x_BCTHW.dtype)
        return F.linear(p.reshape(B * T, H // SPACE, W // SPACE, PATCH), weight).permute(0, 3, 1, 2)

    def inverse(self, y_NCHW: Tensor) -> Tensor:
        weight = (self.basis * self.scale[:, None]).t().to(y_NCHW.dtype)
        p = F.linear(y_NCHW.permute(0, 2, 3, 1), weight)
        N, H, W, _ = p.shape
        p = p.reshape(N, H, W, 3, SPACE, SPACE).permute(0, 3, 1, 4, 2, 5)
        return p.reshape(N, 3, H * SPACE, W * SPACE)


def coarse_blocks(width: int, count: int, c: FramesConfig, *, rough: bool) -> nn.ModuleList:
    """The blocks at H/8; every second one looks back by attention too, where that is asked for."""
    made = [CoarseBlock(width, shift=c.shift, align=c.align * (i % 2), rough=rough) for i in range(count)]
    return nn.ModuleList(made)


def run_blocks(blocks: nn.ModuleList, y: Tensor, T: int, state: State | None) -> tuple[Tensor, State]:
    """Runs the blocks in order; takes each one's state from `state` and returns the new ones in the same order."""
    past: Iterator[Tensor] = iter(state or ())
    after: State = []
    for block in blocks:
        own = [next(past) for _ in range(block.states)] if state is not None else []
        y, last = block(y, T, own)
        after += last
    return y, after


def shift_frames(h_NCHW: Tensor, n: int) -> Tensor:
    """The first n channels come from the frame before, the next n from the one after; a slot's ends keep their own."""
    if not n:
        return h_NCHW
    before, after, rest = h_NCHW.unflatten(0, (-1, TIME)).split([n, n, h_NCHW.shape[1] - 2 * n], dim=2)
    before = torch.cat([before[:, :1], before[:, :-1]], dim=1)
    after = torch.cat([after[:, 1:], after[:, -1:]], dim=1)
    return torch.cat([before, after, rest], dim=2).flatten(0, 1).contiguous(memory_format=torch.channels_last)


def join_frames(y_NCHW: Tensor) -> Tensor:
    """[B*T*4, C, H, W] to [B*T, 4*C*4, H/2, W/2]."""
    return F.pixel_unshuffle(y_NCHW.unflatten(0, (-1, TIME)).flatten(1, 2), FOLD).contiguous(
        memory_format=torch.channels_last
    )


def part_frames(y: Tensor) -> Tensor:
    """[B*T, 4*C*4, H, W] to [B*T*4, C, 2H, 2W]."""
    y = F.pixel_shuffle(y, FOLD).unflatten(1, (TIME, -1)).flatten(0, 1)
    return y.contiguous(memory_format=torch.channels_last)


def turns(side: int, offset: int, head: int) -> Tensor:
    """[2, side*side, head/2]: cosine and sine of each place's angles, half of them by row and half by column."""
    place = torch.arange(side, dtype=torch.float32) + offset
    pace = 10.0 ** -torch.linspace(0, 1, head // 4)
    angle = place[:, None] * pace
    rows, columns = angle[:, None].expand(-1, side, -1), angle[None].expand(side, -1, -1)
    both = torch.cat([rows, columns], dim=-1).flatten(0, 1)
    return torch.stack([both.cos(), both.sin()])


def turn(x: Tensor, by: Tensor) -> Tensor:
    """Rotates pairs of channels by each place's angles."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = by[0], by[1]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def _frame_dct() -> tuple[Tensor, Tensor]:
    """Basis [48, 48] over (colour, y, x) and the usual spread of each coefficient in natural pictures."""
    i = torch.arange(SPACE, dtype=torch.float64)
    dct = torch.cos(math.pi / SPACE * (i[None] + 0.5) * i[:, None]) * math.sqrt(2 / SPACE)
    dct[0] /= math.sqrt(2)
    colour = torch.tensor([[1, 1, 1], [1, 0, -1], [1, -2, 1]], dtype=torch.float64)  # luma and two opponents
    colour = colour / colour.norm(dim=1, keepdim=True)
    basis = torch.einsum("ac,dy,ex->adecyx", colour, dct, dct).reshape(PATCH, PATCH)
    frequency = (i.view(-1, 1) ** 2 + i.view(1, -1) ** 2).sqrt()
    spread = 2.0 / (1 + 4 * frequency) ** 1.2
    chroma = torch.tensor([1.0, 0.3, 0.15], dtype=torch.float64).view(3, 1, 1)
    return basis.float(), (chroma * spread).reshape(PATCH).float()
