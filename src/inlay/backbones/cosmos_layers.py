# SPDX-License-Identifier: Apache-2.0
"""The layers of Cosmos, none of them looking ahead.

Between layers a video is [B*T, C, H, W] with channels last in memory. Seen so it is a batch of frames to convolutions
over space; seen as [B, C, T, H*W], without moving a byte, it is a picture whose rows are frames to convolutions over
time. So every convolution is a two-dimensional one, for which CPUs and GPUs have their fastest code.

Parameters keep the names and the five-dimensional shapes of the published checkpoints (`conv3d.weight` and so on).

Legend: B batch, T frames, C channels, H W grid at the stage at hand, S = H*W, P frames of the past.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.kernels import may_run
from inlay.kernels.prepared import prepared

if TYPE_CHECKING:
    from inlay.kernels.taps_triton import Taps

State = list[Tensor]
DENSE_CELLS = 4096  # attention over more places than this never holds its whole matrix


class Memory:
    """What causal layers remember from chunk to chunk: each takes what it left, in the order of the layers."""

    def __init__(self, past: State | None, *, keep: bool) -> None:
        self.past, self.keep = past, keep
        self.after: State = []
        self.taken = 0

    @property
    def first(self) -> bool:
        """Whether this is the beginning of a video."""
        return self.past is None

    def take(self) -> Tensor | None:
        if self.past is None:
            return None
        self.taken += 1
        return self.past[self.taken - 1]

    def leave(self, x: Tensor) -> None:
        if self.keep:
            self.after.append(x.clone())  # a view would hold the whole chunk in memory


def are_products(y: Tensor, *convs: nn.Module) -> bool:
    """Whether the kernel may stand in for these convolutions of a frame."""
    weights = [weight for conv in convs for weight in conv.parameters()]
    return may_run("taps", tensors=(y, *weights)) and y.numel() > 0 and fit(convs)


def fit(convs: Sequence[nn.Module]) -> bool:
    """Whether their channels fill the kernel's steps."""
    weights = [weight for conv in convs for weight in conv.parameters() if weight.ndim > 1]
    return all(n % 16 == 0 for weight in weights for n in weight.shape[:2])


class SpaceConv(nn.Module):
    """A convolution over each frame."""

    def __init__(self, width_in: int, width_out: int, size: int, *, stride: int = 1, padding: int = 0) -> None:
        super().__init__()
        self.conv3d = nn.Conv3d(width_in, width_out, (1, size, size))
        self.stride, self.padding = stride, padding

    def forward(self, y: Tensor, *, add: Tensor | None = None, bias: bool = True) -> Tensor:
        """The convolution; `add` is added to it. Without `bias`, what follows makes up for it."""
        if bias and self.conv3d.kernel_size == (1, 1, 1) and are_products(y, self):
            return product(y, prepared(self, space_taps), add=add, norm=add is not None)
        weight, added = self.conv3d.weight[:, :, 0], self.conv3d.bias if bias else None
        z = F.conv2d(y, weight, added, stride=self.stride, padding=self.padding)
        return z if add is None else add + z


def product(y: Tensor, taps: Taps, *, add: Tensor | None = None, norm: bool = False) -> Tensor:
    """A convolution within each frame by the kernel; `norm` says that one follows."""
    from inlay.kernels.taps_triton import convolve  # Triton is imported when it first runs

    return convolve(y, taps, 1, add=add, norm=norm)


def space_taps(conv: SpaceConv) -> Taps:
    from inlay.kernels.taps_triton import Taps

    return Taps.of(conv.conv3d.weight, biased(conv))


def biased(conv: SpaceConv | TimeConv) -> Tensor:
    """Its bias, which torch's convolutions may be without."""
    assert conv.conv3d.bias is not None
    return conv.conv3d.bias


