# SPDX-License-Identifier: Apache-2.0
"""Flicker: zero where the error stands still or travels with the motion, the size of the change where it does not."""

from __future__ import annotations

import math

import pytest
import torch

from inlay.errors import MissingError, UsageError
from inlay.measure import MeasureConfig, compare
from inlay.measure.flicker import consistent, warp
from inlay.video.frames import Video
from tests.conftest import still

pytest.importorskip("cv2")
NAMES = ("flicker", "flicker-static", "flicker-moving", "error-level")


def texture(height: int, width: int, seed: int = 0) -> torch.Tensor:
    coarse = torch.rand(1, 3, height // 6, width // 6, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")[0].permute(1, 2, 0).clamp(0, 1)


def pan(frames: int, step: int, *, add: torch.Tensor | None = None) -> Video:
    """A window that slides over a texture; `add` [H, W', 3] is an error painted on the texture itself."""
    wide = texture(96, 96 + frames * step) * 200 + 20
    wide = wide if add is None else wide + add
    views = [wide[:, t * step : t * step + 96] for t in range(frames)]
    return Video(frames=torch.stack(views).round().clamp(0, 255).to(torch.uint8))


def mid_grey(frames: int, height: int, width: int) -> Video:
    """A still with room for errors on both sides."""
    return Video(frames=still(frames, height, width).frames.clamp(20, 230))


def shifted(video: Video, by: list[int]) -> Video:
    levels = torch.tensor(by).view(-1, 1, 1, 1)
    return Video(frames=(video.frames.int() + levels).clamp(0, 255).to(torch.uint8))


def near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-5)


def test_a_constant_error_does_not_flicker() -> None:
    a = mid_grey(4, 64, 64)
    report = compare(a, shifted(a, [7] * 4), NAMES)
    assert report["flicker"] == pytest.approx(0, abs=1e-6)
    assert report["error-level"] == pytest.approx(7)


def test_an_error_that_comes_and_goes_flickers_by_its_size() -> None:
    a = mid_grey(4, 64, 64)
    report = compare(a, shifted(a, [0, 6, 0, 6]), NAMES)
    assert report["flicker"] == pytest.approx(6, abs=1e-4)
    assert report["flicker-static"] == pytest.approx(6, abs=1e-4)
    assert report["error-level"] == pytest.approx(3)


def test_a_still_has_no_moving_region() -> None:
    a = mid_grey(3, 64, 64)
    report = compare(a, shifted(a, [0, 6, 0]), NAMES)
    assert "flicker-moving" in report.missing and "flicker-static" in report.scores


def test_an_error_that_travels_with_the_motion_does_not_flicker() -> None:
    frames, step = 4, 3
    error = (texture(96, 96 + frames * step, seed=5) - 0.5) * 40
    a, b = pan(frames, step), pan(frames, step, add=error)
    followed = compare(a, b, NAMES)
    fixed = Video(frames=(a.frames + error[:, :96]).round().clamp(0, 255).to(torch.uint8))
    assert followed["flicker"] < 0.25 * compare(a, fixed, NAMES)["flicker"]
    unfollowed = (b.frames.float() - a.frames.float()).diff(dim=0).abs().mean()
    assert followed["flicker"] < 0.25 * float(unfollowed)
    assert followed.scores["flicker-moving"].value == pytest.approx(followed["flicker"], rel=0.2)


def test_the_threshold_moves_pixels_between_the_regions() -> None:
    a = pan(3, 2)
    b = shifted(a, [0, 5, 0])
    low = compare(a, b, NAMES, config=MeasureConfig(static_pixels=0.5))
    high = compare(a, b, NAMES, config=MeasureConfig(static_pixels=50))
    assert "flicker-moving" in low.scores and "flicker-moving" in high.missing
    assert "0.5 px" in low.scores["flicker-moving"].convention


def test_warp_follows_the_flow_and_half_pixels_are_means() -> None:
    x_CHW = torch.arange(12.0).view(1, 3, 4)
    flow = torch.zeros(2, 3, 4)
    assert near(warp(x_CHW, flow), x_CHW)
    flow[0] = 1
    assert near(warp(x_CHW, flow)[..., :3], x_CHW[..., 1:])
    flow[0] = 0.5
    assert near(warp(x_CHW, flow)[..., :3], x_CHW[..., :3] + 0.5)
    flow[0], flow[1] = 0, -1
    assert near(warp(x_CHW, flow)[:, 1:], x_CHW[:, :2])


def test_flows_that_do_not_meet_or_leave_the_frame_are_not_valid() -> None:
    back, forth = torch.zeros(2, 4, 6), torch.zeros(2, 4, 6)
    assert consistent(back, forth).all()
    back[0], forth[0] = 2, -2
    valid = consistent(back, forth)
    assert valid[:, :4].all() and not valid[:, 4:].any()
    assert not consistent(back, -forth).any()


def test_one_frame_has_no_flicker_but_has_an_error() -> None:
    a = mid_grey(1, 32, 32)
    report = compare(a, shifted(a, [3]), NAMES)
    assert set(report.missing) == {"flicker", "flicker-static", "flicker-moving"}
    assert report["error-level"] == pytest.approx(3)
    assert not any(math.isnan(s.value) for s in report.scores.values())


def test_unknown_flow_and_frames_too_small_are_named() -> None:
    a = mid_grey(2, 8, 8)
    assert "16x16" in compare(a, a, ["flicker"]).missing["flicker"]
    assert "did you mean 'dis'" in compare(a, a, ["flicker"], config=MeasureConfig(flow="diss")).missing["flicker"]


def test_raft_without_torchvision_says_so() -> None:
    try:
        import torchvision  # noqa: F401
    except ImportError:
        from inlay.measure.flicker import raft

        with pytest.raises(MissingError, match="torchvision"):
            raft("cpu")
    else:
        pytest.skip("torchvision is installed")


def test_error_classes_are_the_projects_own() -> None:
    from inlay.errors import pick
    from inlay.measure import FLOWS

    with pytest.raises(UsageError):
        pick("flow", "farneback", FLOWS)
