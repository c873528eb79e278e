# SPDX-License-Identifier: Apache-2.0
"""PSNR of every fill at given keep rates, against full rate: 33 frames, 256x256 centre crop, interval 1.

    python benchmarks/fills.py --davis DIR --bench DIR --out benchmarks/fills_cpu_DATE.json

DAVIS means the val sequences that are in DIR. tau is bisected until the keep rate over the whole set is the one asked
for, as the paper does. PSNR is the mean over clips of the mean over frames, on 8-bit pixels. Rows already in --out are
not made again, so a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
POINTS = (("davis", 0.62), ("davis", 0.35), ("davis", 0.78), ("bench", 0.32))


def main() -> None:
    args = parse()
    tokenizer = Tokenizer.from_pretrained(args.weights or "mini", device=args.device)
    record = begun(args, tokenizer)
    folders = {"davis": args.davis, "bench": args.bench}
    for name in args.sets:
        clips = read_set(tokenizer, clips_of(name, folders[name])[:: args.every])
        for row in score(tokenizer, name, clips, fills=args.fills, done=record["rows"]):
            record["rows"].append(row)
            args.out.write_text(json.dumps(record, indent=1) + "\n")
            print(row, flush=True)


def begun(args: argparse.Namespace, tokenizer: Tokenizer) -> dict[str, Any]:
    """The record so far, if it is of these weights; else a new one."""
    weights = {"mini": tokenizer.spec.weight_hash, **{k: v.weight_hash for k, v in tokenizer.lits.items()}}
    if args.out.exists():
        found: dict[str, Any] = json.loads(args.out.read_text())
        if found["weights"] != weights or found["every"] != args.every:
            raise SystemExit(f"{args.out} is of other weights or clips; give another --out")
        return found
    return {
        "command": "python benchmarks/fills.py --davis DIR --bench DIR --out FILE",
        "machine": f"{platform.machine()}, torch {torch.__version__}, {args.device}",
        "weights": weights,
        "every": args.every,
        "convention": "PSNR: mean over clips of mean over frames, 8-bit; 33 frames, 256x256 centre crop, interval 1",
        "rows": [],
    }


def clips_of(name: str, folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.mp4"))
    return [p for p in paths if name != "davis" or p.stem.split("_")[-1] in VAL]


def read_set(tokenizer: Tokenizer, paths: list[Path]) -> list[tuple[Tensor, Tensor]]:
    """(pixels, latents) of each clip."""
    clips = [read_video(path, size="256x256", frames=33).pixels() for path in paths]
    return [(x, tokenizer.latents(x.to(tokenizer.device))) for x in clips]


@torch.inference_mode()
def score(
    tokenizer: Tokenizer, name: str, clips: list[tuple[Tensor, Tensor]], *, fills: list[str], done: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """The rows of a set that are not there yet."""
    decode = tokenizer.backbone.decode
    there = {(row["set"], row["keep_rate"], row["fill"]) for row in done}
    facts = {"set": name, "clips": len(clips)}
    if (name, 1.0, "full rate") not in there:
        yield {**facts, "keep_rate": 1.0, "fill": "full rate", "psnr": mean(clips, decode)}
    for target in [k for n, k in POINTS if n == name]:
        tau = tau_for([z for _, z in clips], target)
        masks = [keep_mask(z, MaskConfig(tau=tau)).keep for _, z in clips]
        for fill in [f for f in fills or (*FILLS, *tokenizer.lits) if (name, target, f) not in there]:
            run = tokenizer.find_fill(fill)
            extra = (tau,) if fill in tokenizer.lits else ()
            filled = [(x, run(z, keep, *extra)) for (x, z), keep in zip(clips, masks, strict=True)]
            yield {**facts, "keep_rate": target, "tau": tau, "fill": fill, "psnr": mean(filled, decode)}


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
    parser.add_argument("--weights", type=Path, help="a folder of mini and its LITs, instead of what ships")
    parser.add_argument("--sets", nargs="+", default=["davis", "bench"], choices=["davis", "bench"])
    parser.add_argument("--fills", nargs="+", default=[], help="only these")
    parser.add_argument("--every", type=int, default=1, help="every n-th clip only")
    return parser.parse_args()


if __name__ == "__main__":
    main()