class TimeConv(nn.Module):
    """A convolution over a frame and the two before it; before the first frame stands that frame itself."""

    def __init__(self, width: int, *, stride: int = 1) -> None:
        super().__init__()
        self.conv3d = nn.Conv3d(width, width, (3, 1, 1))
        self.stride = stride

    def forward(self, y: Tensor, T: int, memory: Memory, add: Tensor | None = None) -> Tensor:
        """The convolution; `add` is added to it."""
        if are_products(y, self):
            return self.product(y, T, memory, prepared(self, time_taps), add=add)
        x_BTSC, past = along_time(y, T), memory.take()
        before = x_BTSC[:, :1].expand(-1, 2, -1, -1) if past is None else past
        x_BTSC = torch.cat([before, x_BTSC], dim=1)
        memory.leave(x_BTSC[:, self.stride - 3 :])
        picture_BCTS = x_BTSC.permute(0, 3, 1, 2)  # channels last in memory, as the convolution likes it
        z_BCTS = F.conv2d(picture_BCTS, self.conv3d.weight[..., 0], self.conv3d.bias, stride=(self.stride, 1))
        z = along_space(z_BCTS.permute(0, 2, 3, 1), y.shape[2])
        return z if add is None else add + z

    def product(
        self, y: Tensor, T: int, memory: Memory, taps: Taps, *, add: Tensor | None = None, late: Tensor | None = None
    ) -> Tensor:
        """The same by the kernel; a norm follows, or the end.

        Args:
            taps: the weights, with what else is folded into them.
            late: a bias that `y` is still without and `taps` makes up for; what is remembered has it.
        """
        from inlay.kernels.taps_triton import convolve  # Triton is imported when it first runs

        x_BTSC, past = along_time(y, T), memory.take()
        if memory.keep:
            last = x_BTSC[:, -2:] if late is None else x_BTSC[:, -2:] + late
            before = last[:, :1].expand(-1, 2, -1, -1) if past is None else past
            memory.leave(torch.cat([before, last], dim=1)[:, self.stride - 3 :])
        return convolve(y, taps, T, past_BPSC=past, add=add, norm=True)

    def doubled(self, y: Tensor, T: int, memory: Memory) -> Tensor:
        """conv(u) + u by the kernel, where u is `y` with every frame twice, the first of a video once."""
        from inlay.kernels.taps_triton import convolve  # Triton is imported when it first runs

        past = memory.take()
        if memory.keep:
            memory.leave(along_time(y, T)[:, -1:].expand(-1, 2, -1, -1))
        return convolve(y, prepared(self, phase_taps), T, past_BPSC=None if past is None else past[:, 1:])


def time_taps(conv: TimeConv) -> Taps:
    from inlay.kernels.taps_triton import Taps

    return Taps.of(conv.conv3d.weight, biased(conv), stride=(conv.stride, 1))


def phase_taps(conv: TimeConv) -> Taps:
    """Three neighbours of doubled frames are two frames: so it is one convolution of two for each frame of a pair."""
    from inlay.kernels.taps_triton import Taps

    weight_NCT = conv.conv3d.weight[..., 0, 0]
    before, here, now = weight_NCT.float().unbind(2)
    now = now + torch.eye(len(now), device=now.device)
    first, second = (before + here, now), (before, here + now)
    weight_UNCT = torch.stack([torch.stack(pair, dim=2) for pair in (first, second)])
    return Taps.of_phases(weight_UNCT.to(weight_NCT.dtype), biased(conv))


def along_time(y: Tensor, T: int) -> Tensor:
    """[B*T, C, H, W] seen as [B, T, S, C]."""
    return y.permute(0, 2, 3, 1).unflatten(0, (-1, T)).flatten(2, 3)


def along_space(x_BTSC: Tensor, H: int) -> Tensor:
    """The inverse of `along_time`."""
    return x_BTSC.unflatten(2, (H, -1)).flatten(0, 1).permute(0, 3, 1, 2)


class FrameNorm(nn.Module):
    """Mean and variance over a whole frame, so nothing leaks along time.

    Compiled, the statistics are taken in the order of memory: torch's own decomposition walks channel by channel, which
    with channels last fetches every line many times. Eager, a GPU has kernels for it. Torch's is the oracle of both.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, width, eps=1e-6)

    def forward(self, y: Tensor, *, silu: bool = False) -> Tensor:
        """The norm of each frame, and SiLU of it if asked for."""
        if y.numel() > 0 and may_run("norms", tensors=(y, self.norm.weight, self.norm.bias)):
            from inlay.kernels.norm_triton import frame_norm  # Triton is imported when it first runs

            return frame_norm(y, self.norm.weight, self.norm.bias, self.norm.eps, silu=silu)
        z = self.in_memory_order(y) if torch.compiler.is_compiling() else self.norm(y)
        return F.silu(z) if silu else z

    def in_memory_order(self, y: Tensor) -> Tensor:
        x_NHWC = y.permute(0, 2, 3, 1).float()
        variance, mean = torch.var_mean(x_NHWC.flatten(1), dim=1, correction=0)
        scale = torch.rsqrt(variance + self.norm.eps)
        x_NHWC = (x_NHWC - mean[:, None, None, None]) * scale[:, None, None, None] * self.norm.weight + self.norm.bias
        return x_NHWC.to(y.dtype).permute(0, 3, 1, 2)


class FactorisedConv(nn.ModuleList):
    """3x3 over space, then 3 over time."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__([SpaceConv(width_in, width_out, 3, padding=1), TimeConv(width_out)])

    def forward(self, y: Tensor, T: int, memory: Memory, add: Tensor | None = None) -> Tensor:
        """Both convolutions; `add` is added to the result."""
        space, time = self.convs
        if are_products(y, time):
            taps = prepared(self, factorised_taps)
            return time.product(space(y, bias=False), T, memory, taps, add=add, late=biased(space))
        z: Tensor = time(space(y), T, memory, add)
        return z

    @property
    def convs(self) -> tuple[SpaceConv, TimeConv]:
        space, time = self
        assert isinstance(space, SpaceConv) and isinstance(time, TimeConv)
        return space, time


