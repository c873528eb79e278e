# SPDX-License-Identifier: Apache-2.0
"""LPIPS: how far apart two frames lie in the features of VGG16, by learnt weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from inlay.errors import ShapeError
from inlay.measure.base import MeasureConfig, full_precision, is_remembered, recall
from inlay.measure.weights import find_weights, load_network

STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))  # VGG16: a pool between stages
PIXELS_AT_ONCE = 2**19  # 8 frames of 256x256; the first stage alone needs 256 bytes a pixel
PIXELS_KEPT = {"cpu": 3 * 2**20}  # of a reference that meets many others; 488 bytes a pixel
PIXELS_KEPT_ELSEWHERE = 2**23


class Lpips(nn.Module):
    """LPIPS v0.1 on VGG16. Its tensors: conv0..conv12 (weight, bias) and lin0..lin4, one weight for each channel."""

    shift: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        widths = [w for stage in STAGES for w in stage]
        for i, (before, after) in enumerate(zip([3, *widths], widths, strict=False)):
            self.add_module(f"conv{i}", nn.Conv2d(before, after, 3, padding=1))
        for i, stage in enumerate(STAGES):
            self.register_parameter(f"lin{i}", nn.Parameter(torch.zeros(stage[-1])))
        shift = torch.tensor([-0.030, -0.088, -0.188]).view(1, 3, 1, 1)
        scale = torch.tensor([0.458, 0.448, 0.450]).view(1, 3, 1, 1)
        self.register_buffer("shift", shift, persistent=False)
        self.register_buffer("scale", scale, persistent=False)

    def features(self, x_BCHW: Tensor) -> list[Tensor]:
        """The last activation of each stage, every position scaled to unit length."""
        x, layer, out = (x_BCHW - self.shift) / self.scale, 0, []
        for i, stage in enumerate(STAGES):
            if i > 0:
                x = F.max_pool2d(x, 2)
            for _ in stage:
                x = F.relu(self.get_submodule(f"conv{layer}")(x))
                layer += 1
            out.append(x / (x.square().sum(1, keepdim=True).sqrt() + 1e-10))
        return out

    def forward(self, a_BCHW: Tensor, b_BCHW: Tensor) -> Tensor:
        """[B] distances of images in [-1, 1]."""
        return self.distance(self.features(a_BCHW), self.features(b_BCHW))

    def distance(self, a: list[Tensor], b: list[Tensor]) -> Tensor:
        """[B] distances from the features of both."""
        total = a[0].new_zeros(len(a[0]))
        for i, (p, q) in enumerate(zip(a, b, strict=True)):
            weight_C = self.get_parameter(f"lin{i}")
            total = total + torch.einsum("bchw,c->bhw", (p - q).square(), weight_C).mean((1, 2))
        return total


@lru_cache(maxsize=2)
def load_lpips(path: Path, device: str = "cpu", order: torch.memory_format = torch.channels_last) -> Lpips:
    """The network with its weights, frozen; the order in memory is the faster one on CPUs and for short numbers."""
    net = Lpips()
    load_network(net, path)
    return net.eval().requires_grad_(False).to(device).to(memory_format=order)  # type: ignore[call-overload]


class LpipsGauge:
    def __init__(self, config: MeasureConfig) -> None:
        # GPUs have their float32 kernels for the plain order
        order = torch.channels_last if torch.device(config.device).type == "cpu" else torch.contiguous_format
        self.net = load_lpips(find_weights("lpips"), config.device, order)
        self.frames, self.total = 0, 0.0

    @torch.no_grad()
    def update(self, reference_THWC: Tensor, other_THWC: Tensor) -> None:
        frames, height, width, _ = reference_THWC.shape
        if min(height, width) < 16:
            need = "LPIPS halves the frame four times and needs 16x16 at least"
            raise ShapeError(f"{need}; the frames are {width}x{height}")
        with full_precision(self.net.shift.device):
            pieces = zip(_of_reference(self.net, reference_THWC), _features(self.net, other_THWC), strict=True)
            total = torch.stack([self.net.distance(a, b).double().sum() for a, b in pieces]).sum()
        self.frames += frames
        self.total += float(total)

    def finish(self) -> dict[str, float]:
        return {"lpips": self.total / self.frames}


def _of_reference(net: Lpips, x_THWC: Tensor) -> Iterable[list[Tensor]]:
    """Kept where one reference meets many others, and is not too large to keep."""
    most = PIXELS_KEPT.get(net.shift.device.type, PIXELS_KEPT_ELSEWHERE)
    if not is_remembered(x_THWC) or x_THWC[..., 0].numel() > most:
        return _features(net, x_THWC)
    return recall(x_THWC, net, lambda: list(_features(net, x_THWC)))


def _features(net: Lpips, x_THWC: Tensor) -> Iterator[list[Tensor]]:
    """Piece by piece: the features of a long video would not fit into memory."""
    for piece in x_THWC.split(max(1, PIXELS_AT_ONCE // x_THWC[0, ..., 0].numel())):
        yield net.features(to_unit(piece, net.shift.device))


def to_unit(x_THWC: Tensor, device: torch.device) -> Tensor:
    """uint8 frames -> [T, 3, H, W] in [-1, 1]."""
    x_TCHW = x_THWC.to(device).permute(0, 3, 1, 2).float().div(127.5).sub(1)  # channels last in memory
    return x_TCHW if device.type == "cpu" else x_TCHW.contiguous()
