# SPDX-License-Identifier: Apache-2.0
"""LPIPS, I3D, FVD, KVD and VMAF against independent implementations."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from inlay.errors import UsageError
from inlay.measure import MeasureConfig, compare, frechet_distance, kernel_distance, kernel_interval, measure
from inlay.measure.base import is_remembered, recall, remember
from inlay.measure.fvd import I3d, crop_224, load_i3d
from inlay.measure.lpips import Lpips, load_lpips, to_unit
from inlay.research.studies.records import read_pair
from inlay.video.frames import Video
from tests.conftest import moving_square


@pytest.fixture(scope="module")
def weights(shared: Path) -> Path:
    folder = shared / "weights"
    if not (folder / "lpips_torch.py").is_file():
        pytest.skip(f"no reference networks at {folder}")
    return folder


@pytest.fixture
def from_shared(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_WEIGHTS", str(weights))


def reference(folder: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blurred(video: Video, radius: int) -> Video:
    x = video.frames.permute(0, 3, 1, 2).float()
    x = torch.nn.functional.avg_pool2d(x, 2 * radius + 1, 1, radius, count_include_pad=False)
    return Video(frames=x.permute(0, 2, 3, 1).round().to(torch.uint8))


def test_lpips_is_the_reference_network(weights: Path, from_shared: None) -> None:
    path = weights / "lpips_vgg16_fp16w.safetensors"
    a = moving_square(3, 64, 80)
    b = blurred(a, 2)
    with torch.no_grad():
        want_T = reference(weights, "lpips_torch").LPIPS(str(path))(
            *(to_unit(v.frames, torch.device("cpu")) for v in (a, b))
        )
    assert float(want_T.mean()) > 0.05
    assert compare(a, b, ["lpips"])["lpips"] == pytest.approx(float(want_T.mean()), abs=1e-5)


def test_lpips_is_zero_for_the_same_frames_and_lets_gradients_through(weights: Path, from_shared: None) -> None:
    a = moving_square(1, 32, 32)
    assert compare(a, a, ["lpips"])["lpips"] == 0
    net = load_lpips(weights / "lpips_vgg16_fp16w.safetensors")
    x = torch.rand(1, 3, 32, 32, requires_grad=True)
    net(x, torch.zeros_like(x)).sum().backward()
    assert x.grad is not None and bool(x.grad.abs().sum() > 0)
    assert not any(p.requires_grad for p in net.parameters())


def test_lpips_in_small_batches_is_lpips_in_one(
    weights: Path, from_shared: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = moving_square(5, 32, 32)
    whole = compare(a, blurred(a, 1), ["lpips"])["lpips"]
    monkeypatch.setattr("inlay.measure.lpips.PIXELS_AT_ONCE", 2 * 32 * 32)
    assert compare(a, blurred(a, 1), ["lpips"])["lpips"] == pytest.approx(whole, abs=1e-6)


@pytest.mark.slow
def test_i3d_is_the_reference_network(weights: Path) -> None:
    path = weights / "i3d_kinetics400_fp16w.safetensors"
    x_BCTHW = crop_224(moving_square(9, 64, 96).frames)[None]
    with torch.no_grad():
        want, _ = reference(weights, "i3d_torch").load(str(path))(x_BCTHW)
        got = load_i3d(path)(x_BCTHW)
    assert got.shape == (1, 400)
    assert torch.allclose(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_fvd_is_zero_for_equal_sets_and_grows_with_blur(from_shared: None) -> None:
    clips = [moving_square(9, 64, 64, speed=s, seed=s) for s in (1, 3)]
    results = [measure([(c, blurred(c, r) if r else c) for c in clips], ["fvd", "kvd"]) for r in (0, 1, 4)]
    equal, mild, strong = (r["fvd"] for r in results)
    assert equal == pytest.approx(0, abs=1e-6)
    assert equal < mild < strong
    assert results[0]["kvd"] == pytest.approx(0, abs=1e-6) and results[2]["kvd"] > 0


def test_one_video_or_too_few_frames_have_no_fvd_but_a_reason(from_shared: None) -> None:
    a = moving_square(8, 32, 32)
    report = compare(a, a, ["psnr", "fvd", "kvd"])
    assert "at least 9 frames" in report.missing["fvd"] and "psnr" in report.scores
    with pytest.raises(UsageError, match="at least 2 videos"):
        frechet_distance(torch.zeros(1, 400), torch.zeros(1, 400))


@pytest.mark.parametrize("size", [(256, 256), (240, 426), (100, 64), (224, 224)])
def test_the_crop_is_the_centre_of_the_short_side_at_224(size: tuple[int, int]) -> None:
    frames = torch.full((2, *size, 3), 255, dtype=torch.uint8)
    x_CTHW = crop_224(frames)
    assert x_CTHW.shape == (3, 2, 224, 224) and torch.allclose(x_CTHW, torch.ones(()), atol=1e-5)


def test_the_crop_leaves_224_pixels_as_they_are() -> None:
    frames = torch.randint(0, 256, (2, 224, 300, 3), dtype=torch.uint8)
    want = frames[:, :, 38:262].permute(3, 0, 1, 2).float() / 127.5 - 1
    assert torch.allclose(crop_224(frames), want, atol=1e-6)


def test_only_the_first_frames_of_a_long_video_enter_its_feature(from_shared: None) -> None:
    from inlay.measure.fvd import FeatureGauge

    gauge = FeatureGauge(MeasureConfig(fvd_frames=9))
    for n in (4, 4, 4, 4):
        gauge.update(*[moving_square(n, 32, 32).frames] * 2)
    assert gauge.frames == 9 == sum(p.shape[1] for p in gauge.reference)


@pytest.mark.parametrize("n", [500, 60, 5])
def test_frechet_distance_is_torchmetrics(n: int) -> None:
    fid = pytest.importorskip("torchmetrics.image.fid")
    mix = torch.randn(50, 50, dtype=torch.float64)
    a = torch.randn(n, 50, dtype=torch.float64) @ mix
    b = torch.randn(n + 3, 50, dtype=torch.float64) @ mix * 1.3 + 0.5
    want = fid._compute_fid(a.mean(0), a.T.cov(), b.mean(0), b.T.cov())
    assert frechet_distance(a, b) == pytest.approx(float(want), rel=1e-6)


def test_frechet_distance_of_known_gaussians() -> None:
    a = torch.randn(40, 6, dtype=torch.float64)
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(a, a + 2) == pytest.approx(6 * 4)
    centred = a - a.mean(0)
    assert frechet_distance(centred, 3 * centred) == pytest.approx(4 * float(a.var(0).sum()))


def test_kernel_distance_is_torchmetrics() -> None:
    kid = pytest.importorskip("torchmetrics.image.kid")
    a, b = torch.randn(30, 20, dtype=torch.float64), torch.randn(30, 20, dtype=torch.float64) + 0.3
    assert kernel_distance(a, b) == pytest.approx(float(kid.poly_mmd(a, b)), rel=1e-9)


def test_the_paired_kernel_distance_is_unbiased_where_the_pairs_depend_on_each_other() -> None:
    """Equal sets give 0; the usual estimate counts each clip's likeness to itself and falls far below."""
    a = torch.randn(20, 30, dtype=torch.float64) * 3
    assert kernel_distance(a, a, paired=True) == pytest.approx(0, abs=1e-9)
    assert kernel_distance(a, a) < -1
    with pytest.raises(UsageError, match="as many"):
        kernel_distance(a, a[:5], paired=True)


