# SPDX-License-Identifier: Apache-2.0
"""PSNR and SSIM against independent libraries; the meter; counts of tokens."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from inlay.container.tokens import Tokens
from inlay.errors import ConfigError, ShapeError, UsageError
from inlay.measure import METRICS, MeasureConfig, Meter, bits_per_pixel, compare, count_tokens, measure
from inlay.types import Recipe, Span, VideoInfo
from inlay.video.frames import Video
from tests.conftest import moving_square, still

LIGHT = ("psnr", "psnr-video", "ssim", "ssim-gaussian", "error-level")


def noisy(video: Video, strength: float = 12.0, seed: int = 1) -> Video:
    noise = torch.randn(video.frames.shape, generator=torch.Generator().manual_seed(seed)) * strength
    return Video(frames=(video.frames + noise).round().clamp(0, 255).to(torch.uint8), fps=video.fps)


@pytest.fixture(scope="module", params=[(5, 48, 64), (3, 33, 47)], ids=["even", "odd"])
def pair(request: pytest.FixtureRequest) -> tuple[Video, Video]:
    a = moving_square(*request.param)
    return a, noisy(a)


def each_frame(pair: tuple[Video, Video]) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(pair[0].frames.numpy(), pair[1].frames.numpy(), strict=True))


def test_psnr_is_the_mean_of_skimage_over_frames(pair: tuple[Video, Video]) -> None:
    metrics = pytest.importorskip("skimage.metrics")
    want = np.mean([metrics.peak_signal_noise_ratio(a, b, data_range=255) for a, b in each_frame(pair)])
    assert compare(*pair, ["psnr"])["psnr"] == pytest.approx(want, abs=1e-9)


def test_psnr_video_is_tokenbenchs_formula(pair: tuple[Video, Video]) -> None:
    a, b = (v.frames.numpy().astype(np.float64) for v in pair)
    want = 20 * np.log10(255.0 / (np.sqrt(((a - b) ** 2).mean()) + np.finfo(np.float32).eps))
    assert compare(*pair, ["psnr-video"])["psnr-video"] == pytest.approx(want, abs=1e-9)


def test_the_two_psnrs_differ_where_frames_differ_in_quality() -> None:
    a = moving_square(2, 32, 32)
    b = Video(frames=torch.cat([noisy(a, 2.0).frames[:1], noisy(a, 40.0).frames[1:]]))
    report = compare(a, b, ["psnr", "psnr-video"])
    assert report["psnr"] > report["psnr-video"] + 3


def test_ssim_is_skimage(pair: tuple[Video, Video]) -> None:
    ssim = pytest.importorskip("skimage.metrics").structural_similarity
    want = np.mean([ssim(a, b, data_range=255, channel_axis=-1) for a, b in each_frame(pair)])
    assert compare(*pair, ["ssim"])["ssim"] == pytest.approx(want, abs=1e-9)


def test_ssim_gaussian_is_skimage_with_gaussian_weights(pair: tuple[Video, Video]) -> None:
    ssim = pytest.importorskip("skimage.metrics").structural_similarity
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 255}
    want = np.mean([ssim(a, b, channel_axis=-1, **options) for a, b in each_frame(pair)])
    assert compare(*pair, ["ssim-gaussian"])["ssim-gaussian"] == pytest.approx(want, abs=1e-9)


def test_ssim_gaussian_is_torchmetrics_without_its_border(pair: tuple[Video, Video]) -> None:
    """torchmetrics averages over a reflected border too; where the window fits, the maps are the same."""
    functional = pytest.importorskip("torchmetrics.functional.image")
    a, b = (v.frames.permute(0, 3, 1, 2).double() for v in pair)
    _, map_TCHW = functional.structural_similarity_index_measure(b, a, data_range=255.0, return_full_image=True)
    want = float(map_TCHW[..., 5:-5, 5:-5].mean())
    assert compare(*pair, ["ssim-gaussian"])["ssim-gaussian"] == pytest.approx(want, abs=1e-6)


def test_error_level_is_the_mean_absolute_error(pair: tuple[Video, Video]) -> None:
    want = (pair[0].frames.double() - pair[1].frames.double()).abs().mean()
    assert compare(*pair, ["error-level"])["error-level"] == pytest.approx(float(want))


def test_identical_videos_reach_the_stated_ends() -> None:
    a = moving_square(3, 32, 32)
    report = compare(a, a, LIGHT)
    assert report["psnr"] == 100.0
    assert report["psnr-video"] == pytest.approx(186.6, abs=0.1)
    assert report["ssim"] == report["ssim-gaussian"] == 1.0
    assert report["error-level"] == 0.0


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_video_in_pieces_scores_as_the_whole(cut: int) -> None:
    pytest.importorskip("cv2")
    a = moving_square(5, 48, 64)
    b = noisy(a)
    names = (*LIGHT, "flicker", "flicker-static", "flicker-moving")
    whole = compare(a, b, names)
    pieces = compare([a[:cut], a[cut:]], [b[:2], b[2:4], b[4:]], names)
    for name in names:
        assert pieces[name] == pytest.approx(whole[name], rel=1e-12), name


def test_videos_of_different_size_or_length_are_refused_with_both_named() -> None:
    a = moving_square(4, 32, 48)
    with pytest.raises(ShapeError, match="48x32 and 32x32"):
        compare(a, moving_square(4, 32, 32), LIGHT)
    with pytest.raises(ShapeError, match="4 and 3 frames"):
        compare(a, a[:3], LIGHT)
    with pytest.raises(ShapeError, match="at least 4 and 3 frames"):
        compare(iter([a[:2], a[2:]]), iter([a[:3]]), LIGHT)


def test_a_frame_too_small_for_one_metric_leaves_the_others() -> None:
    a = moving_square(3, 8, 8)
    report = compare(a, noisy(a), LIGHT)
    assert "11x11" in report.missing["ssim-gaussian"] and "8x8" in report.missing["ssim-gaussian"]
    assert set(report.scores) == set(LIGHT) - {"ssim-gaussian"}
    with pytest.raises(UsageError, match="not measured"):
        report["ssim-gaussian"]


def test_a_video_one_metric_cannot_read_is_left_out_of_its_mean_and_noted() -> None:
    small, large = moving_square(2, 8, 8), moving_square(2, 32, 32)
    report = measure(
        [(small, noisy(small)), (large, noisy(large))], ["psnr", "ssim-gaussian"], names=["small", "large"]
    )
    assert report.scores["psnr"].videos == 2
    assert report.scores["ssim-gaussian"].videos == 1
    assert math.isnan(report.per_video["ssim-gaussian"][0])
    assert any("ssim-gaussian leaves out small" in note for note in report.notes)


def test_a_set_has_a_mean_an_interval_and_a_value_for_each_video() -> None:
    a = moving_square(3, 32, 32)
    report = measure([(a, noisy(a, s)) for s in (4, 8, 16, 32)], ["psnr"], names=list("abcd"))
    score, row = report.scores["psnr"], report.per_video["psnr"]
    assert report.videos == ("a", "b", "c", "d")
    assert list(row) == sorted(row, reverse=True)
    assert score.value == pytest.approx(sum(row) / 4)
    assert score.low is not None and score.high is not None
    assert min(row) <= score.low < score.value < score.high <= max(row)
    assert report.scores == measure([(a, noisy(a, s)) for s in (4, 8, 16, 32)], ["psnr"]).scores


def test_a_report_is_plain_json_and_names_every_convention() -> None:
    a = still(2, 32, 32)
    report = measure([(a, noisy(a)), (a, a)], LIGHT, names=["x", "y"])
    record = json.loads(json.dumps(report.record(), allow_nan=False))
    assert record["videos"] == ["x", "y"]
    assert all(record["scores"][name]["convention"] for name in LIGHT)
    assert "psnr" in str(report) and "dB" in str(report)


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_states_its_convention_with_its_settings(name: str) -> None:
    metric = METRICS[name]
    text = metric.convention.format(device="cpu", flow="raft", static_pixels=0.75, fvd_frames=17, seed=0)
    assert "{" not in text and metric.better in ("higher", "lower")
    assert ("raft" in text) == name.startswith("flicker")
    assert ("17 frames" in text) == (name in ("fvd", "kvd"))


def test_the_meter_refuses_what_makes_no_sense() -> None:
    a = moving_square(2, 32, 32)
    with pytest.raises(UsageError, match="did you mean 'psnr'"):
        Meter(["psnrr"])
    with pytest.raises(UsageError, match="no metric"):
        Meter([])
    for wrong in ("clip.mp4", Path("clip.mp4"), a.frames, a.frames.numpy(), None):
        with pytest.raises(UsageError, match=rf"inlay.read_video reads a file\); got {type(wrong).__name__}"):
            compare(a, wrong)  # type: ignore[arg-type]
    assert set(compare(a, a, "psnr").scores) == {"psnr"}
    meter = Meter(["psnr"])
    with pytest.raises(UsageError, match="nothing to report"):
        meter.report()
    with pytest.raises(UsageError, match="no frames"):
        meter.end_video()
    meter.update(a, a)
    with pytest.raises(ShapeError, match="one size"):
        meter.update(moving_square(2, 16, 16), moving_square(2, 16, 16))
    assert meter.end_video("a") == {"psnr": 100.0}


@pytest.mark.parametrize("wrong", [{"static_pixels": 0}, {"fvd_frames": 8}, {"device": "gpu"}])
def test_settings_out_of_range_are_refused(wrong: dict) -> None:
    with pytest.raises(ConfigError):
        MeasureConfig(**wrong)


@pytest.mark.gpu
def test_the_gpu_gives_the_numbers_of_the_cpu() -> None:
    a = moving_square(4, 64, 64)
    names = (*LIGHT, "lpips")
    cpu, gpu = (compare(a, noisy(a), names, config=MeasureConfig(device=d)) for d in ("cpu", "cuda"))
    for name in cpu.scores:
        assert gpu[name] == pytest.approx(cpu[name], abs=1e-4), name


def tokens_of(kept: int, cells: tuple[int, int, int] = (9, 32, 32), side: int = 256) -> Tokens:
    mask = torch.zeros(cells, dtype=torch.bool)
    mask.view(-1)[:kept] = True
    info = VideoInfo(width=side, height=side, fps=Fraction(24), frames=33)
    recipe = Recipe(backbone="mini", weight_hash="0", tau=0.3)
    return Tokens(values=torch.zeros(kept, 16), mask=mask, info=info, recipe=recipe, spans=(Span(slots=9, frames=33),))


def test_bits_per_pixel_of_the_papers_point() -> None:
    counts = count_tokens(tokens_of(2949))
    assert counts.tokens == 2949 and counts.cells == 9216
    assert counts.keep_rate == pytest.approx(0.32, abs=1e-4)
    assert counts.bits_per_pixel == pytest.approx(0.353, abs=5e-4)


def test_bits_per_pixel_of_a_file_count_every_byte() -> None:
    tokens = tokens_of(100)
    assert count_tokens(tokens, size_bytes=33 * 256 * 32).bits_per_pixel == 1.0
    assert bits_per_pixel(33 * 256 * 32, tokens.info) == 1.0
    with pytest.raises(UsageError, match="negative"):
        count_tokens(tokens, size_bytes=-1)
