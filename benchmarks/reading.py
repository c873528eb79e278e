# SPDX-License-Identifier: Apache-2.0
"""How fast latents come out of a token file: all cells, one core, q8 beside q8-quick; and what they cost in bits.

    python benchmarks/reading.py VIDEO... [--backbone mini] [--step 0.6] --out benchmarks/reading_cpu_DATE.json

Megabytes are those of the latents in float16. A chunk of 33 x 256 x 256 is read again and again from a file in memory;
the time is the shortest in CPU seconds, so that what else the machine does counts little.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from inlay.codec import encode_clip
from inlay.container import TokenReader, to_bytes
from inlay.container.tokens import Tokens
from inlay.masking.steps import channel_steps
from inlay.measure.gains import Gains
from inlay.tokenizer import Tokenizer
from inlay.video import read_video

PRECISIONS = ("q8", "q8-quick")


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    tokenizer = Tokenizer.from_pretrained(args.backbone, device="cpu")
    rows: dict[str, list[dict[str, float]]] = {precision: [] for precision in PRECISIONS}
    for path in args.videos:
        clip = read_video(path, size="256x256", frames=33)
        chunk = encode_clip(tokenizer, clip)
        gains = (tokenizer.profile and tokenizer.profile.gains) or Gains().update(tokenizer, chunk.z_BCTHW).finish()
        tokens = tokenizer.encode(clip, tau=0.0, mode="clips", step="deviation")
        for precision in PRECISIONS:
            recipe = replace(tokens.recipe, precision=precision, steps=channel_steps(gains, args.step), step=args.step)
            rows[precision].append(measure(replace(tokens, recipe=recipe), args.repeats))
    means = {
        name: {key: float(np.mean([row[key] for row in found])) for key in found[0]} for name, found in rows.items()
    }
    record = {
        "command": f"python benchmarks/reading.py VIDEO... --backbone {Path(args.backbone).name} --step {args.step}",
        "weights": tokenizer.spec.weight_hash,
        "clips": [path.stem for path in args.videos],
        "precisions": means,
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(means, indent=1))


def measure(tokens: Tokens, repeats: int) -> dict[str, float]:
    began = time.process_time()
    data = to_bytes(tokens)
    written = time.process_time() - began
    numbers, seconds = tokens.values.numel(), []
    with TokenReader(data) as reader:
        for _ in range(repeats):
            began = time.process_time()
            reader.read(0)
            seconds.append(time.process_time() - began)
    return {
        "bits_per_number": 8 * len(data) / numbers,
        "write_seconds": written,
        "read_seconds": min(seconds),
        "read_megabytes_per_second": 2e-6 * numbers / min(seconds),
        "median_megabytes_per_second": 2e-6 * numbers / float(np.median(seconds)),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("videos", type=Path, nargs="+")
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--step", type=float, default=0.6)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
