# SPDX-License-Identifier: Apache-2.0
"""PSNR by a frame's place in its slot: are the four frames of a token equally good?

    python benchmarks/frame_places.py --davis FOLDER --bench FOLDER --out FILE

Whole sets (of DAVIS the val sequences), 33 frames of 256x256, every cell kept and the default tau, not rounded. Slot 0
is a single frame; the others are places 1 to 4. `pulse` is the best place less the worst, in dB.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from inlay.origin import commit
from inlay.research.studies.datasets import open_data
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video
from inlay.video.listing import DAVIS_VAL

PLACES = 4


def main() -> None:
    args = parse()
    tokenizer = Tokenizer.from_pretrained("mini", device="cpu")
    rows = {}
    for name, folder in (("davis", args.davis), ("bench", args.bench)):
        if folder is None:
            continue
        data = open_data(folder, name=name).only(DAVIS_VAL, "val").first(args.limit)
        for setting, tau in (("all", 0.0), ("default", None)):
            means = torch.stack([by_place(tokenizer, clip.load(), tau) for clip in data.clips]).mean(0)
            first, places = float(means[0]), [round(float(v), 3) for v in means[1:]]
            rows[f"{name}, {setting}"] = {
                "clips": len(data), "slot 0": round(first, 3), "places": places,
                "pulse": round(max(places) - min(places), 3),
            }  # fmt: skip
            print(name, setting, rows[f"{name}, {setting}"], flush=True)
    record = {
        "what": "PSNR by a frame's place in its slot, mean over slots and clips",
        "command": "python benchmarks/frame_places.py --davis FOLDER --bench FOLDER --out FILE",
        "commit": commit(),
        "weights": tokenizer.spec.weight_hash,
        "rows": rows,
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")


def by_place(tokenizer: Tokenizer, clip: Video, tau: float | None) -> torch.Tensor:
    """[1 + PLACES]: the first frame, and the mean of each place."""
    decoded = tokenizer.decode(tokenizer.encode(clip, tau=tau))
    mse = (clip.frames.double() - decoded.frames.double()).square().flatten(1).mean(1).clamp_min(1e-9)
    psnr = 10 * torch.log10(255**2 / mse)
    return torch.cat([psnr[:1], psnr[1:].view(-1, PLACES).mean(0)])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--davis", type=Path)
    parser.add_argument("--bench", type=Path)
    parser.add_argument("--limit", type=int, default=0, help="the first clips of each set; 0 means all")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
