# SPDX-License-Identifier: Apache-2.0
"""The table of metrics: name -> gauge, unit, direction, convention."""

from __future__ import annotations

from inlay.measure.base import Gauge, Metric
from inlay.measure.flicker import FlickerGauge
from inlay.measure.fvd import FeatureGauge, summarise_fvd, summarise_kvd
from inlay.measure.lpips import LpipsGauge
from inlay.measure.pixel import ErrorGauge, GaussianSsimGauge, SsimGauge
from inlay.measure.vmaf import VmafGauge

_MEAN = "; mean over videos with a 95 % bootstrap interval"
_WINDOW = "data range 255, where the window fits, mean over channels and frames"
_FLICKER = (
    "mean |e(t+1) - warped e(t)| on the 0..255 scale; backward warp by {flow} flow of the reference, bilinear; pixels "
    "kept where |back + forth|^2 <= 0.01 (|back|^2 + |forth|^2) + 0.5 and the source lies inside; "
)
_I3D = (
    "I3D Kinetics-400, 400 logits; one feature for each video from its first {fvd_frames} frames; short side to 224 "
    "(bilinear, no antialias), centre crop, [-1, 1]; "
)
_CONVENTIONS = {
    "psnr": "mean of per-frame PSNR, uint8 0..255, RGB; identical frames count as 100 dB",
    "psnr-video": "TokenBench: 20 log10(255 / (sqrt(MSE over all frames and pixels) + 1.19e-7)), uint8 0..255, RGB; "
    "identical videos give 186.6 dB",
    "ssim": f"skimage default: 7x7 uniform window, sample covariance, {_WINDOW}",
    "ssim-gaussian": f"11x11 Gaussian window, sigma 1.5, population covariance, {_WINDOW}",
    "lpips": "LPIPS v0.1, VGG16, float32, input [-1, 1] at native size, mean over frames",
    "fvd": f"StyleGAN-V: {_I3D}squared Frechet distance of Gaussians, float64; biased upwards for few videos",
    "kvd": f"{_I3D}squared MMD, kernel (x.y/400 + 1)^3, unbiased for paired sets (may fall below 0); "
    "95 % interval from 1000 half-samples of the videos",
    "flicker": f"{_FLICKER}all valid pixels",
    "flicker-static": f"{_FLICKER}only where the flow is below {{static_pixels}} px a frame",
    "flicker-moving": f"{_FLICKER}only where the flow is {{static_pixels}} px a frame or more",
    "error-level": "mean |other - reference| over all pixels, channels and frames, 0..255",
    "vmaf": "libvmaf in ffmpeg, its default model, frames as yuv420p at native size, mean over frames",
}
_GAUGES: dict[str, tuple[type[Gauge], str, str]] = {  # gauge, unit, direction
    "psnr": (ErrorGauge, "dB", "higher"),
    "psnr-video": (ErrorGauge, "dB", "higher"),
    "ssim": (SsimGauge, "", "higher"),
    "ssim-gaussian": (GaussianSsimGauge, "", "higher"),
    "lpips": (LpipsGauge, "", "lower"),
    "fvd": (FeatureGauge, "", "lower"),
    "kvd": (FeatureGauge, "", "lower"),
    "flicker": (FlickerGauge, "/255", "lower"),
    "flicker-static": (FlickerGauge, "/255", "lower"),
    "flicker-moving": (FlickerGauge, "/255", "lower"),
    "error-level": (ErrorGauge, "/255", "lower"),
    "vmaf": (VmafGauge, "", "higher"),
}
_OF_SETS = {"fvd": summarise_fvd, "kvd": summarise_kvd}  # what compares sets of videos, by their features


def _metric(name: str) -> Metric:
    gauge, unit, better = _GAUGES[name]
    if name not in _OF_SETS:
        return Metric(gauge=gauge, key=name, unit=unit, better=better, convention=_CONVENTIONS[name] + _MEAN)
    return Metric(
        gauge=gauge, key="features", unit=unit, better=better, convention=_CONVENTIONS[name], per_video=False,
        summarise=_OF_SETS[name],
    )  # fmt: skip


METRICS: dict[str, Metric] = {name: _metric(name) for name in _GAUGES}
PAIR_METRICS = tuple(name for name in METRICS if name not in (*_OF_SETS, "vmaf"))  # vmaf: on request
SET_METRICS = (*PAIR_METRICS, *_OF_SETS)
