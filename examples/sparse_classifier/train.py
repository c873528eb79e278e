# SPDX-License-Identifier: Apache-2.0
"""Train on a file of latents: accuracy, tokens and speed of each way to read them, as a table and as JSON.

python examples/sparse_classifier/train.py latents/motion.npz --seeds 3 --out result.json
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from data import READINGS, Data
from model import Classifier, ModelConfig

from inlay.errors import InlayError
from inlay.pack import ShapeSampler


def fit(data: Data, reading: str, config: ModelConfig, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train once and test once; the clock runs over training steps only, after the first epoch."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    device = data.z_BCTHW.device
    model = Classifier(replace(config, run_lengths=reading == "sparse")).to(device)
    sampler = ShapeSampler([0] * len(data.train), batch_size=args.batch, seed=seed)
    steps = args.epochs * len(sampler)
    optimiser = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, fused=device.type == "cuda")
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, args.lr, total_steps=steps, pct_start=0.1)
    seconds, clips, cells = 0.0, 0, 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        start, counts = clock(device), epoch > 0 or args.epochs == 1
        for rows in sampler:
            chosen = data.train[rows]
            batch = data.read(chosen, reading, rng)
            with autocast(device):
                loss = F.cross_entropy(model(batch), data.labels_B[chosen.to(device)], label_smoothing=0.05)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            rate.step()
            if counts:
                clips, cells = clips + len(rows), cells + len(batch.values)
        if counts:
            seconds += clock(device) - start
    found = test(data, reading, model, args.batch, rng)
    return found | {"clips_per_second": clips / seconds, "tokens_per_clip": cells / clips}


@torch.no_grad()
def test(data: Data, reading: str, model: Classifier, size: int, rng: torch.Generator) -> dict[str, float]:
    """The share of sources whose class is found, by the sum of the scores of their clips; and the mean over classes."""
    device, scores = data.z_BCTHW.device, []
    for rows in data.test.split(size):
        with autocast(device):
            scores.append(model(data.read(rows, reading, rng)).float().softmax(1).cpu())
    sources, place = data.sources_B[data.test].unique(return_inverse=True)
    sums = torch.zeros(len(sources), len(data.classes)).index_add(0, place, torch.cat(scores))
    labels = torch.zeros(len(sources), dtype=torch.int64).index_copy(
        0, place, data.labels_B[data.test.to(device)].cpu()
    )
    right = (sums.argmax(1) == labels).float()
    by_class = [right[labels == c].mean().item() for c in labels.unique()]
    return {"accuracy": right.mean().item(), "class_accuracy": statistics.mean(by_class)}


def autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def clock(device: torch.device) -> float:
    """Seconds; on a CPU those of this process alone, so that a busy machine does not spoil the comparison."""
    if device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    args = parse(argv)
    rows: list[dict[str, Any]] = []
    runs: dict[str, list[dict[str, Any]]] = {reading: [] for reading in args.readings}
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        data = Data.load(args.latents, args.tau, args.only, fold=seed, device=args.device)
        if not rows:
            print(f"{data.about}: {len(data.train)} clips to learn from, {len(data.test)} to test, "
                  f"keep rate {data.keep_rate:.1%}", flush=True)  # fmt: skip
        for reading in args.readings:  # inside: a busy machine is busy for all of them
            runs[reading].append(fit(data, reading, model_config(data, args), args, seed))
            print(f"  seed {seed}, {reading}: {runs[reading][-1]['accuracy']:.1%}", flush=True)
            rows = [summary(reading, found) for reading, found in runs.items() if found]
            if args.out:  # after every one, so that a run cut short leaves what it found
                args.out.write_text(json.dumps(record(args, data, rows), indent=1) + "\n", encoding="utf-8")
    print(table(rows))
    return rows


def model_config(data: Data, args: argparse.Namespace) -> ModelConfig:
    return ModelConfig(
        channels=data.z_BCTHW.shape[1],
        classes=len(data.classes),
        width=args.width,
        depth=args.depth,
        heads=args.heads,
        attention=args.attention,
    )


def summary(reading: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    hits = [f["accuracy"] for f in found]
    return {
        "reading": reading,
        "what": READINGS[reading],
        "accuracy": statistics.mean(hits),
        "accuracy_sd": statistics.stdev(hits) if len(hits) > 1 else None,
        "accuracies": hits,
        "class_accuracies": [f["class_accuracy"] for f in found],
        "tokens_per_clip": statistics.mean(f["tokens_per_clip"] for f in found),
        "clips_per_second": statistics.median(f["clips_per_second"] for f in found),
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'reading':24} {'accuracy':>16} {'tokens a clip':>14} {'clips/s in training':>20}"]
    for row in rows:
        accuracy = f"{row['accuracy']:.1%}" + ("" if row["accuracy_sd"] is None else f" ± {row['accuracy_sd']:.1%}")
        rate = f"{row['clips_per_second']:.0f}" if "clips_per_second" in row else "-"
        lines.append(f"{row['reading']:24} {accuracy:>16} {row['tokens_per_clip']:14.0f} {rate:>20}")
    return "\n".join(lines)


def told(args: argparse.Namespace) -> str:
    """The words this was started with, folders left out."""
    short = {str(args.latents): args.latents.name, str(args.out): "FILE"}
    return shlex.join([short.get(word, word) for word in sys.argv[1:]])


def record(args: argparse.Namespace, data: Data, rows: list[dict[str, Any]]) -> dict[str, Any]:
    settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items() if k not in ("out", "latents")}
    counts = data.labels_B.bincount(minlength=len(data.classes)).tolist()
    return {
        "command": f"python examples/sparse_classifier/train.py {told(args)}",
        "machine": f"{platform.machine()}, torch {torch.__version__}, {device_name(args.device)}",
        "data": data.about,
        "convention": "accuracy: share of sources (photographs, videos) not trained on whose class is found; seed n "
        "tests fold n of 4; sd over seeds; class_accuracies: mean over classes, for each seed",
        "classes": dict(zip(data.classes, counts, strict=True)),
        "clips": {"train": len(data.train), "test": len(data.test)},
        "sources": len(data.sources_B.unique()),
        "cells_per_clip": data.cells,
        "keep_rate": data.keep_rate,
        "settings": settings,
        "rows": rows,
    }


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else f"CPU, {torch.get_num_threads()} threads"


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("latents", type=Path)
    parser.add_argument("--readings", nargs="+", choices=READINGS, default=list(READINGS))
    parser.add_argument("--only", nargs="+", help="some of the classes; default: all")
    parser.add_argument("--tau", type=float, help="another threshold than the one stored with the latents")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="to share seeds out among machines")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=26, help="clips")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--attention", default="nested", help="per-clip, masked, nested or flex")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="where the record goes")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        main()
    except InlayError as error:
        raise SystemExit(f"train: {error}") from error
