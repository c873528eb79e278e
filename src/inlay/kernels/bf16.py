# SPDX-License-Identifier: Apache-2.0
"""Products of float32 tensors with factors rounded to bfloat16: half the time on a CPU that has instructions for it.

Sums are float32; factors and the answer are rounded to 8 bits of mantissa, so the answer is off by about 0.3 % of
itself. A CPU without the instructions is several times slower this way.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inlay.kernels.prepared import prepared


@cache
def is_here() -> bool:
    """Whether this CPU has the instructions and this torch a library that uses them."""
    has = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    return bool(has()) and torch.backends.mkldnn.is_available()


def convolve(x_NCHW: Tensor, conv: nn.Conv2d) -> Tensor:
    """[N, O, H, W] float32, 3x3 with a border of one; image by image, as the library sums larger batches otherwise."""
    weight, bias = prepared(conv, halved)
    images = [F.conv2d(image.bfloat16(), weight, bias, padding=1) for image in x_NCHW.split(1)]
    return torch.cat([image.float() for image in images]) if len(images) > 1 else images[0].float()


def halved(conv: nn.Conv2d) -> tuple[Tensor, Tensor | None]:
    weight = conv.weight.detach().bfloat16().contiguous(memory_format=torch.channels_last)
    return weight, None if conv.bias is None else conv.bias.detach().bfloat16()


def attention(q_NLE: Tensor, k_NME: Tensor, v_NME: Tensor) -> Tensor:
    """[N, L, E] float32: softmax(q k' / sqrt(E)) v."""
    scores_NLM = torch.bmm((q_NLE * q_NLE.shape[-1] ** -0.5).bfloat16(), k_NME.bfloat16().transpose(1, 2))
    return torch.bmm(scores_NLM.softmax(-1), v_NME.bfloat16()).float()
