# SPDX-License-Identifier: Apache-2.0
"""The norm kernels against torch's group norm and SiLU, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from inlay.backbones.cosmos_layers import FrameNorm
from tests.triton_here import DEVICE, needs_triton

DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if DEVICE == "cuda" else [])  # which is not interpreted


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("shape", [(3, 8, 5, 7), (1, 24, 48, 40), (2, 128, 16, 16), (1, 2, 1, 1)])
def test_the_norm_of_torch(shape: tuple[int, ...], silu: bool, dtype: torch.dtype) -> None:
    from inlay.kernels.norm_triton import frame_norm

    torch.manual_seed(0)
    y = torch.randn(shape).mul(3).add(5 * torch.randn(shape[0], 1, 1, 1))
    y = y.to(DEVICE, dtype).contiguous(memory_format=torch.channels_last)
    weight, bias = (torch.randn(shape[1]).to(DEVICE, dtype) for _ in range(2))
    got = frame_norm(y, weight, bias, 1e-6, silu=silu)
    want = F.group_norm(y.double(), 1, weight.double(), bias.double(), 1e-6)
    want = F.silu(want) if silu else want
    assert got.dtype == dtype and got.is_contiguous(memory_format=torch.channels_last)
    tolerance = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


@needs_triton
def test_frames_far_from_zero_and_of_any_layout() -> None:
    from inlay.kernels.norm_triton import frame_norm

    torch.manual_seed(0)
    y = torch.randn(2, 16, 40, 60, device=DEVICE) + 100
    weight, bias = torch.ones(16, device=DEVICE), torch.zeros(16, device=DEVICE)
    got = frame_norm(y, weight, bias, 1e-6, silu=False)  # channels first
    torch.testing.assert_close(got, F.group_norm(y.double(), 1, eps=1e-6).float(), rtol=2e-3, atol=2e-3)


def test_silu_is_asked_for() -> None:
    norm = FrameNorm(8)
    y = torch.randn(2, 8, 4, 4)
    torch.testing.assert_close(norm(y, silu=True), F.silu(norm(y)), rtol=0, atol=0)


@pytest.mark.gpu
def test_a_network_with_the_kernels_is_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from inlay.backbones.cosmos import Cosmos, tiny_cosmos

    torch.manual_seed(0)
    network = Cosmos(tiny_cosmos()).eval().requires_grad_(False).to("cuda")
    x = torch.rand(2, 3, 9, 64, 64, device="cuda").mul(2).sub(1)
    wanted = network.encode(x)
    half = network.to(torch.bfloat16)
    found = []
    for level in ("1", "0"):
        monkeypatch.setenv("INLAY_FAST", level)
        with torch.inference_mode():
            found.append(float((half.encode(x.bfloat16()).float() - wanted).norm() / wanted.norm()))
    assert found[0] < 1.2 * found[1] + 1e-3, "no further from float32 than torch's own"