def factorised_taps(both: FactorisedConv) -> Taps:
    """The convolution over time, which adds the bias of the one over space as well: over time nothing is padded."""
    from inlay.kernels.taps_triton import Taps

    space, time = both.convs
    return Taps.of(time.conv3d.weight, biased(time), late_C=biased(space))


class ResBlock(nn.Module):
    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.norm1 = FrameNorm(width_in)
        self.conv1 = FactorisedConv(width_in, width_out)
        self.norm2 = FrameNorm(width_out)
        self.conv2 = FactorisedConv(width_out, width_out)
        self.nin_shortcut = SpaceConv(width_in, width_out, 1) if width_in != width_out else None

    def forward(self, y: Tensor, T: int, memory: Memory) -> Tensor:
        h = self.conv1(self.norm1(y, silu=True), T, memory)
        return self.conv2(self.norm2(h, silu=True), T, memory, y if self.nin_shortcut is None else self.nin_shortcut(y))


class Attention(nn.Module):
    """One head; the projections are the same over space and over time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = FrameNorm(width)
        self.q, self.k, self.v = (SpaceConv(width, width, 1) for _ in range(3))
        self.proj_out = SpaceConv(width, width, 1)

    def project(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.norm(y)
        return self.q(h), self.k(h), self.v(h)


class SpaceAttention(Attention):
    """Every place of a frame looks at all places of that frame."""

    def forward(self, y: Tensor, T: int, memory: Memory) -> Tensor:
        del T, memory
        q, k, v = (p.flatten(2).transpose(1, 2) for p in self.project(y))  # [B*T, S, C]
        h = attend(q, k, v, None).transpose(1, 2).unflatten(2, y.shape[2:])
        return self.proj_out(h, add=y)


class TimeAttention(Attention):
    """Every place looks at itself in this frame and the frames before: all of them, or the last `window`."""

    window: int | None = None

    def forward(self, y: Tensor, T: int, memory: Memory) -> Tensor:
        q, k, v = (along_time(p, T).transpose(1, 2).flatten(0, 1) for p in self.project(y))  # [B*S, T, C]
        past_k, past_v = memory.take(), memory.take()
        if past_k is not None and past_v is not None:
            k, v = torch.cat([past_k, k], dim=1), torch.cat([past_v, v], dim=1)
        oldest = 0 if self.window is None else max(0, k.shape[1] - self.window + 1)
        memory.leave(k[:, oldest:])
        memory.leave(v[:, oldest:])
        h = attend(q, k, v, self.mask(T, k.shape[1], y.device)).unflatten(0, (-1, y.shape[2] * y.shape[3]))
        return self.proj_out(along_space(h.transpose(1, 2).contiguous(), y.shape[2]), add=y)

    def mask(self, T: int, frames: int, device: torch.device) -> Tensor:
        """[T, frames] bool: which frames each of the last T may look at."""
        now = torch.arange(frames - T, frames, device=device)[:, None]
        then = torch.arange(frames, device=device)[None]
        seen = then <= now
        return seen if self.window is None else seen & (then > now - self.window)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(q k^T / sqrt(C)) v on [N, places, C]."""
    if q.shape[1] > DENSE_CELLS:
        return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], attn_mask=mask)[:, 0]
    scores = torch.bmm(q, k.transpose(1, 2)) * q.shape[2] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.bmm(scores.softmax(dim=-1), v)


