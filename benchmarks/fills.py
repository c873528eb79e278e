# SPDX-License-Identifier: Apache-2.0
"""PSNR of every fill at given keep rates, against full rate: 33 frames, 256x256 centre crop, interval 1.

    python benchmarks/fills.py --davis DIR --bench DIR --out benchmarks/fills_cpu_DATE.json

DAVIS means the val sequences that are in DIR. tau is bisected until the keep rate over the whole set is the one asked
for, as the paper does. PSNR is the mean over clips of the mean over frames, on 8-bit pixels.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

import torch
from torch import Tensor

from inlay.fill import FILLS
from inlay.masking import MaskConfig, keep_mask
from inlay.tokenizer import Tokenizer
from inlay.train.validate import psnr
from inlay.video import read_video

VAL = [
    "bike-packing",
    "blackswan",
    "bmx-trees",
    "breakdance",
    "camel",
    "car-roundabout",
    "car-shadow",
    "cows",
    "dance-twirl",
    "dog",
    "dogs-jump",
    "drift-chicane",
    "drift-straight",
    "goat",
    "gold-fish",
    "horsejump-high",
    "india",
    "judo",
    "kite-surf",
    "lab-coat",
    "libby",
    "loading",
    "mbike-trick",
    "motocross-jump",
    "paragliding-launch",
    "parkour",
    "pigs",
    "scooter-black",
    "shooting",
    "soapbox",
]
POINTS = (("davis", 0.78), ("davis", 0.62), ("davis", 0.35), ("bench", 0.32))


def main() -> None:
    args = parse()
    tokenizer = Tokenizer.from_pretrained("mini", device=args.device)
    folders = {"davis": args.davis, "bench": args.bench}
    sets = {name: read_set(tokenizer, clips_of(name, folder)[:: args.every]) for name, folder in folders.items()}
    rows = [row for name, clips in sets.items() for row in score(tokenizer, name, clips)]
    record = {
        "command": "python benchmarks/fills.py --davis DIR --bench DIR --out FILE",
        "machine": f"{platform.machine()}, torch {torch.__version__}, {args.device}",
        "weights": {"mini": tokenizer.spec.weight_hash, **{k: v.weight_hash for k, v in tokenizer.lits.items()}},
        "convention": "PSNR: mean over clips of mean over frames, 8-bit; 33 frames, 256x256 centre crop, interval 1",
        "rows": rows,
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")


def clips_of(name: str, folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.mp4"))
    return [p for p in paths if name != "davis" or p.stem.split("_")[-1] in VAL]


def read_set(tokenizer: Tokenizer, paths: list[Path]) -> list[tuple[Tensor, Tensor]]:
    """(pixels, latents) of each clip."""
    clips = [read_video(path, size="256x256", frames=33).pixels() for path in paths]
    return [(x, tokenizer.latents(x.to(tokenizer.device))) for x in clips]


@torch.inference_mode()
def score(tokenizer: Tokenizer, name: str, clips: list[tuple[Tensor, Tensor]]) -> list[dict[str, object]]:
    decode = tokenizer.backbone.decode
    rows = [{"set": name, "clips": len(clips), "keep_rate": 1.0, "fill": "full rate", "psnr": mean(clips, decode)}]
    print(rows[-1], flush=True)
    for target in [k for n, k in POINTS if n == name]:
        tau = tau_for([z for _, z in clips], target)
        masks = [keep_mask(z, MaskConfig(tau=tau)).keep for _, z in clips]
        for fill in (*FILLS, *tokenizer.lits):
            run = tokenizer.find_fill(fill)
            extra = (tau,) if fill in tokenizer.lits else ()
            filled = [(x, run(z, keep, *extra)) for (x, z), keep in zip(clips, masks, strict=True)]
            rows.append(
                {
                    "set": name,
                    "clips": len(clips),
                    "keep_rate": target,
                    "tau": tau,
                    "fill": fill,
                    "psnr": mean(filled, decode),
                }
            )
            print(rows[-1], flush=True)
    return rows


def mean(clips: list[tuple[Tensor, Tensor]], decode) -> float:  # type: ignore[no-untyped-def]
    return sum(psnr(x, decode(z).cpu()) for x, z in clips) / len(clips)


def tau_for(latents: list[Tensor], keep_rate: float) -> float:
    low, high = 0.0, 16.0
    for _ in range(24):
        tau = (low + high) / 2
        kept = sum(keep_mask(z, MaskConfig(tau=tau)).keep_rate for z in latents) / len(latents)
        low, high = (tau, high) if kept > keep_rate else (low, tau)
    return high


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--davis", type=Path, required=True)
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--every", type=int, default=1, help="every n-th clip only")
    return parser.parse_args()


if __name__ == "__main__":
    main()
