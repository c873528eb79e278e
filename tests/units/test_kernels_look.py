# SPDX-License-Identifier: Apache-2.0
"""The kernels that look for cuts against the plain functions, on a GPU or in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from inlay.codec.cuts import (
    COARSE,
    GREY,
    THUMB,
    Seen,
    coarse_slots,
    look_at_frames,
    look_at_slots,
    plain_changes,
    plain_jumps,
    thumbnails,
)
from tests.triton_here import DEVICE, needs_triton

RELATIVE = 1e-5  # the plain function adds blocks in float32, the kernel in float64


def random_frames(*shape: int, device: str = DEVICE) -> Tensor:
    return torch.randint(0, 256, (*shape, 3), dtype=torch.uint8).to(device)


def assert_jumps(frames_BFHWC: Tensor, seen: Tensor | None) -> None:
    from inlay.kernels.look_triton import jumps

    (numbers, last), (want, want_last) = (
        jumps(frames_BFHWC, seen, side=THUMB, steps=GREY),
        plain_jumps(frames_BFHWC, seen),
    )
    assert numbers.dtype == want.dtype and last.dtype == want_last.dtype
    assert torch.equal(last, want_last) and torch.equal(numbers, want)


def assert_changes(z_BCTHW: Tensor, seen: Tensor | None) -> None:
    from inlay.kernels.look_triton import changes

    assert_close(changes(z_BCTHW, seen, side=COARSE), plain_changes(z_BCTHW, seen))


def assert_close(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> None:
    """Each number to RELATIVE of itself, so nothing stays nothing; means of blocks to RELATIVE of the largest."""
    (numbers, slot), (want, want_slot) = found, wanted
    assert numbers.dtype == slot.dtype == torch.float64
    torch.testing.assert_close(numbers, want, rtol=RELATIVE, atol=0)
    torch.testing.assert_close(slot, want_slot, rtol=0, atol=RELATIVE * float(want_slot.abs().max()))


@needs_triton
@pytest.mark.parametrize("started", [False, True], ids=["first", "later"])
@pytest.mark.parametrize(
    "shape",
    [(1, 2, 33, 32), (2, 2, 7, 20), (1, 2, 33, 5), (1, 1, 1, 1), (1, 2, 2, 2000)],
    ids=str,
)
def test_jumps_are_the_plain_ones(shape: tuple[int, ...], started: bool) -> None:
    assert_jumps(random_frames(*shape), thumbnails(random_frames(*shape))[:, -1:] if started else None)


@needs_triton
def test_the_largest_and_the_smallest_jump() -> None:
    from inlay.kernels.look_triton import jumps

    frames = torch.full((1, 3, 5, 19, 3), 255, dtype=torch.uint8, device=DEVICE)
    frames[:, 1] = 0
    numbers, last = jumps(frames, None, side=THUMB, steps=GREY)
    assert numbers.tolist() == [[0, 2, 2]] and last.unique().tolist() == [255 * GREY]


@needs_triton
@pytest.mark.parametrize("changed", [127, 128, 129])
def test_half_of_the_places_decide_and_the_lower_one_of_two(changed: int) -> None:
    frames = torch.zeros(1, 2, 256, 3, dtype=torch.uint8)
    frames[0, 1, torch.randperm(256)[:changed]] = torch.arange(1, changed + 1, dtype=torch.uint8)[:, None]
    frames = frames.view(1, 2, 16, 16, 3).to(DEVICE)
    assert_jumps(frames, None)
    assert bool(look_at_frames(frames, None)[0][0, 1]) == (changed > 128)


FRAMES: dict[str, Callable[[Tensor], Tensor]] = {
    "cropped": lambda x: x[:, :1, 3:, 2:38],
    "every second": lambda x: x[:, ::2],
    "frames for clips": lambda x: x.transpose(0, 1)[:2],
    "colours first": lambda x: x[:, :2].movedim(4, 2).contiguous().movedim(2, 4),
    "turned": lambda x: x[:1].transpose(2, 3),
    "other colours": lambda x: torch.cat([x, x], dim=4)[:1, :2, ..., 1:4],
}


@needs_triton
@pytest.mark.parametrize("view", FRAMES)
def test_frames_of_any_layout(view: str) -> None:
    assert_jumps(FRAMES[view](random_frames(2, 3, 9, 40)), None)


@needs_triton
@pytest.mark.parametrize("started", [False, True], ids=["first", "later"])
@pytest.mark.parametrize(
    "shape", [(1, 16, 3, 8, 8), (2, 16, 2, 6, 9), (1, 3, 2, 2, 5), (2, 1, 1, 1, 1), (1, 80, 2, 4, 7)]
)
def test_changes_are_the_plain_ones(shape: tuple[int, ...], started: bool) -> None:
    z, before = torch.randn(shape, device=DEVICE), torch.randn(shape, device=DEVICE)
    assert_changes(z, coarse_slots(before)[:, -1:] if started else None)


@needs_triton
def test_blocks_larger_than_what_is_read_together() -> None:
    assert_changes(torch.randn(1, 16, 2, 50, 61, device=DEVICE), None)


@needs_triton
def test_what_stands_still_changes_by_nothing() -> None:
    from inlay.kernels.look_triton import changes

    z = torch.randn(1, 16, 1, 9, 10, device=DEVICE)
    first, last = changes(z, None, side=COARSE)
    then, _ = changes(z.expand(-1, -1, 2, -1, -1), last, side=COARSE)
    assert first[0, 0] == 0 and then[0].tolist() == [0, 0, first[0, 1].item(), first[0, 1].item()] and first[0, 1] > 0


SLOTS: dict[str, Callable[[Tensor], Tensor]] = {
    "cropped": lambda z: z[..., 1:9, 2:8],
    "later": lambda z: z[:, :, 1:],
    "channels last": lambda z: z.permute(0, 2, 3, 4, 1).contiguous().permute(0, 4, 1, 2, 3),
    "turned": lambda z: z.transpose(3, 4),
    "repeated": lambda z: z[:, :1].expand(-1, 8, -1, -1, -1),
}


@needs_triton
@pytest.mark.parametrize("view", SLOTS)
def test_slots_of_any_layout(view: str) -> None:
    assert_changes(SLOTS[view](torch.randn(2, 8, 3, 9, 11, device=DEVICE)), None)


@needs_triton
def test_chunks_go_on_from_one_another() -> None:
    from inlay.kernels.look_triton import changes, jumps

    z, frames = torch.randn(2, 8, 3, 8, 8, device=DEVICE), random_frames(2, 3, 7, 9)
    with torch.inference_mode():
        whole, numbers = changes(z, None, side=COARSE)[0], jumps(frames, None, side=THUMB, steps=GREY)[0]
        _, slot = changes(z[:, :, :2], None, side=COARSE)
        _, thumb = jumps(frames[:, :2], None, side=THUMB, steps=GREY)
        again = changes(z[:, :, 2:], slot, side=COARSE)[0], jumps(frames[:, 2:], thumb, side=THUMB, steps=GREY)[0]
        turned = changes(z[1:, :, 2:], slot.expand(2, 2, -1, -1, -1)[1:, :1], side=COARSE)[0]
    assert torch.equal(again[0], whole[:, [2, 5]]) and torch.equal(again[1], numbers[:, 2:])
    assert torch.equal(turned, again[0][1:])


def test_what_the_kernels_are_not_for_takes_the_plain_way() -> None:
    """Frames of no picture, latents in another precision; and everything on a CPU."""
    frames = random_frames(1, 2, 20, 20)
    assert torch.equal(look_at_frames(frames.int(), None)[0], plain_jumps(frames, None)[0])
    z = torch.randn(1, 8, 2, 8, 8, device=DEVICE).double()
    assert torch.equal(look_at_slots(z, None)[0], plain_changes(z, None)[0])
    with pytest.raises(RuntimeError):
        look_at_frames(torch.zeros(1, 2, 20, 20, 4, dtype=torch.uint8, device=DEVICE), None)


def look(z_BCTHW: Tensor, frames_BFHWC: Tensor, seen: Seen | None) -> tuple[Tensor, Tensor, Seen]:
    (numbers, slot), (others, thumb) = look_at_slots(z_BCTHW, seen), look_at_frames(frames_BFHWC, seen)
    return numbers, others, [slot, thumb]


@pytest.mark.gpu
@pytest.mark.parametrize("device", range(max(1, torch.cuda.device_count())))
@pytest.mark.parametrize("shape", [(1, 33, 256, 256), (8, 33, 256, 256), (2, 9, 270, 482)], ids=str)
def test_they_are_taken_on_a_gpu_and_in_a_graph(
    shape: tuple[int, ...], device: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inlay.kernels import Replay, look_triton

    calls: list[str] = []
    for name in ("jumps", "changes"):
        kernel = getattr(look_triton, name)
        monkeypatch.setattr(look_triton, name, lambda *a, k=kernel, n=name, **kw: calls.append(n) or k(*a, **kw))
    place = f"cuda:{device}"
    clips, frames, height, width = shape
    pictures = [random_frames(*shape, device=place) for _ in range(2)]
    slots = [torch.randn(clips, 16, 1 + frames // 4, height // 8, width // 8, device=place) for _ in range(2)]
    replayed = Replay(look)
    with torch.inference_mode(), torch.cuda.device(device):
        for _ in range(4):
            seen: Seen | None = None
            last: list[Tensor | None] = [None, None]
            for z, x in zip(slots, pictures, strict=True):
                numbers, others, seen = replayed(z, x, seen)
                (want, slot), (want_others, thumb) = plain_changes(z, last[0]), plain_jumps(x, last[1])
                torch.testing.assert_close(others, want_others, rtol=1e-15, atol=0)  # torch divides by multiplying here
                assert torch.equal(seen[1], thumb)
                assert_close((numbers, seen[0]), (want, slot))
                last = [slot, thumb]
    assert set(calls) == {"jumps", "changes"} and not replayed.refused
    assert any(recording is not None for recording in replayed.recordings.values())
    calls.clear()
    monkeypatch.setenv("INLAY_FAST", "0")
    look(slots[0], pictures[0], None)
    assert not calls


@pytest.mark.gpu
def test_they_follow_their_tensors_to_another_device() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    frames, z = random_frames(1, 5, 64, 64, device="cuda:1"), torch.randn(1, 16, 2, 8, 8, device="cuda:1")
    with torch.cuda.device(0):
        assert torch.equal(look_at_frames(frames, None)[0], plain_jumps(frames, None)[0])
        assert_close(look_at_slots(z, None), plain_changes(z, None))


@pytest.mark.gpu
def test_cuts_are_found_where_the_cpu_finds_them() -> None:
    """The numbers of a GPU are those of the CPU: of frames to the bit."""
    frames, z = random_frames(2, 9, 100, 130, device="cpu"), torch.randn(2, 16, 3, 13, 17)
    assert torch.equal(look_at_frames(frames.cuda(), None)[0].cpu(), look_at_frames(frames, None)[0])
    numbers, slot = look_at_slots(z.cuda(), None)
    assert_close((numbers.cpu(), slot.cpu()), look_at_slots(z, None))
