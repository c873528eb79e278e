# SPDX-License-Identifier: Apache-2.0
"""What masks and values cost in a token file: real clips, `mini`, given keep rates.

    python benchmarks/container.py --videos DIR [--every 4] --out benchmarks/container_cpu_DATE.json

Every n-th video of DIR, 33 frames at 256x256; tau is bisected for each clip until its keep rate is the one asked for.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

from inlay.container import open as open_tokens
from inlay.container import summary, to_bytes
from inlay.masking import MaskConfig, keep_mask, keep_rate_of
from inlay.tokenizer import Tokenizer
from inlay.video import read_video


def main() -> None:
    args = parse()
    tokenizer = Tokenizer.from_pretrained("mini", device="cpu")
    clips = [read_video(p, size="256x256", frames=33) for p in sorted(args.videos.glob("*.mp4"))[:: args.every]]
    rows = [measure(tokenizer, clips, keep_rate) for keep_rate in (0.3, 0.5)]
    record = {
        "command": f"python benchmarks/container.py --videos DIR --every {args.every} --out FILE",
        "weights": tokenizer.spec.weight_hash,
        "clips": len(clips),
        "rows": rows,
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


def measure(tokenizer: Tokenizer, clips: list, keep_rate: float) -> dict[str, float]:
    """Means over the clips; everything in bits, side information included."""
    sums = dict.fromkeys(
        ("mask_bits_per_cell", "bits_per_number", "bits_per_pixel", "write_seconds", "read_seconds"), 0.0
    )
    for clip in clips:
        z = tokenizer.encode_pixels(tokenizer.pixels([clip]))
        tokens = tokenizer.encode(clip, tau=tau_for(z, keep_rate))
        began = time.perf_counter()
        data = to_bytes(tokens)
        sums["write_seconds"] += time.perf_counter() - began
        began = time.perf_counter()
        open_tokens(data)
        sums["read_seconds"] += time.perf_counter() - began
        found = summary(data)
        sums["mask_bits_per_cell"] += 8 * found.mask_bytes / (found.cells * 8 / 9)  # slot 0 is kept whole
        sums["bits_per_number"] += 8 * found.value_bytes / (found.tokens * tokens.channels)
        sums["bits_per_pixel"] += found.bits_per_pixel
    later = (9 * keep_rate - 1) / 8  # the keep rate of the slots after slot 0
    entropy = -later * math.log2(later) - (1 - later) * math.log2(1 - later)
    return {
        "keep_rate": keep_rate,
        "independent_bits_per_cell": entropy,
        **{k: v / len(clips) for k, v in sums.items()},
    }


def tau_for(z, keep_rate: float) -> float:  # type: ignore[no-untyped-def]
    low, high = 0.0, 16.0
    for _ in range(24):
        tau = (low + high) / 2
        low, high = (tau, high) if keep_rate_of(keep_mask(z, MaskConfig(tau=tau))) > keep_rate else (low, tau)
    return high


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
