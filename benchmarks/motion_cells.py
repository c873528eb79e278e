# SPDX-License-Identifier: Apache-2.0
"""What the coder would gain from a motion vector, in whole cells, for each block of cells: bits a number, all kept.

    python benchmarks/motion_cells.py VIDEO... --out benchmarks/motion_cells_cpu_DATE.json

Whole numbers of steps are guessed by least squares over each clip, channel by channel: from nothing, from neighbours in
the slot, from these and seven cells of the slot before (what the coder has), and from the shifted slot before as well.
Bits are those of a wide bell curve, not of the coder; a vector is counted with one bit for each of its possible halves.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # runs from a checkout, nothing installed

from inlay.codec import encode_clip
from inlay.masking.steps import channel_steps
from inlay.research.studies.datasets import ClipSpec, read_any
from inlay.tokenizer import Tokenizer

REACH = 10  # cells
SPACE = ((0, -1), (-1, 0), (-1, -1), (-1, 1))
BEFORE = ((0, 0), (0, -1), (-1, 0), (0, 1), (1, 0), (-1, 1), (-1, -1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("videos", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=float, nargs="+", default=[2.0, 4.0])
    parser.add_argument("--block", type=int, default=4)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    tokenizer = Tokenizer.from_pretrained("mini", device="cpu")
    assert tokenizer.profile is not None
    rows = []
    for path in args.videos:
        z_CTHW = encode_clip(tokenizer, read_any(path, ClipSpec(size=256, frames=33))).z_BCTHW[0].float()
        for step in args.steps:
            steps = torch.tensor(channel_steps(tokenizer.profile.gains, step)).view(-1, 1, 1, 1)
            rows.append({"clip": path.stem, "step": step} | measured((z_CTHW / steps).round(), args.block))
            print(rows[-1], flush=True)
    command = f"python benchmarks/motion_cells.py VIDEO... --block {args.block}"
    record = {"command": command, "weights": tokenizer.spec.weight_hash, "rows": rows}
    args.out.write_text(json.dumps(record, indent=1) + "\n")


def measured(q_CTHW: Tensor, block: int) -> dict[str, float]:
    now, before = q_CTHW[:, 1:], q_CTHW[:, :-1]
    near = [shifted(now, *place) for place in SPACE]
    known = near + [shifted(before, *place) for place in BEFORE]
    moved, vectors = followed(now, before, block)
    bits = {name: cost(left(now, given)).mean().item() for name, given in
            (("nothing", []), ("space", near), ("space and time", known), ("motion", [*known, moved]))}  # fmt: skip
    bits["vectors"] = vectors
    bits["saved"] = 1 - (bits["motion"] + vectors) / bits["space and time"]
    return {name: round(value, 4) for name, value in bits.items()}


def shifted(x_CTHW: Tensor, dy: int, dx: int) -> Tensor:
    """What lies (dy, dx) away; zeros beyond the edge."""
    H, W = x_CTHW.shape[2:]
    padded = F.pad(x_CTHW, (REACH, REACH, REACH, REACH))
    return padded[..., REACH + dy : REACH + dy + H, REACH + dx : REACH + dx + W]


def followed(now: Tensor, before: Tensor, block: int) -> tuple[Tensor, float]:
    """The slot before, each block shifted to where it fits best, and the bits of its vectors for each number."""
    C, T, H, W = now.shape
    shape = T, H // block, W // block
    least = torch.full(shape, math.inf)
    best = torch.zeros_like(now)
    still = torch.ones(shape, dtype=torch.bool)
    vector = 2 * math.log2(2 * REACH + 1)
    for dy, dx in sorted(((y, x) for y in range(-REACH, REACH + 1) for x in range(-REACH, REACH + 1)), key=any):
        there = shifted(before, dy, dx)
        spent = cost(now - 0.8 * there).sum(0).view(T, H // block, block, W // block, block).sum((2, 4))
        better = spent + vector * any((dy, dx)) < least
        least = torch.where(better, spent + vector * any((dy, dx)), least)
        still = torch.where(better, torch.tensor(not any((dy, dx))), still)
        best = torch.where(better.repeat_interleave(block, 1).repeat_interleave(block, 2), there, best)
    return best, (vector * (~still).float().mean().item() + 1) / (block * block * C)


def left(now: Tensor, given: list[Tensor]) -> Tensor:
    """What least squares over the clip, channel by channel, does not guess."""
    if not given:
        return now
    x_CNF, y_CN1 = torch.stack([g.flatten(1) for g in given], dim=2), now.flatten(1)[..., None]
    gram = x_CNF.mT @ x_CNF
    gram += (1e-3 * gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] + 1e-6) * torch.eye(len(given))
    return now - (x_CNF @ torch.linalg.solve(gram, x_CNF.mT @ y_CN1))[..., 0].view_as(now).round()


def cost(residual: Tensor) -> Tensor:
    return 0.5 * (1 + 6 * residual.square()).log2()


if __name__ == "__main__":
    main()