class Down(nn.Module):
    """Half the height and width, half the frames: each a strided convolution beside a mean."""

    def __init__(self, width: int, *, space: bool, time: bool) -> None:
        super().__init__()
        self.conv1 = SpaceConv(width, width, 3, stride=2) if space else None
        self.conv2 = TimeConv(width, stride=2) if time else None
        self.conv3 = SpaceConv(width, width, 1)

    def forward(self, y: Tensor, T: int, memory: Memory) -> tuple[Tensor, int]:
        if are_products(y, *self.children()):
            return self.products(y, T, memory)
        if self.conv1 is not None:
            y = self.conv1(F.pad(y, (0, 1, 0, 1))) + F.avg_pool2d(y, 2)
        if self.conv2 is not None:
            frames = y.unflatten(0, (-1, T))
            paired = torch.cat([frames[:, :1], frames], dim=1) if memory.first else frames
            mean = (paired[:, 0::2] + paired[:, 1::2]) / 2
            y, T = self.conv2(y, T, memory) + mean.flatten(0, 1), mean.shape[1]
        return self.conv3(y), T

    def products(self, y: Tensor, T: int, memory: Memory) -> tuple[Tensor, int]:
        """The same by the kernel: means are convolutions too, and the last convolution is part of the one before."""
        clips = y.shape[0] // T
        if self.conv1 is not None:
            y = product(y, prepared(self, halving_taps), norm=self.conv2 is None)
        if self.conv2 is not None:
            y = self.conv2.product(y, T, memory, prepared(self, pairing_taps))
        return y, y.shape[0] // clips


def halving_taps(down: Down) -> Taps:
    """Of the convolution over space and the mean beside it."""
    from inlay.kernels.taps_triton import Taps

    assert down.conv1 is not None
    weight_NCTYX = down.conv1.conv3d.weight.float().clone()
    weight_NCTYX[..., :2, :2] += torch.eye(len(weight_NCTYX), device=weight_NCTYX.device)[:, :, None, None, None] / 4
    weight, bias = weight_NCTYX, biased(down.conv1)
    if down.conv2 is None:
        weight, bias = followed(weight, bias, down.conv3)
    return Taps.of(weight.to(down.conv1.conv3d.weight.dtype), bias, stride=(1, 2))


def pairing_taps(down: Down) -> Taps:
    """Of the convolution over time, the mean of two frames beside it, and the convolution after both."""
    from inlay.kernels.taps_triton import Taps

    assert down.conv2 is not None
    weight_NCTYX = down.conv2.conv3d.weight.float().clone()
    weight_NCTYX[:, :, 1:] += torch.eye(len(weight_NCTYX), device=weight_NCTYX.device)[:, :, None, None, None] / 2
    weight, bias = followed(weight_NCTYX, biased(down.conv2), down.conv3)
    return Taps.of(weight.to(down.conv2.conv3d.weight.dtype), bias, stride=(2, 1))


def followed(weight_NCTYX: Tensor, bias_N: Tensor, last: SpaceConv) -> tuple[Tensor, Tensor]:
    """Weight and bias, in float32, of a convolution and one of a single cell after it."""
    last_ON = last.conv3d.weight[:, :, 0, 0, 0].float()
    weight = torch.einsum("on,nctyx->octyx", last_ON, weight_NCTYX.float())
    return weight, F.linear(bias_N.float(), last_ON, biased(last).float())


class Up(nn.Module):
    """Twice the frames, twice the height and width: each a repetition with a convolution added."""

    def __init__(self, width: int, *, space: bool, time: bool) -> None:
        super().__init__()
        self.conv1 = TimeConv(width) if time else None
        self.conv2 = SpaceConv(width, width, 3, padding=1) if space else None
        self.conv3 = SpaceConv(width, width, 1)

    def forward(self, y: Tensor, T: int, memory: Memory) -> tuple[Tensor, int]:
        if self.conv1 is not None and are_products(y, self.conv1):
            y, T = self.conv1.doubled(y, T, memory), 2 * T - memory.first
        elif self.conv1 is not None:
            frames = y.unflatten(0, (-1, T)).repeat_interleave(2, dim=1)
            frames = frames[:, 1:] if memory.first else frames  # the first frame of a video stands alone
            y, T = frames.flatten(0, 1), frames.shape[1]
            y = self.conv1(y, T, memory, y)
        if self.conv2 is None:
            return self.conv3(y), T
        if are_products(y, self.conv2, self.conv3):
            return product(y, prepared(self, corner_taps), norm=True), T
        return doubled(y, self.conv2, self.conv3), T


