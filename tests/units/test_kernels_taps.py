# SPDX-License-Identifier: Apache-2.0
"""Cosmos's convolutions as products against torch's, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.backbones import cosmos_layers as layers
from inlay.backbones.cosmos import Cosmos, CosmosConfig, tiny_cosmos
from inlay.kernels.switch import at_level
from tests.triton_here import DEVICE, needs_triton

TOLERANCE = 1e-4 if DEVICE == "cpu" else 5e-2  # TF32 on a GPU


def flat(x_BCTHW: Tensor) -> Tensor:
    """[B*T, C, H, W], channels last in memory."""
    return x_BCTHW.transpose(1, 2).flatten(0, 1).contiguous(memory_format=torch.channels_last)


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=TOLERANCE, atol=TOLERANCE)


@needs_triton
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("with_past", [False, True])
@pytest.mark.parametrize(("channels", "out"), [(16, 48), (80, 16), (32, 272)])
def test_over_time(stride: int, with_past: bool, channels: int, out: int) -> None:
    from inlay.kernels.taps_triton import Taps, convolve

    torch.manual_seed(0)
    frames = 4 if with_past and stride == 2 else 5  # a chunk that goes on has whole pairs
    x = torch.randn(2, channels, frames, 3, 6, device=DEVICE)  # two clips
    weight, bias = torch.randn(out, channels, 3, 1, 1, device=DEVICE), torch.randn(out, device=DEVICE)
    past = (
        torch.randn(2, channels, 3 - stride, 3, 6, device=DEVICE)
        if with_past
        else x[:, :, :1].expand(-1, -1, 2, -1, -1)
    )
    wanted = F.conv3d(torch.cat([past, x], dim=2), weight, bias, stride=(stride, 1, 1))
    more = torch.randn_like(wanted)
    past_BPSC = past.flatten(3).permute(0, 2, 3, 1) if with_past else None
    got = convolve(flat(x), Taps.of(weight, bias, stride=(stride, 1)), frames, past_BPSC=past_BPSC, add=flat(more))
    close(got, flat(wanted + more))


@needs_triton
@pytest.mark.parametrize("with_past", [False, True])
def test_a_bias_may_come_late(with_past: bool) -> None:
    """The frames of the chunk lack the bias of the convolution before, those of the past have it."""
    from inlay.kernels.taps_triton import Taps, convolve

    torch.manual_seed(0)
    x, late = torch.randn(2, 16, 3, 4, 5, device=DEVICE), torch.randn(16, device=DEVICE)
    weight, bias = torch.randn(32, 16, 3, 1, 1, device=DEVICE), torch.randn(32, device=DEVICE)
    whole = x + late[:, None, None, None]
    past = torch.randn(2, 16, 2, 4, 5, device=DEVICE) if with_past else whole[:, :, :1].expand(-1, -1, 2, -1, -1)
    past_BPSC = past.flatten(3).permute(0, 2, 3, 1) if with_past else None
    got = convolve(flat(x), Taps.of(weight, bias, late_C=late), 3, past_BPSC=past_BPSC)
    close(got, flat(F.conv3d(torch.cat([past, whole], dim=2), weight, bias)))


@needs_triton
@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 2)])
@pytest.mark.parametrize(("height", "width"), [(8, 6), (7, 9)])
def test_within_a_frame(kernel: int, stride: int, height: int, width: int) -> None:
    from inlay.kernels.taps_triton import Taps, convolve

    torch.manual_seed(0)
    y = torch.randn(3, 48, height, width, device=DEVICE)
    weight, bias = torch.randn(32, 48, 1, kernel, kernel, device=DEVICE), torch.randn(32, device=DEVICE)
    edge = (0, 1, 0, 1) if stride == 2 else (0, 0, 0, 0)
    wanted = F.conv2d(F.pad(y, edge), weight[:, :, 0], bias, stride=stride)
    got = convolve(y, Taps.of(weight, bias, stride=(1, stride)), 1)
    assert got.is_contiguous(memory_format=torch.channels_last)
    close(got, wanted)


@needs_triton
def test_every_cell_becomes_a_square() -> None:
    torch.manual_seed(0)
    up = layers.Up(32, space=True, time=False).to(DEVICE)
    y = torch.randn(2, 32, 5, 7, device=DEVICE)
    with torch.no_grad():
        repeated = y.repeat_interleave(2, 2).repeat_interleave(2, 3)
        assert up.conv2 is not None
        published = up.conv3(up.conv2(repeated) + repeated)
        close(layers.product(y, layers.corner_taps(up)), published)
        close(layers.doubled(y, up.conv2, up.conv3), published)


@needs_triton
@pytest.mark.parametrize("with_past", [False, True])
def test_every_frame_becomes_two(with_past: bool) -> None:
    """But for the first of a video; what is remembered is what the plain form remembers."""
    torch.manual_seed(0)
    conv = layers.TimeConv(32).to(DEVICE)
    y, T = torch.randn(6, 32, 5, 7, device=DEVICE), 3
    held = torch.randn(2, 1, 35, 32, device=DEVICE).expand(-1, 2, -1, -1)
    past, other = (layers.Memory([held] if with_past else None, keep=True) for _ in range(2))
    with torch.no_grad():
        frames = y.unflatten(0, (-1, T)).repeat_interleave(2, dim=1)[:, 0 if with_past else 1 :]
        repeated = frames.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        wanted = conv(repeated, frames.shape[1], other, repeated)
        close(conv.doubled(y.contiguous(memory_format=torch.channels_last), T, past), wanted)
    close(past.after[0], other.after[0])


@needs_triton
@pytest.mark.parametrize("kind", ["over time", "down", "up", "wide"])
def test_the_moments_of_a_frame_are_taken_with_it(kind: str) -> None:
    """A norm of these frames finds them; tiles that reach over the edge count what lies inside only."""
    from inlay.kernels.norm_triton import TAKEN, frame_norm
    from inlay.kernels.taps_triton import Taps, convolve

    torch.manual_seed(0)
    y = torch.randn(4, 32, 12, 14, device=DEVICE).add(3).contiguous(memory_format=torch.channels_last)
    out = 272 if kind == "wide" else 48
    weight, bias = torch.randn(out, 32, 3, 3, 3, device=DEVICE), torch.randn(out, device=DEVICE)
    taps = {
        "over time": Taps.of(weight[..., :1, :1], bias),
        "wide": Taps.of(weight[:, :, :1, :1, :1], bias),
        "down": Taps.of(weight[:, :, :1], bias, stride=(1, 2)),
        "up": Taps.of_corners(weight[:, :, 0, :2, :2].repeat(4, 1, 1, 1), bias, up=2),
    }[kind]
    z = convolve(y, taps, 4 if kind == "over time" else 1, norm=True)
    mean, distance, number = TAKEN[z].double().unbind(2)
    flat_z = z.double().flatten(1)
    whole = (mean * number).sum(1) / number.sum(1)
    assert number.sum(1).tolist() == [flat_z.shape[1]] * 4
    torch.testing.assert_close(whole, flat_z.mean(1), rtol=1e-5, atol=1e-4)
    spread = distance.sum(1) + (number * (mean - whole[:, None]).square()).sum(1)
    torch.testing.assert_close(spread / flat_z.shape[1], flat_z.var(1, correction=0), rtol=1e-4, atol=1e-4)
    ones = torch.ones(out, device=DEVICE)
    normed = frame_norm(z, ones, ones, 1e-6, silu=False)
    del TAKEN[z]
    close(normed, frame_norm(z, ones, ones, 1e-6, silu=False))


@needs_triton
def test_moments_are_of_these_frames_only() -> None:
    from inlay.kernels.norm_triton import TAKEN
    from inlay.kernels.taps_triton import Taps, convolve

    y = torch.randn(1, 16, 4, 4, device=DEVICE).contiguous(memory_format=torch.channels_last)
    taps = Taps.of(torch.randn(16, 16, 1, 1, 1, device=DEVICE), torch.zeros(16, device=DEVICE))
    before = len(TAKEN)
    assert convolve(y, taps, 1) not in TAKEN
    z = convolve(y, taps, 1, norm=True)
    assert z in TAKEN and z + 0 not in TAKEN
    del z
    assert len(TAKEN) == before


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whatever fits goes by the kernels, whatever the device and the dtype; of convolutions what was asked comes
    back."""
    asked: list[bool] = []

    def fits(y: Tensor, *convs: torch.nn.Module) -> bool:
        asked.append(layers.fit(convs))
        return asked[-1]

    monkeypatch.setattr(layers, "are_products", fits)
    monkeypatch.setattr(layers, "may_run", lambda name, *, tensors: name == "norms")
    return asked


