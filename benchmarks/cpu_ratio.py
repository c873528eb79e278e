# SPDX-License-Identifier: Apache-2.0
"""Time one clip of 33x256x256 on this CPU, ours beside a network of Cosmos's size; prints one JSON object.

    python benchmarks/cpu_ratio.py --out benchmarks/cpu_ratio.json

Ours is the whole way with the shipped weights: encode, mask, token bytes written and read, LIT, decode. The other is
encode + decode alone of native Cosmos-CV4x8x8 at its published size with random weights (time does not depend on them).
Both run in one process in turn; medians over --repeats.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch

from inlay import Tokenizer
from inlay.backbones.cosmos import Cosmos, cosmos_360p
from inlay.container.reader import open_tokens
from inlay.container.writer import to_bytes
from inlay.video.synthetic import demo_clip


def ours(tokenizer: Tokenizer, clip) -> dict[str, float]:  # type: ignore[no-untyped-def]
    marks = [time.perf_counter()]
    tokens = tokenizer.encode(clip)
    marks.append(time.perf_counter())
    tokens = open_tokens(BytesIO(to_bytes(tokens)))
    marks.append(time.perf_counter())
    tokenizer.decode(tokens)
    marks.append(time.perf_counter())
    steps = dict(zip(("encode_and_mask_s", "token_bytes_s", "lit_and_decode_s"), _gaps(marks), strict=True))
    return steps | {"whole_s": marks[-1] - marks[0]}


def cosmos(network: Cosmos, x_BCTHW: torch.Tensor) -> dict[str, float]:
    marks = [time.perf_counter()]
    z_BCTHW = network.encode(x_BCTHW)
    marks.append(time.perf_counter())
    network.decode(z_BCTHW)
    marks.append(time.perf_counter())
    return dict(zip(("encode_s", "decode_s"), _gaps(marks), strict=True)) | {"whole_s": marks[-1] - marks[0]}


def _gaps(marks: list[float]) -> list[float]:
    return [b - a for a, b in pairwise(marks)]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    a = parser.parse_args()
    clip, tokenizer = demo_clip(frames=33, height=256, width=256), Tokenizer.from_pretrained(device="cpu")
    torch.manual_seed(0)
    network = Cosmos(cosmos_360p()).eval().requires_grad_(False)
    x_BCTHW = tokenizer.pixels([clip])
    ours(tokenizer, clip)
    rows = [(ours(tokenizer, clip), cosmos(network, x_BCTHW)) for _ in range(a.repeats)]
    mine, theirs = ({k: median(r[i][k] for r in rows) for k in rows[0][i]} for i in (0, 1))
    record = {
        "command": f"python benchmarks/cpu_ratio.py --repeats {a.repeats}", "clip": "33x256x256, float32",
        "cpu": platform.processor() or platform.machine(), "threads": torch.get_num_threads(),
        "torch": torch.__version__, "mini": {"parameters": tokenizer.spec.parameters, **mine},
        "cosmos_cv4x8x8_360p": {"parameters": network.spec.parameters, **theirs},
        "ratio": theirs["whole_s"] / mine["whole_s"],
    }  # fmt: skip
    text = json.dumps(record, indent=2)
    if a.out is not None:
        a.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