def doubled(y: Tensor, conv: SpaceConv, last: SpaceConv) -> Tensor:
    """last(conv(u) + u), where u is y with every cell repeated in a square of four; u itself is never made.

    All of it is linear, and three neighbours of u are at most two cells of y: so it is one convolution of 2x2 cells
    for each of the four corners of a square, with 4 multiplications where the published form has 10.
    """
    last_OC = last.conv3d.weight[:, :, 0, 0, 0]
    bias = F.linear(biased(conv), last_OC, last.conv3d.bias)
    z = F.conv2d(y, corner_kernels(conv.conv3d.weight[:, :, 0], last_OC), bias.repeat(4), padding=1)
    z_BHWabC = z.permute(0, 2, 3, 1).unflatten(3, (2, 2, -1))  # one row and column more than y
    rows, columns = (torch.arange(2 * side, device=y.device) for side in y.shape[2:])
    rows = rows[:, None]
    x_BHWC = z_BHWabC[:, (rows + 1) // 2, (columns + 1) // 2, rows % 2, columns % 2]
    return x_BHWC.permute(0, 3, 1, 2)


def corner_taps(up: Up) -> Taps:
    """The same by the kernel, each corner written to its place."""
    from inlay.kernels.taps_triton import Taps

    assert up.conv2 is not None
    weight = up.conv2.conv3d.weight[:, :, 0]
    kernels = corner_kernels(weight.float(), up.conv3.conv3d.weight[:, :, 0, 0, 0].float())
    _, bias = followed(up.conv2.conv3d.weight, biased(up.conv2), up.conv3)
    return Taps.of_corners(kernels.to(weight.dtype), bias, up=2)


def corner_kernels(weight_OCHW: Tensor, last_OC: Tensor) -> Tensor:
    """[4 C, C, 2, 2], corner by corner: a 3x3 kernel, its input added, then a 1x1 kernel, seen from undoubled cells."""
    both_OCHW = torch.einsum("om,mchw->ochw", last_OC, weight_OCHW) + F.pad(last_OC[:, :, None, None], (1, 1, 1, 1))
    corners_abOCHW = two_cells(two_cells(both_OCHW, dim=3), dim=3)
    return corners_abOCHW.flatten(0, 2).contiguous(memory_format=torch.channels_last)


def two_cells(kernel: Tensor, dim: int) -> Tensor:
    """A kernel over three doubled cells as two kernels over two cells: of the first of a pair, and of the second."""
    before, here, after = kernel.unbind(dim)
    return torch.stack([torch.stack([before, here + after], dim), torch.stack([before + here, after], dim)])


class Haar(nn.Module):
    """Every block of 3 colours and p^3 pixels becomes 3 p^3 numbers: log2(p) levels of the 3-D Haar transform.

    A level turns a 2 x 2 x 2 block into 8 bands (sum or difference along time, height, width; the mean first), and is
    applied to all bands of the level before. Bands are the slow index of a channel, colours the fast one.
    """

    forth: Tensor
    back: Tensor

    def __init__(self, patch: int) -> None:
        super().__init__()
        self.patch = patch
        bands = haar_matrix(patch)
        colours = torch.eye(3)
        self.register_buffer("forth", torch.kron(bands, colours), persistent=False)
        self.register_buffer("back", torch.kron(bands.t().contiguous() * patch**3, colours), persistent=False)

    def split(self, x_BCTHW: Tensor) -> Tensor:
        """[B * T/p, 3 p^3, H/p, W/p], channels last in memory."""
        p = self.patch
        B, C, T, H, W = x_BCTHW.shape
        blocks = x_BCTHW.reshape(B, C, T // p, p, H // p, p, W // p, p).permute(0, 2, 4, 6, 3, 5, 7, 1)
        y = F.linear(blocks.reshape(B * (T // p), H // p, W // p, C * p**3), self.forth.to(x_BCTHW.dtype))
        return y.permute(0, 3, 1, 2)

    def join(self, y: Tensor, T: int) -> Tensor:
        """The inverse: T blocks along time to [B, 3, T p, H, W]."""
        p = self.patch
        blocks = F.linear(y.permute(0, 2, 3, 1), self.back.to(y.dtype))
        _, H, W, _ = blocks.shape
        blocks = blocks.reshape(-1, T, H, W, p, p, p, 3).permute(0, 7, 1, 4, 2, 5, 3, 6)
        return blocks.reshape(-1, 3, T * p, H * p, W * p)


def haar_matrix(patch: int) -> Tensor:
    """[p^3 bands, p^3 pixels (t, y, x)]; its first row is the mean of the block."""
    pair = torch.tensor([[0.5, 0.5], [0.5, -0.5]], dtype=torch.float64)
    level = torch.einsum("ai,bj,ck->abcijk", pair, pair, pair)  # (band along t, y, x), (pixel t, y, x)
    matrix, side = torch.ones(1, 1, 1, 1, dtype=torch.float64), 1
    while side < patch:  # the new level sees whole blocks of the levels before as its pixels: its offset is slow
        matrix = torch.einsum("abcijk,ntyx->abcnitjykx", level, matrix)
        side *= 2
        matrix = matrix.reshape(-1, side, side, side)
    return matrix.reshape(patch**3, patch**3).float()