@needs_triton
@pytest.mark.parametrize("attention_window", [None, 2])
def test_cosmos_by_products_is_cosmos(attention_window: int | None, products: list[bool]) -> None:
    torch.manual_seed(0)
    network = Cosmos(tiny_cosmos(), attention_window=attention_window).eval().requires_grad_(False).to(DEVICE)
    for name, weight in network.named_parameters():
        if name.endswith("bias"):
            weight.normal_()
    x = torch.rand(2, 3, 13, 48, 32, device=DEVICE) * 2 - 1
    with torch.inference_mode():
        z, got_x = network.encode(x), None
        parts, state = [], None
        for begin, end in ((0, 1), (1, 5), (5, 13)):
            part, state = network.encode_next(x[:, :, begin:end], state)
            parts.append(part)
        shown, state = [], None
        for begin, end in ((0, 1), (1, 2), (2, 4)):
            part, state = network.decode_next(z[:, :, begin:end], state)
            shown.append(part)
        got_x = network.decode(z)
        assert any(products) and not all(products), "of both kinds: channels that fit and channels that do not"
        layers.are_products = lambda y, *convs: False  # type: ignore[assignment]  # the fixture puts them back
        layers.may_run = lambda name, *, tensors: False  # type: ignore[assignment]
        close(z, network.encode(x))
        close(got_x, network.decode(z))
        if attention_window is None:
            close(torch.cat(parts, dim=2), z)
            close(torch.cat(shown, dim=2), got_x)


