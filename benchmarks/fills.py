# SPDX-License-Identifier: Apache-2.0
"""PSNR of every fill at given keep rates, against full rate: 33 frames, 256x256 centre crop, interval 1.

    python benchmarks/fills.py --davis DIR --bench DIR --out benchmarks/fills_cpu_DATE.json [--lpips]
        [--key-slots thin] [--second-look]

DAVIS means the val sequences that are in DIR, as videos or as the arrays of studies_gpu.py. tau is bisected until the
keep rate over the whole set is the one asked for, as the paper does. PSNR and LPIPS are means over clips of the mean
over frames, on 8-bit pixels. Rows already in --out are not made again, so a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # runs from a checkout, nothing installed

from inlay.codec import EncodeConfig, LatentChunk, encode_clip
from inlay.codec.look import Looker
from inlay.fill import FILLS
from inlay.masking import SelectState, keep_rate_of
from inlay.masking.thin import completed
from inlay.measure import MeasureConfig
from inlay.measure.base import remember
from inlay.research.studies.datasets import ClipSpec, read_any
from inlay.research.studies.records import read_pair
from inlay.tokenizer import Tokenizer
from inlay.types import KEY_SLOTS
from inlay.video.frames import Video

VAL = [
    "bike-packing",
    "blackswan",
    "bmx-trees",
    "breakdance",
    "camel",
    "car-roundabout",
    "car-shadow",
    "cows",
    "dance-twirl",
    "dog",
    "dogs-jump",
    "drift-chicane",
    "drift-straight",
    "goat",
    "gold-fish",
    "horsejump-high",
    "india",
    "judo",
    "kite-surf",
    "lab-coat",
    "libby",
    "loading",
    "mbike-trick",
    "motocross-jump",
    "paragliding-launch",
    "parkour",
    "pigs",
    "scooter-black",
    "shooting",
    "soapbox",
]
POINTS = (("davis", 0.62), ("davis", 0.35), ("davis", 0.78), ("davis", 0.2), ("bench", 0.32), ("bench", 0.2))


CHOSEN = ("every", "key_slots", "second_look")  # what all rows of a record share


def main() -> None:
    args = parse()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    tokenizer = Tokenizer.from_pretrained(args.weights or "mini", device=args.device)
    metrics = ("psnr", "lpips") if args.lpips else ("psnr",)
    record = begun(args, tokenizer)
    folders = {"davis": args.davis, "bench": args.bench}
    for name in args.sets:
        clips = read_set(tokenizer, clips_of(name, folders[name])[:: args.every])
        how = EncodeConfig(mode="clips", cuts=False, key_slots=args.key_slots, second_look=args.second_look)
        for row in score(tokenizer, name, clips, how, metrics=metrics, fills=args.fills, done=record["rows"]):
            record["rows"].append(row)
            args.out.write_text(json.dumps(record, indent=1) + "\n")
            print(row, flush=True)


def begun(args: argparse.Namespace, tokenizer: Tokenizer) -> dict[str, Any]:
    """The record so far, if it is of these weights; else a new one."""
    weights = {"mini": tokenizer.spec.weight_hash, **{k: v.weight_hash for k, v in tokenizer.filler.lits.items()}}
    if args.out.exists():
        found: dict[str, Any] = json.loads(args.out.read_text())
        if found["weights"] != weights or any(found.get(word) != getattr(args, word) for word in CHOSEN):
            raise SystemExit(f"{args.out} is of other weights, clips, key slots or looks; give another --out")
        return found
    words = ["--lpips"] * args.lpips + (["--key-slots", args.key_slots] if args.key_slots != "whole" else [])
    words += ["--second-look"] * args.second_look
    return {
        "command": " ".join(["python benchmarks/fills.py --davis DIR --bench DIR --out FILE", *words]),
        "machine": f"{platform.machine()}, torch {torch.__version__}, {device_name(tokenizer.device)}",
        "weights": weights,
        **{word: getattr(args, word) for word in CHOSEN},
        "convention": "mean over clips of mean over frames, 8-bit; 33 frames, 256x256 centre crop, interval 1",
        "rows": [],
    }


def clips_of(name: str, folder: Path) -> list[Path]:
    paths = sorted(p for p in folder.iterdir() if p.suffix in (".mp4", ".npy"))
    return [p for p in paths if name != "davis" or p.stem.split("_")[-1] in VAL]


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def read_set(tokenizer: Tokenizer, paths: list[Path]) -> list[tuple[Video, LatentChunk]]:
    """(video, its latents) of each clip."""
    clips = [read_any(path, ClipSpec()) for path in paths]
    if tokenizer.device.type == "cuda":  # room for 1 GB of LPIPS features a clip, so that each is computed once
        clips = [Video(frames=remember(v.frames.to(tokenizer.device))) for v in clips]
    return [(v, encode_clip(tokenizer, v)) for v in clips]


@torch.inference_mode()
def score(
    tokenizer: Tokenizer,
    name: str,
    clips: list[tuple[Video, LatentChunk]],
    how: EncodeConfig,
    *,
    metrics: tuple[str, ...],
    fills: list[str],
    done: list[dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    """The rows of a set that are not there yet."""
    decode = tokenizer.backbone.decode
    there = {(row["set"], row["keep_rate"], row["fill"]) for row in done}
    facts = {"set": name, "clips": len(clips)}
    if (name, 1.0, "full rate") not in there:
        yield {
            **facts,
            "keep_rate": 1.0,
            "fill": "full rate",
            **means([(v, c.z_BCTHW) for v, c in clips], decode, metrics),
        }
    for target in [k for n, k in POINTS if n == name]:
        tau = tau_for(tokenizer, [c for _, c in clips], target, how)
        known = [(v, *known_of(c.z_BCTHW, mask_of(tokenizer, c, how, tau))) for v, c in clips]
        for fill in [f for f in fills or (*FILLS, *tokenizer.filler.lits) if (name, target, f) not in there]:
            filled = [(v, tokenizer.filler.fill(z, keep, tau, fill)) for v, z, keep in known]
            yield {**facts, "keep_rate": target, "tau": tau, "fill": fill, **means(filled, decode, metrics)}


def known_of(z_BCTHW: Tensor, keep_BTHW: Tensor) -> tuple[Tensor, Tensor]:
    """What a fill is given: slot 0 with its holes guessed, which count as kept."""
    first = completed(z_BCTHW[:, :, 0], keep_BTHW[:, 0])
    z_BCTHW = torch.cat([first[:, :, None], z_BCTHW[:, :, 1:]], dim=2)
    return z_BCTHW, torch.cat([torch.ones_like(keep_BTHW[:, :1]), keep_BTHW[:, 1:]], dim=1)


def means(
    clips: list[tuple[Video, Tensor]], decode: Callable[[Tensor], Tensor], metrics: tuple[str, ...]
) -> dict[str, float]:
    """Each metric over the clips; one that cannot run is an error here, not a gap in the table."""
    total = dict.fromkeys(metrics, 0.0)
    for video, z_BCTHW in clips:
        config = MeasureConfig(device=str(z_BCTHW.device))
        reading = read_pair(video, Video.from_pixels(decode(z_BCTHW)[0]), metrics, config)
        if reading.lacks(metrics):
            raise SystemExit("; ".join({**reading.unavailable, **reading.missing}.values()))
        total = {m: total[m] + reading.values[m] for m in metrics}
    return {m: value / len(clips) for m, value in total.items()}


def mask_of(tokenizer: Tokenizer, chunk: LatentChunk, how: EncodeConfig, tau: float) -> Tensor:
    return Looker(tokenizer, how, tau).select(chunk, SelectState()).keep_BTHW


def tau_for(tokenizer: Tokenizer, chunks: list[LatentChunk], keep_rate: float, how: EncodeConfig) -> float:
    low, high, trials = 0.0, 4.0, 22
    if how.second_look:  # which keeps more than the scan alone, and fills the set in each trial
        low = tau_for(tokenizer, chunks, keep_rate, replace(how, second_look=False))
        high, trials = 2 * low, 9
    for _ in range(trials):
        tau = (low + high) / 2
        kept = sum(keep_rate_of(mask_of(tokenizer, chunk, how, tau)) for chunk in chunks) / len(chunks)
        low, high = (tau, high) if kept > keep_rate else (low, tau)
    return high


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--davis", type=Path, required=True)
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--weights", type=Path, help="a folder of mini and its LITs, instead of what ships")
    parser.add_argument("--sets", nargs="+", default=["davis", "bench"], choices=["davis", "bench"])
    parser.add_argument("--fills", nargs="+", default=[], help="only these")
    parser.add_argument("--key-slots", choices=KEY_SLOTS, default="whole")
    parser.add_argument("--second-look", action="store_true", help="keep what LIT gets wrong, too")
    parser.add_argument("--lpips", action="store_true", help="LPIPS beside PSNR")
    parser.add_argument("--every", type=int, default=1, help="every n-th clip only")
    return parser.parse_args()


if __name__ == "__main__":
    main()
