# SPDX-License-Identifier: Apache-2.0
"""The table of metrics: name -> gauge, unit, direction, convention."""

from __future__ import annotations

from inlay.measure.base import Metric
from inlay.measure.flicker import FLICKER
from inlay.measure.fvd import FEATURES, summarise_fvd, summarise_kvd
from inlay.measure.lpips import LPIPS
from inlay.measure.pixel import ERROR
from inlay.measure.ssim import SSIM, SSIM_GAUSSIAN
from inlay.measure.vmaf import VMAF

_MEAN = "mean over videos with a 95 % bootstrap interval"
_FLICKER = (
    "mean |e(t+1) - warped e(t)| on the 0..255 scale; backward warp by {flow} flow of the reference, bilinear; pixels "
    "kept where |back + forth|^2 <= 0.01 (|back|^2 + |forth|^2) + 0.5 and the source lies inside; "
)
_I3D = (
    "I3D Kinetics-400, 400 logits; one feature for each video from its first {fvd_frames} frames; short side to 224 "
    "(bilinear, no antialias), centre crop, [-1, 1]; "
)

METRICS: dict[str, Metric] = {
    "psnr": Metric(
        gauge=ERROR,
        key="psnr",
        unit="dB",
        better="higher",
        convention=f"mean of per-frame PSNR, uint8 0..255, RGB; identical frames count as 100 dB; {_MEAN}",
    ),
    "psnr-video": Metric(
        gauge=ERROR,
        key="psnr-video",
        unit="dB",
        better="higher",
        convention="TokenBench: 20 log10(255 / (sqrt(MSE over all frames and pixels) + 1.19e-7)), uint8 0..255, RGB; "
        f"identical videos give 186.6 dB; {_MEAN}",
    ),
    "ssim": Metric(
        gauge=SSIM,
        key="ssim",
        unit="",
        better="higher",
        convention="skimage default: 7x7 uniform window, sample covariance, data range 255, where the window fits, "
        f"mean over channels and frames; {_MEAN}",
    ),
    "ssim-gaussian": Metric(
        gauge=SSIM_GAUSSIAN,
        key="ssim-gaussian",
        unit="",
        better="higher",
        convention="11x11 Gaussian window, sigma 1.5, population covariance, data range 255, where the window fits, "
        f"mean over channels and frames; {_MEAN}",
    ),
    "lpips": Metric(
        gauge=LPIPS,
        key="lpips",
        unit="",
        better="lower",
        convention=f"LPIPS v0.1, VGG16, float32, input [-1, 1] at native size, mean over frames; {_MEAN}",
    ),
    "fvd": Metric(
        gauge=FEATURES,
        key="features",
        unit="",
        better="lower",
        per_video=False,
        summarise=summarise_fvd,
        convention=f"StyleGAN-V: {_I3D}squared Frechet distance of Gaussians, float64; biased upwards for few videos",
    ),
    "kvd": Metric(
        gauge=FEATURES,
        key="features",
        unit="",
        better="lower",
        per_video=False,
        summarise=summarise_kvd,
        convention=f"{_I3D}squared MMD, kernel (x.y/400 + 1)^3, unbiased for paired sets (may fall below 0); "
        "95 % interval from 1000 half-samples of the videos",
    ),
    "flicker": Metric(
        gauge=FLICKER,
        key="flicker",
        unit="/255",
        better="lower",
        convention=f"{_FLICKER}all valid pixels; {_MEAN}",
    ),
    "flicker-static": Metric(
        gauge=FLICKER,
        key="flicker-static",
        unit="/255",
        better="lower",
        convention=f"{_FLICKER}only where the flow is below {{static_pixels}} px a frame; {_MEAN}",
    ),
    "flicker-moving": Metric(
        gauge=FLICKER,
        key="flicker-moving",
        unit="/255",
        better="lower",
        convention=f"{_FLICKER}only where the flow is {{static_pixels}} px a frame or more; {_MEAN}",
    ),
    "error-level": Metric(
        gauge=ERROR,
        key="error-level",
        unit="/255",
        better="lower",
        convention=f"mean |other - reference| over all pixels, channels and frames, 0..255; {_MEAN}",
    ),
    "vmaf": Metric(
        gauge=VMAF,
        key="vmaf",
        unit="",
        better="higher",
        convention="libvmaf in ffmpeg, its default model, frames as yuv420p at native size, mean over frames; " + _MEAN,
    ),
}

PAIR_METRICS = tuple(
    name for name, metric in METRICS.items() if metric.per_video and name != "vmaf"
)  # vmaf: on request
SET_METRICS = (*PAIR_METRICS, "fvd", "kvd")
