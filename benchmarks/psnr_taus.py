# SPDX-License-Identifier: Apache-2.0
"""What `--psnr` saves by going on from the dial's pair to larger taus: bits and time of each clip, with it and without.

python benchmarks/psnr_taus.py VIDEO... --psnr 29 33 --out benchmarks/psnr_taus_DEVICE_DATE.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # runs from a checkout, nothing installed

import inlay.codec.sizes
from inlay.codec import VideoEncoder
from inlay.container import to_bytes
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError
from inlay.masking import Budget
from inlay.origin import commit
from inlay.research.studies.datasets import ClipSpec, read_any
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video

LARGER = inlay.codec.sizes.TAU_SHARES


def main() -> None:
    args = parse()
    torch.set_grad_enabled(False)
    tokenizer = Tokenizer.from_pretrained(args.backbone, device=args.device)
    rows: list[dict[str, Any]] = []
    for path in args.videos:
        clip = read_any(path, ClipSpec(size=args.side, frames=args.frames))
        for psnr in args.psnr:
            try:
                dial = encoded(tokenizer, clip, psnr, ())
                larger = encoded(tokenizer, clip, psnr, LARGER)
            except ConfigError as error:
                print(path.stem, error, flush=True)
                continue
            saved = round(1 - larger["bits_per_pixel"] / dial["bits_per_pixel"], 4)
            rows.append({"clip": path.stem, "asked": psnr, "dial": dial, "larger taus": larger, "saved": saved})
            print(json.dumps(rows[-1]), flush=True)
    record = {
        "command": f"python benchmarks/psnr_taus.py VIDEO... --psnr {' '.join(f'{q:g}' for q in args.psnr)}",
        "commit": commit(),
        "weights": tokenizer.spec.weight_hash,
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "frames": args.frames,
        "side": args.side,
        "rows": rows,
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")


def encoded(tokenizer: Tokenizer, clip: Video, psnr: float, shares: tuple[float, ...]) -> dict[str, Any]:
    """One encode, with these shares of the usual tau to try."""
    inlay.codec.sizes.TAU_SHARES = shares
    began = time.perf_counter()
    encoder = VideoEncoder(tokenizer, budget=Budget(psnr=psnr), original=lambda: [clip])
    size = 8 * len(to_bytes(Tokens.join(encoder.encode([clip]))))
    seconds, report = time.perf_counter() - began, encoder.report
    assert report is not None, "a PSNR is reported"
    return {
        "bits_per_pixel": size / (len(clip) * clip.height * clip.width),
        "psnr": report.got,
        "tau": report.tau,
        "step": report.step,
        "scale": report.scale,
        "decodes": report.decodes,
        "seconds": round(seconds, 1),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("videos", type=Path, nargs="+")
    parser.add_argument("--psnr", type=float, nargs="+", default=[29.0, 33.0])
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--frames", type=int, default=33)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
