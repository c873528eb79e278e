# SPDX-License-Identifier: Apache-2.0
"""The paper's own numbers, to stand beside ours: its backbone is Cosmos-CV4x8x8 (and OmniTokenizer), ours is not."""

from __future__ import annotations

from typing import NamedTuple


class Quality(NamedTuple):
    """Keep rate, PSNR, SSIM, LPIPS, FVD, as printed."""

    keep: float
    psnr: float
    ssim: float
    lpips: float
    fvd: float


MAIN: dict[str, dict[str, Quality]] = {
    "bench": {  # the paper's TokenBench
        "Cosmos-CV4x8x8, full rate": Quality(1.0, 35.38, 0.948, 0.078, 8.77),
        "OmniTokenizer-VAE, full rate": Quality(1.0, 27.05, 0.892, 0.128, 57.83),
        "ElasticTok-CV (MSE 0.003)": Quality(0.40, 30.87, 0.900, 0.154, 68.75),
        "InfoTok (discrete)": Quality(0.32, 27.50, 0.817, 0.234, 189.16),
        "ours, Cosmos, tau 0.3": Quality(0.32, 30.31, 0.894, 0.141, 81.61),
        "ours, OmniTokenizer, tau 1.2": Quality(0.29, 23.88, 0.790, 0.245, 168.82),
    },
    "davis": {
        "Cosmos-CV4x8x8, full rate": Quality(1.0, 31.57, 0.918, 0.109, 61.33),
        "OmniTokenizer-VAE, full rate": Quality(1.0, 24.49, 0.837, 0.194, 244.81),
        "ElasticTok-CV (MSE 0.003)": Quality(0.82, 29.02, 0.878, 0.172, 200.97),
        "InfoTok (discrete)": Quality(0.62, 25.80, 0.787, 0.244, 406.33),
        "ours, Cosmos, tau 0.3": Quality(0.62, 28.27, 0.856, 0.187, 312.66),
        "ours, OmniTokenizer, tau 1.2": Quality(0.52, 22.50, 0.736, 0.293, 468.15),
    },
}


class Rate(NamedTuple):
    """Bits a pixel of 33 frames, PSNR, LPIPS."""

    bits: float
    psnr: float
    lpips: float


_TOKEN_BITS = 16 * 9 * 32 * 32 / (33 * 256 * 256)  # bits a pixel of 16 bits for every 4x8x8 cell

TOKENISERS: dict[str, dict[str, Rate]] = {  # discrete ones, as the InfoTok paper has them, its rate in units of 16 bits
    "davis": {
        "Cosmos-DV4x8x8": Rate(1.00 * _TOKEN_BITS, 25.92, 0.208),
        "InfoTok, 0.81": Rate(0.81 * _TOKEN_BITS, 25.79, 0.223),
        "InfoTok, 0.56": Rate(0.56 * _TOKEN_BITS, 24.52, 0.277),
    },
    "bench": {  # TokenBench
        "Cosmos-DV4x8x8": Rate(1.00 * _TOKEN_BITS, 30.01, 0.138),
        "InfoTok, 0.81": Rate(0.81 * _TOKEN_BITS, 30.08, 0.145),
        "InfoTok, 0.56": Rate(0.56 * _TOKEN_BITS, 29.27, 0.176),
    },
}

DAVIS_RATE = 0.62  # at which the paper's ablations and flicker tables stand

COST = {  # extra evaluations as stated, seconds a clip on an A10G, speed-up
    "ElasticTok-CV (binary search)": ("log2 N", 35.97, 1.0),
    "InfoTok (discrete)": ("1", 2.84, 13.0),
    "ours": ("0", 1.15, 31.0),
}

ABLATION: dict[str, dict[str, Quality]] = {
    "criterion": {
        "pixel-l1": Quality(0.62, 25.59, 0.775, 0.261, 629.25),
        "latent-l2": Quality(0.62, 27.42, 0.827, 0.200, 477.90),
        "latent-cosine": Quality(0.62, 26.14, 0.814, 0.209, 509.28),
        "latent-l1": Quality(0.62, 27.54, 0.829, 0.198, 483.00),
    },
    "reference": {
        "previous": Quality(0.62, 27.62, 0.846, 0.194, 335.79),
        "last-kept": Quality(0.62, 28.27, 0.856, 0.187, 312.66),
    },
    "fill": {
        "hold": Quality(0.62, 27.54, 0.829, 0.198, 483.00),
        "linear": Quality(0.62, 26.30, 0.814, 0.215, 579.86),
        "lit": Quality(0.62, 28.27, 0.856, 0.187, 312.66),
    },
}

STREAMING = {
    "per-clip": Quality(0.62, 28.27, 0.856, 0.187, 312.66),
    "dual-cache": Quality(0.57, 27.92, 0.845, 0.200, 379.03),
}

FLICKER = {  # region: backbone, with masking
    "static": (1.190, 2.156),
    "moving": (3.920, 5.357),
    "all": (3.038, 4.280),
}
FLICKER_OBJECTIVES = {  # objective of the fill: flicker everywhere, static, moving, error level, PSNR
    "frame-wise": (4.280, 2.156, 5.357, 6.986, 28.27),
    "temporal": (4.249, 2.121, None, 6.845, 28.11),
    "temporal-static": (4.251, 2.123, None, None, None),
}
FLICKER_PAIRED = {  # comparison: mean difference, low, high, p
    "frame-wise against temporal, all": (0.030, 0.013, 0.048, 0.002),
    "frame-wise against temporal, static": (0.035, 0.001, 0.069, 0.011),
    "frame-wise against temporal, error level": (0.141, 0.029, 0.252, 0.020),
    "temporal against temporal-latent, all": (-0.013, -0.026, 0.001, 0.070),
    "temporal against temporal-static, static": (-0.002, -0.004, 0.001, 0.179),
}

SWEEP_FACTORS = (1 / 3, 1 / 2, 2 / 3, 5 / 6, 1.0, 7 / 6, 4 / 3, 5 / 3)  # tau 0.1 ... 0.5 over the paper's 0.3
FILL_SWEEP_RATES = (0.35, 0.48, 0.62, 0.78)

LATENT_SCALES = {  # per-channel std mean, score mean, score std, CoV, tau
    "Cosmos-CV4x8x8": (0.492, 0.362, 0.206, 0.569, 0.3),
    "OmniTokenizer-VAE": (1.191, 1.18, 0.469, 0.397, 1.2),
}
