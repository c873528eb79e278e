# SPDX-License-Identifier: Apache-2.0
"""Train a world model on each kind of training set, and test all of them alike: on true latents and on frames.

python examples/world_model/train.py world.safetensors --device cuda --out world.json
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from data import HOWS, Clips, World
from model import ModelConfig, WorldModel
from table import table
from torch import Tensor

from inlay.codec.quality import frame_errors, frame_psnr
from inlay.errors import InlayError, pick
from inlay.files import write_atomic
from inlay.video.frames import to_frames

UNTIMED = 10  # steps before the clock is started
DECODED = 8  # clips at once


def fit(world: World, clips: Clips, args: argparse.Namespace, seed: int) -> tuple[WorldModel, dict[str, float]]:
    """Train once. Every kind of set gets the same clips in the same order, cut at the same slots."""
    torch.manual_seed(seed)
    rng, device = torch.Generator().manual_seed(seed), world.z_BCTHW.device
    sizes = {name: getattr(args, name) for name in ("width", "depth", "heads", "attention", "dropout")}
    model = WorldModel(ModelConfig(channels=clips.z_BCTHW.shape[1], future=world.future, **sizes)).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, fused=device.type == "cuda")
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, args.lr, total_steps=args.steps, pct_start=0.1)
    start, cells, losses = 0.0, 0, []
    for step in range(args.steps):
        if step == min(UNTIMED, args.steps - 1):
            start, cells = clock(device), 0
        rows = world.train[torch.randperm(len(world.train), generator=rng)[: args.batch].to(device)]
        cut = int(torch.randint(2, world.past + 1, (1,), generator=rng))  # slots of the past
        past = clips.past(rows, cut)
        with autocast(device):
            loss = F.mse_loss(model(past), clips.z_BCTHW[rows, :, cut : cut + world.future])
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        rate.step()
        cells += len(past.values)
        losses.append(loss.detach())
    timed = args.steps - min(UNTIMED, args.steps - 1)
    seconds = clock(device) - start
    tail = torch.stack(losses[-max(1, args.steps // 10) :]).mean().item()
    return model, {"steps_per_second": timed / seconds, "tokens_per_step": cells / timed, "training_loss": tail}


@torch.no_grad()
def predict(model: WorldModel, clips: Clips, rows: Tensor, slots: int, size: int) -> Tensor:
    """[B, C, K, H, W] the slots that follow."""
    model.eval()
    with autocast(rows.device):
        return torch.cat([model(clips.past(part, slots)).float() for part in rows.split(size)])


def judge(world: World, next_BCKHW: Tensor) -> dict[str, float]:
    """What comes of predictions for the test clips: mean squared error (1: the latents' variance), and decibels."""
    true = world.normal(world.z_BCTHW[world.test, :, world.past :])
    place = torch.searchsorted(world.test, world.judged)
    return {"error": F.mse_loss(next_BCKHW, true).item(), "psnr": decoded_psnr(world, next_BCKHW[place])}


def decoded_psnr(world: World, next_JCKHW: Tensor) -> float:
    """Of the frames of predicted slots, decoded after the true past, mean over frames."""
    _, frames, height, width, _ = world.frames_JTHWC.shape
    z_JCTHW = torch.cat([world.z_BCTHW[world.judged, :, : world.past], world.raw(next_JCKHW)], dim=2)
    each = []
    for z, true_BTHWC in zip(z_JCTHW.split(DECODED), world.frames_JTHWC.split(DECODED), strict=True):
        x_BTHWC = to_frames(world.tokenizer.decode_latents(z))[:, -frames:, :height, :width]
        each += [frame_psnr(frame_errors(a, b)[0]) for a, b in zip(true_BTHWC, x_BTHWC, strict=True)]
    return torch.cat(each).mean().item()


def bounds(world: World) -> dict[str, dict[str, float]]:
    """What needs no network: to repeat the last slot, and to know the future."""
    true = world.normal(world.z_BCTHW[world.test])
    last = true[:, :, world.past - 1 : world.past].expand(-1, -1, world.future, -1, -1)
    return {"the last slot again": judge(world, last), "the true slots": judge(world, true[:, :, world.past :])}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    args = parse(argv)
    world = World.load(args.latents, args.device, args.weights)
    for kind in args.kinds or ():
        pick("kind of training set", kind, dict.fromkeys(world.kinds))
    known = bounds(world)
    true = world.clips("latents", world.past)
    runs: dict[str, list[dict[str, float]]] = {}
    made: dict[str, Any] = {}
    for kind in args.kinds or world.kinds:
        clips, shown = world.clips(kind), world.clips(kind, world.past)  # what a test shows knows nothing of the future
        runs[kind] = []
        for seed in range(args.seeds):
            model, found = fit(world, clips, args, seed)
            found |= judge(world, predict(model, shown, world.test, world.past, args.batch))
            if not kind.startswith("tokens"):  # what was learnt from filled latents, asked about the backbone's own
                next_BCKHW = predict(model, true, world.test, world.past, args.batch)
                found |= {f"{name}_true_past": value for name, value in judge(world, next_BCKHW).items()}
            runs[kind].append(found)
            print(f"{kind}, seed {seed}: error {found['error']:.4f}, {found['psnr']:.2f} dB", flush=True)
        made = record(args, world, known, runs)
        if args.out:  # after every kind, so that a run cut short leaves what it found
            write_atomic(args.out, (json.dumps(made, indent=1) + "\n").encode())
    print(table(made))
    return made


def record(
    args: argparse.Namespace, world: World, known: dict[str, dict[str, float]], runs: dict[str, list[dict[str, float]]]
) -> dict[str, Any]:
    settings = {k: v for k, v in vars(args).items() if k not in ("out", "latents", "weights")}
    return {
        "command": f"python examples/world_model/train.py {told(args)}",
        "machine": f"{platform.machine()}, torch {torch.__version__}, {device_name(args.device)}",
        "data": world.about,
        "clips": {"train": len(world.train), "test": len(world.test), "decoded": len(world.judged)},
        "cells_per_clip": world.keeps[next(iter(world.keeps))][0].numel(),
        "convention": "error: mean squared, over the predicted slots of test clips, in variances of the latents; psnr: "
        "mean over frames of the predicted slots against the video's; true_past: the test shows true latents",
        "settings": settings,
        "without a network": known,
        "rows": [summary(world, kind, found) for kind, found in runs.items()],
    }


def summary(world: World, kind: str, found: list[dict[str, float]]) -> dict[str, Any]:
    """One kind of training set over all seeds."""
    how, _, share = kind.partition(" ")
    sizes, train = world.about["training_set_bytes"], world.train
    sparse = how.startswith("tokens")
    shown = int(world.keeps[share][train].sum()) if sparse else len(train) * world.z_BCTHW[0, 0].numel()
    row: dict[str, Any] = {
        "kind": kind,
        "what": HOWS[how],
        "tokens": shown,
        "bytes": sizes["float16"] if how == "latents" else sizes[f"q8, {share} kept"],
    }
    for name in found[0]:
        values = [f[name] for f in found]
        row[name] = statistics.mean(values)
        row[f"{name}_sd"] = statistics.stdev(values) if len(values) > 1 else None
        row[f"{name}_each"] = values
    return row


def autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def clock(device: torch.device) -> float:
    """Seconds; on a CPU those of this process alone, so that a busy machine does not spoil the comparison."""
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else f"CPU, {torch.get_num_threads()} threads"


def told(args: argparse.Namespace) -> str:
    """The words this was started with, folders left out."""
    short = {str(args.latents): args.latents.name, str(args.out): "FILE", str(args.weights): "WEIGHTS"}
    return shlex.join([short.get(word, word) for word in sys.argv[1:]])


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("latents", type=Path, help="what prepare.py wrote")
    parser.add_argument("--kinds", nargs="+", help="of training sets, such as 'filled 0.35'; all by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=32, help="clips")
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.0, help="small data sets are soon known by heart")
    parser.add_argument("--attention", default="nested", help="per-clip, masked, nested or flex")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--weights", help="of the backbone, in place of the published ones")
    parser.add_argument("--out", type=Path, help="where the record goes")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        main()
    except InlayError as error:
        raise SystemExit(f"train: {error}") from error
