# SPDX-License-Identifier: Apache-2.0
"""Keep rates of static clips with noise of known strength, with and without the noise floor, as one JSON record.

python benchmarks/noise_floor.py --tau 0.3 > benchmarks/noise_floor_cpu.json
"""

from __future__ import annotations

import argparse
import json

import torch

from inlay import __version__
from inlay.codec import EncodeConfig, Encoder
from inlay.container.tokens import Tokens
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video
from inlay.video.synthetic import demo_clip

SIGMAS = (0, 1, 2, 4, 8, 12)  # of Gaussian noise, in grey levels of 255
BRIGHTNESS = {"day": 1.0, "dark": 0.25}


def noisy(picture_HWC: torch.Tensor, frames: int, sigma: float) -> Video:
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(frames, *picture_HWC.shape, generator=generator) * sigma
    return Video(frames=(picture_HWC + noise).round().clamp(0, 255).to(torch.uint8))


def keep_rate(tokenizer: Tokenizer, video: Video, tau: float, *, noise: bool) -> float:
    """Of the cells after slot 0, which is kept whole in any case."""
    config = EncodeConfig(noise=noise, key_seconds=0)
    tokens = Tokens.join(list(Encoder(tokenizer, config, tau=tau).encode([video])))
    return float(tokens.mask[1:].float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tau", type=float, default=0.3)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--frames", type=int, default=49)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_pretrained("mini", device="cpu", fill="hold")
    rows = []
    for scene, brightness in BRIGHTNESS.items():
        picture = demo_clip(1, args.size, args.size).frames[0].float() * brightness
        for sigma in SIGMAS:
            video = noisy(picture, args.frames, sigma)
            plain, calm = (keep_rate(tokenizer, video, args.tau, noise=noise) for noise in (False, True))
            rows.append({"scene": scene, "sigma": sigma, "keep_rate": plain, "keep_rate_with_noise_floor": calm})
    record = {
        "what": "static picture, Gaussian noise; share of cells kept after slot 0",
        "inlay": __version__,
        "backbone": tokenizer.spec.name,
        "weight_hash": tokenizer.spec.weight_hash,
        **vars(args),
        "rows": rows,
    }
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
