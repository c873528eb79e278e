# SPDX-License-Identifier: Apache-2.0
"""PSNR of the moving train and ball of the built-in clip, in a fixed box around the way of each.

    python benchmarks/boxes.py --out FILE [--weights FOLDER --profile FILE]

`all`: every cell kept; `default`: the default tau, filled by the LIT; both as files hold them. Frames are those in
which the box shows its object and the camera stands still.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import torch

from inlay.container import as_stored
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video
from inlay.video.synthetic import demo_clip


@dataclass(frozen=True, kw_only=True)
class Box:
    x: slice
    y: slice
    frames: slice


BOXES = {
    "train": Box(x=slice(0, 160), y=slice(134, 158), frames=slice(8, 40)),
    "ball": Box(x=slice(128, 212), y=slice(192, 238), frames=slice(30, 42)),
}


def main() -> None:
    args = parse()
    tokenizer = Tokenizer.from_pretrained("mini", weights=args.weights, profile=args.profile, device="cpu")
    clip = demo_clip()
    rows = {}
    for name, tau in (("all", 0.0), ("default", None)):
        tokens = tokenizer.encode(clip, tau=tau)
        decoded = tokenizer.decode(as_stored(tokens))
        rows[name] = {
            "keep_rate": round(tokens.keep_rate, 4),
            **{box: round(psnr_in(clip, decoded, where), 3) for box, where in BOXES.items()},
        }
        print(name, rows[name], flush=True)
    record = {
        "what": "PSNR of the built-in clip inside two boxes, mean over frames",
        "command": "python benchmarks/boxes.py --out FILE",
        "weights": tokenizer.spec.weight_hash,
        "boxes": {name: str(box) for name, box in BOXES.items()},
        "rows": rows,
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")


def psnr_in(clip: Video, decoded: Video, box: Box) -> float:
    a, b = (v.frames[box.frames, box.y, box.x].double() for v in (clip, decoded))
    mse = (a - b).square().flatten(1).mean(1).clamp_min(1e-9)
    return float((10 * torch.log10(255**2 / mse)).mean())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weights", type=Path, help="in place of those that ship")
    parser.add_argument("--profile", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
