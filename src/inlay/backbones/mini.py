# SPDX-License-Identifier: Apache-2.0
"""`mini`, the embedded backbone: pixels <-> latents, causal 4x8x8 with 48 channels, small enough for a CPU.

    x  [B, 3, 1+4k, H, W] ── first frame shown 4 times ── 4x4x4 blocks ── DCT ──► [B, 1+k, 192, H/4, W/4]
       ── conv ── blocks (H/4) ── fold 2x2 ── blocks with shift (H/8) ── conv ──► z [B, 48, 1+k, H/8, W/8]

    z  ── conv ── blocks with shift (H/8) ── unfold 2x2 ── blocks with shift (H/4) ── conv ── inverse DCT ──► x

Every slot is computed by the same per-slot operations. Time is mixed in one way only: a block with shift reads a
quarter of its channels from the slot before (the first slot reads its own). So the network is causal, a static
video gives latents constant in time, and the state carried from chunk to chunk is those channels of the last slot.
On a CPU slots run one by one: no faster together, and the same shapes give the same bits however a video is cut.

Legend: B batch, T slots, C channels, H W grid at the stage at hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.backbones.base import BackboneSpec, check_latents, check_pixels, spec_of
from inlay.errors import ConfigError, UsageError
from inlay.kernels.prepared import prepared
from inlay.kernels.still import Call, repeats
from inlay.kernels.winograd import FEW, Bits, Conv3x3, transform_weights, winograd
from inlay.weightfile import fill_module, load_weights

TIME, SPACE, FOLD = 4, 4, 2  # frames a slot, pixels a block side at the first stage, and once more
PATCH = 3 * TIME * SPACE * SPACE
ALONE = 32768  # numbers that torch does not share between threads
State = list[Tensor]
WEIGHTS = Path(__file__).parent.parent / "weights"


@dataclass(frozen=True, kw_only=True)
class MiniConfig:
    """The shape of the network; stored beside its weights."""

    channels: int = 48
    encoder_fine: int = 128  # width at H/4
    encoder_coarse: int = 320  # width at H/8
    encoder_blocks: tuple[int, int] = (2, 3)  # at H/4, at H/8
    decoder_coarse: int = 320
    decoder_fine: int = 192
    decoder_blocks: tuple[int, int] = (7, 5)  # at H/8, at H/4
    shift: float = 0.25  # share of a block's channels read from the slot before

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoder_blocks", tuple(self.encoder_blocks))
        object.__setattr__(self, "decoder_blocks", tuple(self.decoder_blocks))
        if not 0 <= self.shift <= 0.5:
            raise ConfigError(f"shift is the share of channels read from the past, in [0, 0.5]; got {self.shift}")


def tiny() -> MiniConfig:
    """A network for tests: the same parts, a hundredth of the work."""
    return MiniConfig(
        channels=16, encoder_fine=16, encoder_coarse=32, encoder_blocks=(1, 2), decoder_coarse=32, decoder_fine=16,
        decoder_blocks=(2, 1),
    )  # fmt: skip


class Mini(nn.Module):
    """The autoencoder. `encode` and `decode` take whole clips; the `*_next` forms carry state between chunks."""

    def __init__(
        self,
        config: MiniConfig | None = None,
        *,
        name: str = "mini",
        latent_mean: tuple[float, ...] | None = None,
        latent_std: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__()
        self.config = config or MiniConfig()
        self.encoder = MiniEncoder(self.config)
        self.decoder = MiniDecoder(self.config)
        self.name = name
        self.latent_mean = latent_mean or (0.0,) * self.config.channels
        self.latent_std = latent_std or (1.0,) * self.config.channels
        self.weight_hash = ""
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def spec(self) -> BackboneSpec:
        licence = "research use (trained on clips under research terms); code Apache-2.0"
        return spec_of(
            self, channels=self.config.channels, strides=(TIME, SPACE * FOLD), causal=True, stateful=True,
            latent_mean=tuple(self.latent_mean), latent_std=tuple(self.latent_std), licence=licence,
        )  # fmt: skip

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
        if len(x) > 1:
            states = [None if state is None else [s[i, None] for s in state] for i in range(len(x))]
            clips = [self.run(half, clip, own, stride=stride) for clip, own in zip(x.split(1), states, strict=True)]
            after = [torch.cat(rows) for rows in zip(*[own for _, own in clips], strict=True)]
            return torch.cat([y for y, _ in clips]), after
        parts: list[Tensor] = []
        before: Call | None = None
        for slot in x.split(stride, dim=2):
            if before is None or not repeats((slot, state), before):
                before = slot, state
                part, state = half(slot, state)
            parts.append(part)
        assert state is not None, "there is at least one slot"
        return torch.cat(parts, dim=2), state


class MiniEncoder(nn.Module):
    def __init__(self, c: MiniConfig) -> None:
        super().__init__()
        fine, coarse = c.encoder_blocks
        self.patch = BlockDCT()
        self.conv_in = Conv3x3(PATCH, c.encoder_fine)
        self.fine = nn.ModuleList([Block(c.encoder_fine, shift=0) for _ in range(fine)])
        self.down = Conv1x1(c.encoder_fine * FOLD**2, c.encoder_coarse, 1)
        self.coarse = nn.ModuleList([Block(c.encoder_coarse, shift=c.shift) for _ in range(coarse)])
        self.norm_out = ChannelNorm(c.encoder_coarse)
        self.conv_out = Conv3x3(c.encoder_coarse, c.channels)

    def forward(self, x_BCTHW: Tensor, state: State | None) -> tuple[Tensor, State]:
        B, T = x_BCTHW.shape[0], x_BCTHW.shape[2] // TIME
        past: Iterator[Tensor] = iter(state or ())
        after: State = []
        y = self.conv_in(self.patch.forward(x_BCTHW))  # [B*T, C, H/4, W/4]: slots are a batch to all but the shift
        y = run_blocks(self.fine, y, T, past, after)
        y = self.down(F.pixel_unshuffle(y, FOLD))
        y = run_blocks(self.coarse, y, T, past, after)
        z = self.conv_out(self.norm_out(y))
        return z.unflatten(0, (B, T)).transpose(1, 2), after


class MiniDecoder(nn.Module):
    def __init__(self, c: MiniConfig) -> None:
        super().__init__()
        coarse, fine = c.decoder_blocks
        self.conv_in = Conv3x3(c.channels, c.decoder_coarse)
        self.coarse = nn.ModuleList([Block(c.decoder_coarse, shift=c.shift, bits=(8, 8)) for _ in range(coarse)])
        self.up = Conv1x1(c.decoder_coarse, c.decoder_fine * FOLD**2, 1)
        self.fine = nn.ModuleList([Block(c.decoder_fine, shift=c.shift, bits=(16, 16)) for _ in range(fine)])
        self.norm_out = ChannelNorm(c.decoder_fine)
        self.conv_out = Conv3x3(c.decoder_fine, PATCH)
        self.patch = BlockDCT()

    def forward(self, z_BCTHW: Tensor, state: State | None) -> tuple[Tensor, State]:
        T = z_BCTHW.shape[2]
        past: Iterator[Tensor] = iter(state or ())
        after: State = []
        y = self.conv_in(z_BCTHW.transpose(1, 2).flatten(0, 1).contiguous(memory_format=torch.channels_last))
        y = run_blocks(self.coarse, y, T, past, after)
        y = F.pixel_shuffle(self.up(y), FOLD)
        y = run_blocks(self.fine, y, T, past, after)
        y = self.norm_out(y)
        if self.conv_out.is_quick(y, "winograd"):
            blocks_NHWC = winograd(y.permute(0, 2, 3, 1), *prepared(self.conv_out, block_kernels))
            return self.patch.arrange(blocks_NHWC, T), after
        return self.patch.inverse(self.conv_out(y), T), after


def block_kernels(conv: nn.Conv2d) -> tuple[Tensor, Tensor]:
    """Kernels and bias of a quick convolution that gives pixels where `conv` gives their transform."""
    basis, scale = _block_dct()
    back = (basis * scale[:, None]).t().double()
    assert conv.bias is not None, "mini's convolutions have one"
    weight = torch.einsum("po,ochw->pchw", back, conv.weight.detach().double())
    return transform_weights(weight), (back @ conv.bias.detach().double()).float()


class Conv1x1(nn.Conv2d):
    """A matrix product, on a CPU: the library's 1x1 convolution shares its sums between threads, so that its last bits
    depend on how many there are."""

    def forward(self, y: Tensor) -> Tensor:
        if y.device.type != "cpu":
            return super().forward(y)
        y_NHWC, cells = y.permute(0, 2, 3, 1), y.shape[0] * y.shape[2] * y.shape[3]
        if cells >= FEW:
            return F.linear(y_NHWC, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)
        padded = F.pad(y_NHWC.reshape(cells, -1), (0, 0, 0, FEW - cells))  # so few rows are shared by their columns
        made = F.linear(padded, self.weight.flatten(1), self.bias)[:cells]
        return made.view(*y_NHWC.shape[:3], -1).permute(0, 3, 1, 2)


class Block(nn.Module):
    """norm, (shift,) conv, SiLU, conv, added to its input; starts as the identity."""

    def __init__(self, width: int, *, shift: float, bits: tuple[Bits, Bits] = (32, 32)) -> None:
        super().__init__()
        self.shifted = int(width * shift)
        self.norm = ChannelNorm(width)
        self.conv1 = Conv3x3(width, width, bits=bits[0])
        self.conv2 = Conv3x3(width, width, bits=bits[1])
        nn.init.zeros_(self.conv2.weight)
        nn.init.zeros_(self.conv2.bias)  # type: ignore[arg-type]

    def forward(self, y: Tensor, T: int, past: Tensor | None) -> tuple[Tensor, Tensor | None]:
        h, last = self.norm(y), None
        if self.shifted:
            h, last = shift_time(h, T, self.shifted, past)
        return y + self.conv2(self.conv1(h, silu)), last


def silu(y_NCHW: Tensor) -> Tensor:
    """On a CPU in pieces that one thread takes whole: the last numbers of a thread's share are rounded otherwise."""
    plain = torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing()
    if y_NCHW.device.type != "cpu" or plain:
        return F.silu(y_NCHW)
    y_NHWC = y_NCHW.permute(0, 2, 3, 1).contiguous()
    for piece in y_NHWC.view(-1).split(ALONE):
        F.silu(piece, inplace=True)
    return y_NHWC.permute(0, 3, 1, 2)


