# SPDX-License-Identifier: Apache-2.0
"""What `mini` keeps of videos of robots at its own tau, in bytes, and how well they come back.

    python benchmarks/robots.py VIDEOS... --out benchmarks/robots_cpu_DATE.json

The first 81 frames of each, at the size they have.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # runs from a checkout, nothing installed

import torch

from inlay.codec.quality import mean_psnr
from inlay.container import to_bytes
from inlay.tokenizer import Tokenizer
from inlay.video import read_video

FRAMES = 81


def measure(path: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    video = read_video(path, frames=FRAMES)
    tokens = tokenizer.encode(video)
    size = len(to_bytes(tokens))
    back = tokenizer.decode(tokens)
    return {
        "video": path.stem,
        "frames": len(video),
        "width": video.width,
        "height": video.height,
        "keep_rate": round(tokens.keep_rate, 4),
        "bytes": size,
        "bits_per_pixel": round(8 * size / (len(video) * video.width * video.height), 4),
        "psnr": round(mean_psnr([video], [back]), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("videos", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    tokenizer = Tokenizer.from_pretrained("mini", device="cpu")
    rows = [measure(path, tokenizer) for path in given.videos]
    names = ("keep_rate", "bits_per_pixel", "psnr")
    record = {
        "command": "python benchmarks/robots.py VIDEOS...",
        "backbone": "mini, its own tau, mode stateful, fill lit",
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "mean": {name: round(sum(row[name] for row in rows) / len(rows), 4) for name in names},
        "rows": rows,
    }
    given.out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record["mean"]))


if __name__ == "__main__":
    main()
