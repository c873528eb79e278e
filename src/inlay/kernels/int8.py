# SPDX-License-Identifier: Apache-2.0
"""Products of float32 tensors in 8 bits, a third of the time on a CPU that has instructions for it.

Weights keep a scale an output, activations one scale a call, taken from their own range: what a call gives depends on
nothing but its own numbers. Sums are 32-bit integers, hence exact; the answer is off by about 1 % of itself, so this is
only for parts of a network whose answer does not show it (see docs/speed.md for what was measured).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from inlay.kernels.prepared import prepared

LEVELS = 253  # steps between the ends of a range: of 255, one for rounding at either end
CLOSE = 0.05  # how far off the trial may be; a CPU that saturates, or a library that changed, is further


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedWeights:
    """Weights in 8 bits as the library wants them, and what turns its integers back into numbers."""

    weight: Tensor
    scales_O: Tensor
    zeros_O: Tensor
    bias_O: Tensor | None


@cache
def is_here() -> bool:
    """Whether this CPU has the instructions and this torch the operations, tried once on small numbers."""
    if not getattr(torch.cpu, "_is_vnni_supported", lambda: False)():
        return False
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(n, 64, generator=generator) for n in (16, 32))
    image, kernels = torch.randn(1, 64, 8, 8, generator=generator), torch.randn(16, 64, 3, 3, generator=generator)
    try:
        with torch.inference_mode():
            line = linear(x, pack_linear(w, None))
            picture = convolve(image, pack_conv(kernels, None), after="swish")
    except (RuntimeError, AttributeError, TypeError, NotImplementedError):  # operations of another torch
        return False
    pairs = ((line, x @ w.t()), (picture, silu(nn.functional.conv2d(image, kernels, padding=1))))
    return all(float((got - want).norm()) < CLOSE * float(want.norm()) for got, want in pairs)


def packed(layer: nn.Linear | nn.Conv2d) -> PackedWeights:
    """The weights of a layer in 8 bits."""
    return prepared(layer, pack)


def pack(layer: nn.Linear | nn.Conv2d) -> PackedWeights:
    make = pack_linear if isinstance(layer, nn.Linear) else pack_conv
    return make(layer.weight, layer.bias)


def pack_linear(weight_OC: Tensor, bias_O: Tensor | None) -> PackedWeights:
    rounded, scales = in_8_bits(weight_OC)
    packed = torch.ops.onednn.qlinear_prepack(rounded, None)
    return PackedWeights(
        weight=packed, scales_O=scales, zeros_O=torch.zeros(len(scales), dtype=torch.int64), bias_O=bias_O
    )


def pack_conv(weight_OCHW: Tensor, bias_O: Tensor | None) -> PackedWeights:
    """3x3 with a border of one."""
    rounded, scales = in_8_bits(weight_OCHW)
    one = [1, 1]
    packed = torch.ops.onednn.qconv_prepack(rounded, scales, 1.0, 1, one, one, one, 1, None)
    return PackedWeights(
        weight=packed, scales_O=scales, zeros_O=torch.zeros(len(scales), dtype=torch.int64), bias_O=bias_O
    )


def in_8_bits(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers from -127 to 127, and a scale an output."""
    scales = weight.detach().flatten(1).abs().amax(1).clamp_min(1e-12) / 127
    return (weight.detach() / scales.view(-1, *[1] * (weight.dim() - 1))).round().to(torch.int8), scales


def linear(x_NC: Tensor, packed: PackedWeights, *, after: str = "none") -> Tensor:
    """[N, O]; `after` may be gelu."""
    return multiply(*in_range(x_NC), packed, after=after)


def multiply(x_NC: Tensor, step: float, zero: int, packed: PackedWeights, *, after: str = "none") -> Tensor:
    """`linear` of numbers that are whole already."""
    return torch.ops.onednn.qlinear_pointwise(
        x_NC, step, zero, packed.weight, packed.scales_O, packed.zeros_O, packed.bias_O, 1.0, 0, torch.float32,
        after, [], "none" if after == "gelu" else "",
    )  # fmt: skip


def convolve(x_NCHW: Tensor, packed: PackedWeights, *, after: str = "none") -> Tensor:
    """[N, O, H, W] with channels last in memory; each image has a range of its own. `after` may be swish, or SiLU."""
    images = [convolve_one(image, packed, after) for image in x_NCHW.split(1)]
    return torch.cat(images) if len(images) > 1 else images[0]


def convolve_one(x_1CHW: Tensor, packed: PackedWeights, after: str) -> Tensor:
    x, scale, zero = in_range(x_1CHW)
    one = [1, 1]
    return torch.ops.onednn.qconv2d_pointwise(
        x, scale, zero, packed.weight, packed.scales_O, packed.zeros_O, packed.bias_O, one, one, one, 1, 1.0, 0,
        torch.float32, after, [], "",
    )  # fmt: skip


def in_range(x: Tensor) -> tuple[Tensor, float, int]:
    """Whole numbers from 0 to 255, the step between them, and the one that stands for zero."""
    in_order = x.permute(0, 2, 3, 1) if x.dim() == 4 else x  # pictures have channels last, and copying them is dear
    low, high = (float(end) for end in torch.aminmax(in_order))
    low, high = min(low, 0.0), max(high, 0.0)  # zero must be among them: it is what borders are made of
    step = max((high - low) / LEVELS, 1e-12)
    zero = round(-low / step) + 1  # never 0: weights are packed for a zero elsewhere
    lifted = torch.add(torch.tensor(zero + 0.5), x, alpha=1 / step)
    return lifted.to(torch.int16).to(torch.uint8), step, zero  # straight to uint8 takes thrice as long