class ChannelNorm(nn.Module):
    """Root-mean-square norm over channels, cell by cell: nothing leaks in time or space, so tiles and chunks agree."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, y: Tensor) -> Tensor:
        scale = y.float().square().mean(1, keepdim=True).add(1e-6).rsqrt()
        out, gain = y * scale.to(y.dtype), self.gain.to(y.dtype).view(1, -1, 1, 1)
        return out * gain if torch.is_grad_enabled() else out.mul_(gain)


def run_blocks(blocks: nn.ModuleList, y: Tensor, T: int, past: Iterator[Tensor], after: State) -> Tensor:
    """Runs the blocks in order; takes each one's state from `past`, appends its new one to `after`."""
    for block in blocks:
        y, last = block(y, T, next(past, None) if block.shifted else None)
        if last is not None:
            after.append(last)
    return y


def shift_time(h: Tensor, T: int, n: int, past_BCHW: Tensor | None) -> tuple[Tensor, Tensor]:
    """The first n channels of each slot come from the slot before; also returns those of the last slot."""
    if T == 1 and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return shift_slot(h, n, past_BCHW)
    moved_BTCHW = h[:, :n].unflatten(0, (-1, T))
    first = moved_BTCHW[:, :1] if past_BCHW is None else past_BCHW[:, None]
    shifted = torch.cat([first, moved_BTCHW[:, :-1]], dim=1).flatten(0, 1)
    return torch.cat([shifted, h[:, n:]], dim=1), moved_BTCHW[:, -1]


