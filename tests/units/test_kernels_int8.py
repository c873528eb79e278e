# SPDX-License-Identifier: Apache-2.0
"""8-bit products against float32 ones: how far off, what they depend on, when they stay away."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from inlay.backbones.mini import Mini, MiniConfig
from inlay.fill import Lit, LitConfig
from inlay.kernels import int8
from inlay.kernels.winograd import Conv3x3

needs_int8 = pytest.mark.skipif(not int8.is_here(), reason="this CPU has no 8-bit dot products (VNNI)")


def off(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm())


@needs_int8
@torch.inference_mode()
def test_products_are_off_by_a_hundredth() -> None:
    layer, x = nn.Linear(96, 40), torch.randn(50, 96)
    assert 0 < off(int8.linear(x, int8.packed(layer)), layer(x)) < 0.02
    assert off(int8.linear(x, int8.packed(layer), after="gelu"), F.gelu(layer(x))) < 0.03
    conv, y = Conv3x3(64, 80, bits=8).eval(), F.silu(torch.randn(2, 64, 9, 13))  # not centred, and with borders
    assert off(conv(y, F.silu), F.silu(F.conv2d(y, conv.weight, conv.bias, padding=1))) < 0.02
    assert 0 < off(int8.convolve(y, int8.packed(conv)), F.conv2d(y, conv.weight, conv.bias, padding=1)) < 0.02


@needs_int8
@torch.inference_mode()
def test_zeros_constants_and_extremes() -> None:
    layer = nn.Linear(8, 3)
    for x in (torch.zeros(2, 8), torch.full((2, 8), 5.0), torch.full((2, 8), -1e-6), torch.full((2, 8), 1e6)):
        got = int8.linear(x, int8.packed(layer))
        torch.testing.assert_close(got, layer(x), rtol=0.02, atol=0.02 * float(x.abs().max()) + 1e-6)


@needs_int8
@torch.inference_mode()
def test_a_clip_is_the_same_in_any_company() -> None:
    conv, y = Conv3x3(64, 64).eval(), torch.randn(3, 64, 8, 8) * torch.tensor([1.0, 10.0, 0.1]).view(3, 1, 1, 1)
    together = int8.convolve(y, int8.packed(conv))
    assert all(torch.equal(together[i : i + 1], int8.convolve(y[i : i + 1], int8.packed(conv))) for i in range(3))
    lit = Lit.build(LitConfig(channels=4, width=64, heads=2, blocks=1, window=4)).eval()
    nn.init.normal_(lit.out_proj.weight)
    for height, width in ((8, 8), (17, 5)):
        z, keep = torch.randn(3, 4, 3, height, width), torch.rand(3, 3, height, width) < 0.5
        z[1] *= 7
        alone = torch.cat([lit(*clip, 0.5) for clip in zip(z.split(1), keep.split(1), strict=True)])
        assert torch.equal(lit(z, keep, 0.5), alone)


@needs_int8
def test_new_weights_are_packed_anew() -> None:
    layer, x = nn.Linear(32, 8).requires_grad_(False), torch.randn(4, 32)
    with torch.inference_mode():
        int8.linear(x, int8.packed(layer))
    layer.weight.copy_(torch.randn(8, 32))
    with torch.inference_mode():
        assert off(int8.linear(x, int8.packed(layer)), layer(x)) < 0.02


@needs_int8
def test_only_convolutions_of_8_bits_without_gradients_take_them(monkeypatch: pytest.MonkeyPatch) -> None:
    conv, x = Conv3x3(64, 64).eval().requires_grad_(False), torch.randn(1, 64, 16, 16)
    want = F.conv2d(x, conv.weight, conv.bias, padding=1)
    with torch.inference_mode():
        assert off(conv(x), want) < 1e-4
        conv.bits = 8
        assert off(conv(x), want) > 1e-3
        monkeypatch.setenv("INLAY_FAST", "0")
        assert off(conv(x), want) < 1e-4
    monkeypatch.delenv("INLAY_FAST")
    assert off(conv(x), want) < 1e-4, "gradients may be wanted"


@needs_int8
@pytest.mark.slow
def test_the_decoder_shows_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far below what a picture of 40 dB is off by."""
    torch.manual_seed(0)
    mini = Mini(MiniConfig(decoder_coarse=64, decoder_fine=64, decoder_blocks=(2, 1))).eval().requires_grad_(False)
    for block in [*mini.decoder.coarse, *mini.decoder.fine]:
        nn.init.normal_(block.conv2.weight, std=0.02)
    z = torch.randn(1, mini.config.channels, 2, 16, 16)
    with torch.inference_mode():
        quick = mini.decode(z)
        monkeypatch.setenv("INLAY_FAST", "0")
        plain = mini.decode(z)
    assert 0 < off(quick, plain) < 0.01
