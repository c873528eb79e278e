# SPDX-License-Identifier: Apache-2.0
"""I3D, the inflated Inception network (RGB, Kinetics-400) whose 400 logits FVD compares."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from inlay.measure.weights import load_weights

Triple = tuple[int, int, int]
ONE: Triple = (1, 1, 1)
MIN_FRAMES = 9  # fewer leave the last average pool, two steps long, with one step


def same_pad(x: Tensor, kernel: Triple, stride: Triple, value: float = 0.0) -> Tensor:
    """TensorFlow's SAME: as much on both sides as makes the output ceil(n / stride), the odd one at the end."""
    pad: list[int] = []
    for size, k, s in zip(reversed(x.shape[2:]), reversed(kernel), reversed(stride), strict=True):
        total = max((-(-size // s) - 1) * s + k - size, 0)
        pad += [total // 2, total - total // 2]
    return F.pad(x, pad, value=value)


class Unit(nn.Module):
    """Convolution, batch normalisation by stored statistics without a scale, ReLU."""

    mean: Tensor
    var: Tensor

    def __init__(self, before: int, after: int, kernel: Triple = ONE, stride: Triple = ONE) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride
        self.weight = nn.Parameter(torch.empty(after, before, *kernel))
        self.bias = nn.Parameter(torch.zeros(after))
        self.register_buffer("mean", torch.zeros(after))
        self.register_buffer("var", torch.ones(after))

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv3d(same_pad(x, self.kernel, self.stride), self.weight, stride=self.stride)
        return F.relu(F.batch_norm(x, self.mean, self.var, bias=self.bias, eps=1e-3))


class Pool(nn.Module):
    def __init__(self, kernel: Triple, stride: Triple) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool3d(same_pad(x, self.kernel, self.stride, -torch.inf), self.kernel, self.stride)


class Mixed(nn.Module):
    """Four branches side by side: 1x1, 1x1 then 3x3 twice over, and pool then 1x1."""

    def __init__(self, before: int, widths: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        b0, b1a, b1b, b2a, b2b, b3 = widths
        self.b0 = Unit(before, b0)
        self.b1a, self.b1b = Unit(before, b1a), Unit(b1a, b1b, (3, 3, 3))
        self.b2a, self.b2b = Unit(before, b2a), Unit(b2a, b2b, (3, 3, 3))
        self.pool, self.b3 = Pool((3, 3, 3), ONE), Unit(before, b3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.b0(x), self.b1b(self.b1a(x)), self.b2b(self.b2a(x)), self.b3(self.pool(x))], 1)


MIXED = {
    "Mixed_3b": (192, (64, 96, 128, 16, 32, 32)),
    "Mixed_3c": (256, (128, 128, 192, 32, 96, 64)),
    "Mixed_4b": (480, (192, 96, 208, 16, 48, 64)),
    "Mixed_4c": (512, (160, 112, 224, 24, 64, 64)),
    "Mixed_4d": (512, (128, 128, 256, 24, 64, 64)),
    "Mixed_4e": (512, (112, 144, 288, 32, 64, 64)),
    "Mixed_4f": (528, (256, 160, 320, 32, 128, 128)),
    "Mixed_5b": (832, (256, 160, 320, 32, 128, 128)),
    "Mixed_5c": (832, (384, 192, 384, 48, 128, 128)),
}
POOL_BEFORE = {"Mixed_4b": Pool((3, 3, 3), (2, 2, 2)), "Mixed_5b": Pool((2, 2, 2), (2, 2, 2))}


class I3d(nn.Module):
    """Clips [B, 3, T, 224, 224] in [-1, 1], T >= 9, to logits [B, 400]."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv3d_1a_7x7 = Unit(3, 64, (7, 7, 7), (2, 2, 2))
        self.Conv3d_2b_1x1 = Unit(64, 64)
        self.Conv3d_2c_3x3 = Unit(64, 192, (3, 3, 3))
        self.pool = Pool((1, 3, 3), (1, 2, 2))
        self.body = nn.ModuleDict({name: Mixed(before, widths) for name, (before, widths) in MIXED.items()})
        self.Logits = nn.Conv3d(1024, 400, 1)

    def forward(self, x_BCTHW: Tensor) -> Tensor:
        x = self.pool(self.Conv3d_1a_7x7(x_BCTHW))
        x = self.pool(self.Conv3d_2c_3x3(self.Conv3d_2b_1x1(x)))
        for name, block in self.body.items():
            if name in POOL_BEFORE:
                x = POOL_BEFORE[name](x)
            x = block(x)
        return self.Logits(F.avg_pool3d(x, (2, 7, 7), 1)).mean((2, 3, 4))


@lru_cache(maxsize=2)
def load_i3d(path: Path, device: str = "cpu") -> I3d:
    """The network with its weights, frozen."""
    net = I3d()
    load_weights(net, path)
    return net.eval().requires_grad_(False).to(device)
