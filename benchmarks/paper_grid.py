# SPDX-License-Identifier: Apache-2.0
"""The paper's LIT on grids larger than it was trained on: in one piece, and in windows of several sizes.

python benchmarks/paper_grid.py --davis DIR --out benchmarks/paper_grid_cpu_DATE.json [--taus 0.422 0.826] [--every 4]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # runs from a checkout, nothing installed

from fills import clips_of, means, read_set

from inlay.fill import Lit, hold
from inlay.masking import MaskConfig, keep_mask
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video

SIDES = (20, 24, 28, 32)  # cells; 32 is the whole of 256x256 in one piece


@torch.inference_mode()
def main() -> None:
    args = parse()
    tokenizer = Tokenizer.from_pretrained("mini", device="cpu")
    lit = tokenizer.filler.lits["lit-paper"]
    clips = read_set(tokenizer, clips_of("davis", args.davis)[:: args.every])
    taus = " ".join(map(str, args.taus))
    record = {
        "command": f"python benchmarks/paper_grid.py --davis DIR --out FILE --taus {taus} --every {args.every}",
        "machine": f"{platform.machine()}, torch {torch.__version__}, cpu",
        "weights": {"mini": tokenizer.spec.weight_hash, "lit-paper": lit.weight_hash},
        "learnt_on": lit.config.grid,
        "clips": len(clips),
        "rows": [row(tokenizer, lit, clips, tau) for tau in args.taus],
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


def row(tokenizer: Tokenizer, lit: Lit, clips: list[tuple[Video, Tensor]], tau: float) -> dict[str, Any]:
    """PSNR of hold, of each size of window, and of the one it learnt on with kept cells left alone."""
    learnt = lit.config
    masked = [(v, z, keep_mask(z, MaskConfig(tau=tau))) for v, z in clips]

    def psnr(fill: Callable[[Tensor, Tensor], Tensor]) -> float:
        return means([(v, fill(z, keep)) for v, z, keep in masked], tokenizer.backbone.decode, ("psnr",))["psnr"]

    def windowed(z: Tensor, keep: Tensor) -> Tensor:
        return lit(z, keep, tau)

    found = {"hold": psnr(hold)}
    for side in SIDES:
        lit.config = replace(learnt, grid=side)
        found[f"windows of {side}"] = psnr(windowed)
    lit.config = learnt
    left_alone = psnr(lambda z, keep: torch.where(keep[:, None], z, windowed(z, keep)))
    found[f"windows of {learnt.grid}, kept cells left alone"] = left_alone
    rate = math.fsum(keep.float().mean().item() for *_, keep in masked) / len(masked)
    return {"tau": tau, "keep_rate": rate, "psnr": found}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--davis", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--taus", type=float, nargs="+", default=[0.422, 0.826], help="default: 78 and 62 %% of DAVIS")
    parser.add_argument("--every", type=int, default=4, help="every n-th clip of the val sequences")
    return parser.parse_args()


if __name__ == "__main__":
    main()