@needs_triton
def test_folded_weights_follow_the_weights(products: list[bool]) -> None:
    """What was folded of several layers is made anew where one of them was written to."""
    torch.manual_seed(0)
    both = layers.FactorisedConv(16, 16).to(DEVICE).requires_grad_(False)
    y = torch.randn(3, 16, 4, 4, device=DEVICE)
    before = both(y, 3, layers.Memory(None, keep=False))
    both[0].conv3d.bias += 1
    after = both(y, 3, layers.Memory(None, keep=False))
    assert all(products)
    layers.are_products = lambda y, *convs: False  # type: ignore[assignment]
    close(after, both(y, 3, layers.Memory(None, keep=False)))
    assert not torch.allclose(after, before)


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 2])
def test_on_a_gpu_it_is_the_plain_network(batch: int) -> None:
    """In bfloat16, chunk by chunk as well; sizes that no tile divides."""
    torch.manual_seed(0)
    network = Cosmos(CosmosConfig(width=32)).eval().requires_grad_(False).to("cuda", torch.bfloat16)
    x = torch.rand(batch, 3, 17, 72, 104, device="cuda").mul_(2).sub_(1).to(torch.bfloat16)

    def both() -> tuple[Tensor, Tensor]:
        first, state = network.encode_next(x[:, :, :9], None)
        second, _ = network.encode_next(x[:, :, 9:], state)
        z = network.encode(x)
        assert far(torch.cat([first, second], dim=2), z) < 0.02
        shown, state = network.decode_next(wanted_z[:, :, :2], None)
        more, _ = network.decode_next(wanted_z[:, :, 2:], state)
        y = network.decode(wanted_z)
        assert far(torch.cat([shown, more], dim=2), y) < 0.02
        return z, y

    def far(got: Tensor, wanted: Tensor) -> float:
        return float((got - wanted).float().norm() / wanted.float().norm())

    with torch.inference_mode():
        with at_level("0"):
            wanted_z = network.encode(x)
            wanted_y = network.decode(wanted_z)
        z, y = both()
        assert layers.are_products(torch.zeros(1, 16, 1, 1, device="cuda", dtype=torch.bfloat16), network.decoder.up[0])
    assert far(z, wanted_z) < 0.02 and far(y, wanted_y) < 0.02


def test_on_a_cpu_nothing_goes_by_the_kernel() -> None:
    conv = layers.SpaceConv(16, 16, 1)
    with torch.inference_mode():
        assert not layers.are_products(torch.zeros(1, 16, 2, 2), conv)
