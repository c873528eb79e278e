# SPDX-License-Identifier: Apache-2.0
"""The pixel kernels against the plain functions: the same bits, on a GPU or in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from inlay.video.frames import pixel_levels, plain_frames, plain_pixels, to_frames, to_pixels
from tests.triton_here import DEVICE, needs_triton

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def there_is(dtype: torch.dtype) -> None:
    if DEVICE == "cpu" and dtype is torch.bfloat16:
        pytest.skip("the interpreter has no bfloat16 of its own")


def close_calls() -> Tensor:
    """Pixels at, just below and just above every limit between two grey levels, and beyond the ends."""
    limits = (torch.arange(-2, 259, dtype=torch.float64) + 0.5) / 127.5 - 1
    at = limits.float()
    steps = [at]
    for _ in range(3):
        steps = [steps[0].nextafter(at.new_tensor(-9.0)), *steps, steps[-1].nextafter(at.new_tensor(9.0))]
    return torch.cat([*steps, torch.linspace(-1.5, 1.5, 4096), at.new_tensor([-1e9, 1e9, torch.inf, -torch.inf])])


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 1, 1, 1), (1, 9, 32, 48)])
def test_pixels_are_the_plain_ones(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    from inlay.kernels.pixels_triton import look_up

    there_is(dtype)
    frames = torch.randint(0, 256, (*shape, 3), dtype=torch.uint8, device=DEVICE)
    x, want = look_up(frames, pixel_levels(frames.device, dtype)), plain_pixels(frames, dtype)
    assert x.dtype == dtype and torch.equal(x, want)
    sized = [n > 1 for n in x.shape]
    assert [s for s, n in zip(x.stride(), sized, strict=True) if n] == [
        s for s, n in zip(want.stride(), sized, strict=True) if n
    ], "a network must meet the same layout"


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
def test_frames_are_the_plain_ones_at_every_limit(dtype: torch.dtype) -> None:
    from inlay.kernels.pixels_triton import frames_of

    there_is(dtype)
    x = close_calls().to(DEVICE, dtype)
    x = x[: len(x) // 9 * 9].view(1, 3, 1, 3, -1)
    assert torch.equal(frames_of(x), plain_frames(x)) and len(frames_of(x).unique()) == 256


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda x: x,
    "cropped": lambda x: x[:, :, :, :5, :7],
    "later frames": lambda x: x[:, :, 3:],
    "channels last": lambda x: x.permute(0, 2, 3, 4, 1).contiguous().permute(0, 4, 1, 2, 3),
    "turned": lambda x: x.transpose(3, 4),
    "repeated": lambda x: x[:, :1].expand(-1, 3, -1, -1, -1),
}


@needs_triton
@pytest.mark.parametrize("view", VIEWS)
def test_frames_of_any_layout(view: str) -> None:
    from inlay.kernels.pixels_triton import frames_of

    x = VIEWS[view]((torch.rand(2, 3, 4, 6, 9) * 3 - 1.5).to(DEVICE))
    assert frames_of(x).is_contiguous() and torch.equal(frames_of(x), plain_frames(x))


@needs_triton
def test_rows_longer_than_a_program() -> None:
    from inlay.kernels.pixels_triton import ROW, frames_of

    x = (torch.rand(1, 3, 1, 2, ROW) * 2 - 1).to(DEVICE)
    assert torch.equal(frames_of(x), plain_frames(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_levels_come_back(dtype: torch.dtype) -> None:
    levels = torch.arange(256, dtype=torch.uint8, device=DEVICE).view(1, 1, 16, 16, 1).expand(-1, -1, -1, -1, 3)
    x = to_pixels(levels.contiguous(), dtype)
    assert torch.equal(x, to_pixels(levels, dtype)), "with gaps or without"
    assert dtype is torch.bfloat16 or torch.equal(to_frames(x), levels)
    assert torch.equal(to_frames(x), plain_frames(x))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_they_are_taken_on_a_gpu_and_in_a_graph(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    from inlay.kernels import Replay, pixels_triton

    calls: list[str] = []
    for name in ("look_up", "frames_of"):
        kernel = getattr(pixels_triton, name)
        monkeypatch.setattr(pixels_triton, name, lambda *a, k=kernel, n=name: calls.append(n) or k(*a))
    frames = torch.randint(0, 256, (2, 5, 40, 72, 3), dtype=torch.uint8, device="cuda")
    there_and_back = Replay(lambda frames: to_frames(to_pixels(frames, dtype)[..., :33, :65]))
    with torch.inference_mode():
        answers = [there_and_back(frames) for _ in range(3)]
    assert {"look_up", "frames_of"} == set(calls) and not there_and_back.refused
    want = plain_frames(plain_pixels(frames, dtype)[..., :33, :65])
    assert all(torch.equal(answer, want) for answer in answers)
    calls.clear()
    monkeypatch.setenv("INLAY_FAST", "0")
    assert torch.equal(to_frames(to_pixels(frames, dtype)), plain_frames(plain_pixels(frames, dtype))) and not calls


@pytest.mark.gpu
def test_every_bfloat16_on_a_gpu() -> None:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = bits[~bits.isnan()].cuda()
    x = x[: len(x) // 3 * 3].view(1, 3, 1, 1, -1)
    assert torch.equal(to_frames(x), plain_frames(x))
