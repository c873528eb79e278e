# SPDX-License-Identifier: Apache-2.0
"""The quick convolution against the library's: any grid, the same answer, off where it may not run or gains nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from inlay.kernels import bf16, rule
from inlay.kernels.prepared import prepared
from inlay.kernels.winograd import Conv3x3, kernels_of, transform_weights, winograd


@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 9, 14), (1, 33, 8), (3, 16, 130)])
def test_it_is_the_convolution(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    n, h, w = shape
    x, weight, bias = torch.randn(n, 5, h, w), torch.randn(7, 5, 3, 3), torch.randn(7)
    want = F.conv2d(x.double(), weight.double(), bias.double(), padding=1)
    got = winograd(x.permute(0, 2, 3, 1), transform_weights(weight), bias).permute(0, 3, 1, 2)
    assert (got - want).norm() / want.norm() < 1e-5


def ready() -> Conv3x3:
    torch.manual_seed(0)
    return Conv3x3(64, 72).eval().requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def test_it_is_taken_in_inference_and_follows_new_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    conv, x = ready(), torch.randn(1, 64, 12, 12)
    assert conv.gains(x)
    first = conv(x)
    assert not torch.equal(first, F.conv2d(x, conv.weight, conv.bias, padding=1)), "another algorithm rounds otherwise"
    conv.weight.data.mul_(1.0)
    with torch.no_grad():
        conv.weight.mul_(2)
    torch.testing.assert_close(conv(x), F.conv2d(x, conv.weight, conv.bias, padding=1), rtol=1e-3, atol=1e-4)
    monkeypatch.setenv("INLAY_FAST", "0")
    assert torch.equal(conv(x), F.conv2d(x, conv.weight, conv.bias, padding=1))


def test_it_is_off_where_nothing_is_gained() -> None:
    conv, x = ready(), torch.randn(1, 64, 12, 12)
    assert not conv.gains(x[:, :, :4]), "too small a picture"
    assert not Conv3x3(64, 32).eval().gains(x), "too few channels"
    assert not conv.train().gains(x), "weights change at every step"


@pytest.mark.parametrize("wants", ["input", "weight", "bias"])
def test_gradients_go_through_the_plain_convolution(wants: str) -> None:
    conv, x = ready(), torch.randn(1, 64, 12, 12)
    {"input": x, "weight": conv.weight, "bias": conv.bias}[wants].requires_grad_()  # type: ignore[union-attr]
    y = conv(x)
    assert y.requires_grad and torch.equal(y, F.conv2d(x, conv.weight, conv.bias, padding=1))


def test_doubles_stay_doubles() -> None:
    conv, x = ready().double(), torch.randn(1, 64, 12, 12).double()
    assert torch.equal(conv(x), F.conv2d(x, conv.weight, conv.bias, padding=1))


def test_weights_made_in_inference_mode_work() -> None:
    with torch.inference_mode():
        conv, x = ready(), torch.randn(1, 64, 12, 12)
        torch.testing.assert_close(conv(x), F.conv2d(x, conv.weight, conv.bias, padding=1), rtol=1e-3, atol=1e-4)


needs_bf16 = pytest.mark.skipif(not bf16.is_here(), reason="this CPU has no bfloat16 instructions")


@needs_bf16
def test_fewer_bits_are_taken_where_they_are_allowed_and_there(monkeypatch: pytest.MonkeyPatch) -> None:
    conv, x = ready(), torch.randn(1, 64, 12, 12)
    want = F.conv2d(x, conv.weight, conv.bias, padding=1)

    def off() -> float:
        return float((conv(x) - want).norm() / want.norm())

    conv.bits = 16
    with torch.inference_mode():
        assert 1e-3 < off() < 5e-3
        monkeypatch.setitem(rule.NEEDS, "avx512_bf16", (lambda: False, "not here"))
        assert off() < 1e-5, "the quick convolution instead"
        monkeypatch.undo()
        monkeypatch.setenv("INLAY_FAST", "0")
        assert off() == 0
        monkeypatch.undo()
    assert off() < 1e-5, "gradients may be wanted"


@needs_bf16
@torch.inference_mode()
def test_16_bits_do_not_depend_on_threads_or_company() -> None:
    conv, x = ready(), torch.randn(3, 64, 33, 24).contiguous(memory_format=torch.channels_last)
    conv.bits = 16
    threads = torch.get_num_threads()
    try:
        answers = []
        for n in (1, 2):
            torch.set_num_threads(n)
            answers.append(conv(x))
        assert torch.equal(*answers)
        assert torch.equal(answers[0][1:2], conv(x[1:2]))
    finally:
        torch.set_num_threads(threads)


@needs_bf16
@torch.inference_mode()
def test_attention_in_16_bits() -> None:
    q, k, v = (torch.randn(4, n, 32) for n in (20, 50, 50))
    want = F.scaled_dot_product_attention(q, k, v)
    assert 0 < float((bf16.attention(q, k, v) - want).norm() / want.norm()) < 0.01


def test_prepared_weights_follow_their_layer() -> None:
    conv = ready()
    first = prepared(conv, kernels_of)
    assert prepared(conv, kernels_of) is first
    conv.weight.mul_(2)
    assert torch.equal(prepared(conv, kernels_of), 2 * first)
    second = prepared(conv, kernels_of)
    conv.bias.zero_()  # type: ignore[union-attr]
    assert prepared(conv, kernels_of) is not second, "a bias may be part of what is made"
