# SPDX-License-Identifier: Apache-2.0
"""Makes the golden token files and their digests: INLAY_REGENERATE=1 python tests/assets/regenerate.py

Files of a released format version are never made again: a new version gets new files beside the old ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from inlay import container
from inlay.container.tokens import Tokens
from inlay.types import Recipe, Span, VideoInfo

HERE = Path(__file__).parent


GOLDEN = ("fp16", "bf16", "q8", "q8_steps", "q8-quick", "q8_half", "q8_thin")  # of format 1.0, two of 1.1, two of 1.2


def golden_tokens(name: str) -> Tokens:
    """Two chunks of a 61 x 45 video, the second continuing the first: whole-number arithmetic, the same everywhere."""
    precision, _, more = name.partition("_")
    stepped, halved = more == "steps", more == "half"
    t, y, x, c = np.mgrid[:8, :6, :8, :4]
    numbers = (37 * x + 53 * y + 11 * t * (x + 2 * c) + 29 * c) % 97 + 10 * x - 7 * y * c
    mask = torch.from_numpy((3 * t[..., 0] + 5 * y[..., 0] + 7 * x[..., 0]) % 11 < 4)
    mask[0] = True
    values = torch.from_numpy(numbers.astype(np.float32) / 64)
    return Tokens(
        values=values[mask],
        mask=mask,
        info=VideoInfo(width=122 if halved else 61, height=89 if halved else 45, fps=Fraction(24000, 1001), frames=28),
        recipe=Recipe(
            backbone="golden",
            weight_hash="00112233",
            tau=0.125,
            precision=precision,
            fill="hold",
            scale="1/2" if halved else "1",
            key_slots="thin" if more == "thin" else "whole",
            **({"step": 1.5, "steps": (0.125, 0.19, 0.28, 0.7)} if stepped else {}),
        ),
        spans=(Span(slots=5, frames=17), Span(slots=3, frames=11, key=False)),
        seconds=torch.arange(28).double() / 16 if precision == "bf16" else None,
    )


def regenerate() -> None:
    digests = {}
    for name in GOLDEN:
        path = container.save(golden_tokens(name), HERE / f"golden_v1_{name}.inlay", force=True)
        tokens = container.open(path)
        digests[name] = {
            "file": hashlib.sha256(path.read_bytes()).hexdigest(),
            "values": hashlib.sha256(tokens.values.numpy().astype("<f4").tobytes()).hexdigest(),
            "mask": hashlib.sha256(tokens.mask.numpy().tobytes()).hexdigest(),
            "frames": tokens.info.frames,
            "frame_rate": str(tokens.info.fps),
        }
    (HERE / "golden_v1.json").write_text(json.dumps(digests, indent=2) + "\n")


if __name__ == "__main__":
    if os.environ.get("INLAY_REGENERATE") != "1":
        sys.exit("golden files are changed only with INLAY_REGENERATE=1")
    regenerate()