def shift_slot(h: Tensor, n: int, past_BCHW: Tensor | None) -> tuple[Tensor, Tensor]:
    """`shift_time` of one slot, in place: a quarter of the channels move where a new tensor would move all."""
    last_BCHW = h[:, :n].clone()
    if past_BCHW is not None:
        h[:, :n] = past_BCHW
    return h, last_BCHW


class BlockDCT(nn.Module):
    """Video <-> 4x4x4 blocks of all three colours under an orthonormal transform, scaled to about unit variance.

    Without it the mean of a block is a hundred times stronger than its detail, and training sees little else.
    """

    basis: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        basis, scale = _block_dct()
        self.register_buffer("basis", basis, persistent=False)
        self.register_buffer("scale", scale, persistent=False)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        B, C, T, H, W = x_BCTHW.shape
        p = x_BCTHW.reshape(B, C, T // TIME, TIME, H // SPACE, SPACE, W // SPACE, SPACE)
        p = p.permute(0, 2, 4, 6, 1, 3, 5, 7).reshape(B * (T // TIME), H // SPACE, W // SPACE, PATCH)
        weight = (self.basis / self.scale[:, None]).to(x_BCTHW.dtype)
        return F.linear(p, weight).permute(0, 3, 1, 2)  # channels last in memory

    def inverse(self, y: Tensor, T: int) -> Tensor:
        weight = (self.basis * self.scale[:, None]).t().to(y.dtype)
        return self.arrange(F.linear(y.permute(0, 2, 3, 1), weight), T)

    @staticmethod
    def arrange(blocks_NHWC: Tensor, T: int) -> Tensor:
        """Blocks of pixels at their places in the video."""
        p = blocks_NHWC
        _, H, W, _ = p.shape
        p = p.reshape(-1, T, H, W, 3, TIME, SPACE, SPACE).permute(0, 4, 1, 5, 2, 6, 3, 7)
        return p.reshape(p.shape[0], 3, T * TIME, H * SPACE, W * SPACE)


def _block_dct() -> tuple[Tensor, Tensor]:
    """Basis [192, 192] over (colour, time, y, x) and the usual spread of each coefficient in natural video."""
    i = torch.arange(TIME, dtype=torch.float64)
    dct = torch.cos(math.pi / TIME * (i[None] + 0.5) * i[:, None]) * math.sqrt(2 / TIME)
    dct[0] /= math.sqrt(2)
    colour = torch.tensor([[1, 1, 1], [1, 0, -1], [1, -2, 1]], dtype=torch.float64)  # luma and two opponents
    colour = colour / colour.norm(dim=1, keepdim=True)
    basis = torch.einsum("ac,bt,dy,ex->abdectyx", colour, dct, dct, dct).reshape(PATCH, PATCH)
    frequency = (2 * i.view(-1, 1, 1) ** 2 + i.view(1, -1, 1) ** 2 + i.view(1, 1, -1) ** 2).sqrt()
    spread = 4.0 / (1 + 4 * frequency) ** 1.2  # falls with frequency, in time a little faster than in space
    chroma = torch.tensor([1.0, 0.3, 0.15], dtype=torch.float64).view(3, 1, 1, 1)
    return basis.float(), (chroma * spread).reshape(PATCH).float()


def load_mini(weights: Path | None = None) -> Mini:
    """The embedded backbone with its trained weights, or with those at `weights`, a file or a folder that holds one."""
    path = weights or WEIGHTS
    path = path / "mini.safetensors" if path.is_dir() else path
    file = load_weights(path)
    try:
        config = MiniConfig(**file.meta.get("config", {}))
    except TypeError as error:
        raise UsageError(f"{path} holds no mini but something else; give its own weights", about="backbone") from error
    backbone = Mini(
        config,
        latent_mean=tuple(file.meta["latent_mean"]) if "latent_mean" in file.meta else None,
        latent_std=tuple(file.meta["latent_std"]) if "latent_std" in file.meta else None,
    )
    fill_module(backbone, file, source=str(path))
    backbone.weight_hash = file.hash
    return backbone


def load_untrained(weights: Path | None = None) -> Mini:
    """A small network of mini's kind with seeded random weights: for tests, never for pictures."""
    del weights
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(20260101)
        backbone = Mini(tiny(), name="mini-untrained")
        for p in backbone.parameters():
            if p.ndim == 4 and not p.any():
                torch.nn.init.normal_(p, std=0.05)  # the zero-initialised halves, so that every path is alive
    return backbone