def test_the_interval_of_kvd_holds_the_value_and_shrinks_with_more_clips() -> None:
    a = torch.randn(200, 30, dtype=torch.float64)
    b = a + 0.4 + 0.1 * torch.randn(200, 30, dtype=torch.float64)
    widths = []
    for n in (20, 200):
        low, high = kernel_interval(a[:n], b[:n])
        assert low < kernel_distance(a[:n], b[:n], paired=True) < high
        assert (low, high) == kernel_interval(a[:n], b[:n])
        widths.append(high - low)
    assert widths[1] < widths[0] / 2
    with pytest.raises(UsageError, match="at least 4"):
        kernel_interval(a[:3], b[:3])


def test_vmaf_is_high_for_the_same_and_lower_for_the_blurred() -> None:
    pytest.importorskip("imageio_ffmpeg")
    a = moving_square(6, 64, 64)
    same, soft = compare(a, a, ["vmaf"])["vmaf"], compare([a[:4], a[4:]], blurred(a, 3), ["vmaf"])["vmaf"]
    assert 90 < same <= 100 and soft < same - 20 and math.isfinite(soft)


def test_vmaf_without_its_program_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    a = moving_square(2, 32, 32)
    report = compare(a, a, ["psnr", "vmaf"])
    assert "# the extra measure" in report.missing["vmaf"] and "psnr" in report.scores


def test_what_is_read_of_a_remembered_reference_is_read_once_and_the_same(
    from_shared: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = moving_square(9, 64, 64)
    others = [blurred(a, r) for r in (1, 2)]
    metrics = ["lpips", "flicker", "flicker-static"]
    plain = [read_pair(a, b, metrics, MeasureConfig()) for b in others]
    seen: list[int] = []
    look = Lpips.features
    monkeypatch.setattr(Lpips, "features", lambda net, x: seen.append(len(x)) or look(net, x))
    remember(a.frames)
    again = [read_pair(a, b, metrics, MeasureConfig()) for b in others]
    assert again == plain
    assert sum(seen) == 3 * len(a), "the reference once, each other once"
    copy = Video(frames=a.frames.clone())
    assert not is_remembered(copy.frames) and read_pair(copy, others[0], metrics, MeasureConfig()) == plain[0]


@pytest.mark.slow
def test_features_of_a_remembered_reference_are_computed_once(
    from_shared: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = moving_square(9, 32, 32)
    plain = read_pair(a, blurred(a, 1), ["fvd"], MeasureConfig())
    calls: list[int] = []
    look = I3d.forward
    monkeypatch.setattr(I3d, "forward", lambda net, x: calls.append(1) or look(net, x))
    remember(a.frames)
    assert all(read_pair(a, blurred(a, 1), ["fvd"], MeasureConfig()) == plain for _ in range(2))
    assert len(calls) == 3


def test_what_was_remembered_goes_with_its_tensor() -> None:
    x = remember(torch.zeros(2, 4))
    calls: list[int] = []
    assert recall(x, "sum", lambda: calls.append(1) or len(calls)) == recall(x, "sum", lambda: 5) == 1
    y = torch.zeros(2, 4)
    assert [recall(y, "sum", lambda: calls.append(1) or len(calls)) for _ in range(2)] == [2, 3]
    assert recall(remember(x), "sum", lambda: 5) == 1, "marked twice is marked once"
    del x
    assert recall(remember(torch.zeros(2, 4)), "sum", lambda: 7) == 7
