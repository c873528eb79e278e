# SPDX-License-Identifier: Apache-2.0
"""Which shape of steps spends bits best, and which place on the ladder should be the default one.

    python benchmarks/steps.py VIDEO... [--backbone mini] [--device cpu] --out benchmarks/steps_DEVICE_DATE.json

VIDEO is a video or an array of studies_gpu.py. Gains are those of the profile, if it has any.
First all cells of each clip are stored with steps of three shapes, all as large in the geometric mean: equal in grey
levels of the picture (by the gains of the channels), one number for all, a share of each channel's deviation. Bits are
those of the whole file. Then the default tau is used, with the model's own fill, to see which step loses at most 0.5 dB
against q8's own choice, and how many of its bits that saves: `inlay calibrate` chooses the default by the same rule.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # runs from a checkout, nothing installed

from inlay.codec import encode_clip, gather, paper_clips
from inlay.codec.quality import mean_psnr
from inlay.container import as_stored, to_bytes
from inlay.container.tokens import Tokens
from inlay.masking import MaskConfig, keep_mask
from inlay.masking.steps import channel_steps
from inlay.measure.curve import MOST_LOSS_DB
from inlay.measure.gains import Gains
from inlay.research.studies.datasets import ClipSpec, read_any
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video

Point = dict[str, float]


def main() -> None:
    args = parse()
    torch.set_grad_enabled(False)
    began = time.perf_counter()
    tokenizer = Tokenizer.from_pretrained(args.backbone, device=args.device)
    clips = [read_any(path, ClipSpec(size=args.side, frames=args.frames)) for path in args.videos]
    found = gains_of(tokenizer, clips)
    print("gains", found, flush=True)
    shapes = compare_shapes(tokenizer, clips, found, args.shapes) if args.shapes else None
    rungs = compare_rungs(tokenizer, clips, found, args.rungs, args.tau)
    record = {
        "command": " ".join(
            ["python benchmarks/steps.py VIDEO...", *(word for word in sys.argv[1:] if not word.endswith(".mp4"))]
        ),
        "weights": tokenizer.spec.weight_hash,
        "clips": [path.stem for path in args.videos],
        "gains": found,
        "shapes": shapes,
        "default_tau": rungs,
        "default_step": within_loss(rungs["rows"]),
        "seconds": round(time.perf_counter() - began),
    }
    print("default step", record["default_step"])
    args.out.write_text(json.dumps(record, indent=1) + "\n")


def gains_of(tokenizer: Tokenizer, clips: list[Video]) -> tuple[float, ...]:
    if tokenizer.profile is not None and tokenizer.profile.gains:
        return tokenizer.profile.gains
    gains = Gains()
    for clip in clips:
        gains = gains.update(tokenizer, encode_clip(tokenizer, clip).z_BCTHW)
    return gains.finish()


def compare_shapes(tokenizer: Tokenizer, clips: list[Video], gains: tuple[float, ...], rungs: list[float]) -> object:
    """All cells, so that nothing but the steps is compared; dB of each shape at the bits of the gains' shape."""
    whole = [tokens_of(tokenizer, clip, 0.0) for clip in clips]
    points: dict[str, list[Point]] = {"q8": [point(tokenizer, clips, whole, None)]}
    deviations = np.array(tokenizer.spec.latent_std)
    for rung in rungs:
        by_gain = channel_steps(gains, rung)
        mean = math.exp(float(np.log(by_gain).mean()))
        share = deviations / math.exp(float(np.log(deviations).mean()))
        shapes = {"gain": by_gain, "one": (mean,) * len(gains), "deviation": tuple(mean * share)}
        for name, steps in shapes.items():
            points.setdefault(name, []).append({"step": rung} | point(tokenizer, clips, whole, steps))
            print(name, points[name][-1], flush=True)
    ahead = {name: ahead_db(points["gain"], points[name]) for name in ("one", "deviation")}
    print("dB of the gains' shape above the others at equal bits", ahead, flush=True)
    return {"points": points, "gain_ahead_db": ahead}


def compare_rungs(
    tokenizer: Tokenizer, clips: list[Video], gains: tuple[float, ...], rungs: list[float], tau: float | None
) -> dict[str, Any]:
    tau = tokenizer.default_tau("latent-l1") if tau is None else tau
    kept = [tokens_of(tokenizer, clip, tau) for clip in clips]
    rows: list[Point] = [{"step": 0.0} | point(tokenizer, clips, kept, None)]
    for rung in rungs:
        rows.append({"step": rung} | point(tokenizer, clips, kept, channel_steps(gains, rung)))
        print("default tau", rows[-1], flush=True)
    return {"tau": tau, "fill": tokenizer.filler.default, "rows": rows}


def tokens_of(tokenizer: Tokenizer, clip: Video, tau: float) -> Tokens:
    chunk = encode_clip(tokenizer, clip)
    keep_BTHW = keep_mask(chunk.z_BCTHW, MaskConfig(tau=tau))
    recipe = replace(tokenizer.recipe(paper_clips(), tau), step=None, steps=None)
    return gather(chunk, keep_BTHW, recipe)


def point(tokenizer: Tokenizer, clips: list[Video], tokens: list[Tokens], steps: tuple[float, ...] | None) -> Point:
    """Means over the clips: bits a pixel, bits a number, dB."""
    bits, numbers, psnr = [], [], []
    all_stepped = [replace(plain, recipe=replace(plain.recipe, steps=steps)) for plain in tokens]
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(lambda own: 8 * len(to_bytes(own)), all_stepped))
    for clip, stepped, size in zip(clips, all_stepped, sizes, strict=True):
        bits.append(size / (len(clip) * clip.height * clip.width))
        numbers.append(size / (len(stepped) * stepped.channels))
        psnr.append(mean_psnr([clip], [tokenizer.decode(as_stored(stepped))]))
    return {
        "bits_per_pixel": float(np.mean(bits)),
        "bits_per_number": float(np.mean(numbers)),
        "psnr": float(np.mean(psnr)),
    }


def ahead_db(ours: list[Point], theirs: list[Point]) -> float:
    """Mean distance of two curves over the bits they share, in log bits."""
    curves = [sorted((math.log(p["bits_per_pixel"]), p["psnr"]) for p in points) for points in (ours, theirs)]
    low, high = max(c[0][0] for c in curves), min(c[-1][0] for c in curves)
    at = np.linspace(low, high, 33)
    mine, other = (np.interp(at, *zip(*curve, strict=True)) for curve in curves)
    return float((mine - other).mean())


def within_loss(rows: list[Point]) -> Point:
    """The step that loses as much as is allowed, between two that were tried, and the share of bits it saves."""
    own, *stepped = rows
    loss = [own["psnr"] - row["psnr"] for row in stepped]
    at = [math.log(row["step"]) for row in stepped]
    saved = [1 - row["bits_per_pixel"] / own["bits_per_pixel"] for row in stepped]
    step = float(np.interp(MOST_LOSS_DB, loss, at))
    return {"step": round(math.exp(step), 2), "saved": round(float(np.interp(step, at, saved)), 3)}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("videos", type=Path, nargs="+")
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--frames", type=int, default=33)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--tau", type=float, default=None)
    parser.add_argument("--shapes", type=float, nargs="*", default=[1.0, 2.0, 4.0, 8.0])
    parser.add_argument("--rungs", type=float, nargs="+", default=[1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0])
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
