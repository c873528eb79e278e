# SPDX-License-Identifier: Apache-2.0
"""The paper's LIT on grids larger than it was trained on: in one piece, and in windows of several sizes.

python benchmarks/paper_grid.py --davis DIR --out benchmarks/paper_grid_cpu_DATE.json [--tau 0.826] [--every 4]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # runs from a checkout, nothing installed

from fills import clips_of, means, read_set

from inlay.fill import hold
from inlay.masking import MaskConfig, keep_mask
from inlay.tokenizer import Tokenizer
from inlay.types import Video

SIDES = (16, 20, 24, 28, 32)  # cells; 32 is the whole of 256x256 in one piece


def scored(tokenizer: Tokenizer, filled: list[tuple[Video, Tensor]]) -> float:
    return means(filled, tokenizer.backbone.decode, ("psnr",))["psnr"]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--davis", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tau", type=float, default=0.826, help="keeps 62 % of DAVIS")
    parser.add_argument("--every", type=int, default=4, help="every n-th clip of the val sequences")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_pretrained("mini", device="cpu")
    lit = tokenizer.lits["lit-paper"]
    learnt = lit.config
    clips = read_set(tokenizer, clips_of("davis", args.davis)[:: args.every])
    masks = [keep_mask(z, MaskConfig(tau=args.tau)).keep for _, z in clips]
    psnr = {"hold": scored(tokenizer, [(v, hold(z, keep)) for (v, z), keep in zip(clips, masks, strict=True)])}
    for side in SIDES:
        lit.config = replace(learnt, grid=side)
        filled = [(v, lit(z, keep, args.tau)) for (v, z), keep in zip(clips, masks, strict=True)]
        psnr[f"windows of {side}"] = scored(tokenizer, filled)
    record = {
        "command": f"python benchmarks/paper_grid.py --davis DIR --out FILE --tau {args.tau} --every {args.every}",
        "machine": f"{platform.machine()}, torch {torch.__version__}, cpu",
        "weights": {"mini": tokenizer.spec.weight_hash, "lit-paper": lit.weight_hash},
        "learnt_on": learnt.grid,
        "clips": len(clips),
        "keep_rate": math.fsum(keep.float().mean().item() for keep in masks) / len(masks),
        "psnr": psnr,
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
