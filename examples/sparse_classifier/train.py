# SPDX-License-Identifier: Apache-2.0
"""A file of latents in, accuracy, tokens and speed of each way to read them out, as a table and as JSON.

python examples/sparse_classifier/train.py latents/motion.npz --seeds 3 --out result.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from model import Classifier, ModelConfig
from torch import Tensor

from inlay.fill import hold
from inlay.masking import MaskConfig, keep_mask
from inlay.pack import Packed, ShapeSampler, pack, pack_latents
from inlay.types import Latents, Recipe, Tokens, VideoInfo

READINGS = {
    "dense": "every cell of the latents",
    "hold": "every cell, the dropped ones as the last kept: what mode='dense' reads from a token file",
    "sparse": "the kept cells alone, with their run lengths",
    "sparse, no run lengths": "the kept cells alone, with their places only",
    "random": "as many cells of each clip as are kept, but drawn by lot",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Data:
    """Latents with labels, whitened by the mean and spread of the training clips; the mask is made before that."""

    z_BCTHW: Tensor
    keep_BTHW: Tensor
    labels_B: Tensor
    train: Tensor
    test: Tensor
    classes: tuple[str, ...]
    about: str

    @staticmethod
    def load(path: Path, tau: float | None = None, only: list[str] | None = None) -> Data:
        with np.load(path) as file:
            classes, about = tuple(file["classes"].tolist()), str(file["about"])
            chosen = [name for name in classes if only is None or name in only]
            rows = np.isin(file["labels"], [classes.index(name) for name in chosen])
            z, train = torch.from_numpy(file["latents"][rows]).float(), torch.from_numpy(file["train"][rows])
            labels = torch.tensor([chosen.index(classes[i]) for i in file["labels"][rows]])
            tau = float(file["tau"]) if tau is None else tau
        keep = keep_mask(z, MaskConfig(tau=tau)).keep
        mean = z[train].mean((0, 2, 3, 4), keepdim=True)
        std = z[train].std((0, 2, 3, 4), keepdim=True).clamp(min=1e-6)
        return Data(
            z_BCTHW=(z - mean) / std,
            keep_BTHW=keep,
            labels_B=labels,
            train=train.nonzero()[:, 0],
            test=(~train).nonzero()[:, 0],
            classes=tuple(chosen),
            about=f"{about}, tau {tau:g}",
        )

    def read(self, clips: list[int], reading: str, rng: torch.Generator) -> Packed:
        """A batch of these clips, the way `reading` says."""
        z, keep = self.z_BCTHW[clips], self.keep_BTHW[clips]
        if reading == "dense":
            return pack_latents(Latents(values=z))
        if reading == "hold":
            return pack_latents(Latents(values=hold(z * keep[:, None], keep)))
        if reading == "random":
            keep = torch.stack([lot(k, rng) for k in keep])
        return pack([tokens(z_CTHW, k) for z_CTHW, k in zip(z, keep, strict=True)])


def lot(keep_THW: Tensor, rng: torch.Generator) -> Tensor:
    drawn = torch.randperm(keep_THW.numel(), generator=rng)[: int(keep_THW.sum())]
    return torch.zeros_like(keep_THW).flatten().index_fill(0, drawn, True).view_as(keep_THW)


def tokens(z_CTHW: Tensor, keep_THW: Tensor) -> Tokens:
    T, H, W = keep_THW.shape
    info = VideoInfo(width=8 * W, height=8 * H, fps=24, frames=4 * T - 3)  # type: ignore[arg-type]
    recipe = Recipe(backbone="-", weight_hash="-", tau=0)
    return Tokens(values=z_CTHW.permute(1, 2, 3, 0)[keep_THW], mask=keep_THW, info=info, recipe=recipe)


def fit(data: Data, reading: str, config: ModelConfig, args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train once and test once; the clock runs over training steps only, after the first epoch."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    device = torch.device(args.device)
    model = Classifier(replace(config, run_lengths=reading == "sparse")).to(device)
    sampler = ShapeSampler([0] * len(data.train), batch_size=args.batch, seed=seed)
    steps = args.epochs * len(sampler)
    optimiser = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, args.lr, total_steps=steps, pct_start=0.1)
    seconds, clips, cells = 0.0, 0, 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for rows in sampler:
            chosen = data.train[rows]
            batch = data.read(chosen.tolist(), reading, rng).to(device)
            start = clock(device)
            with autocast(device):
                loss = F.cross_entropy(model(batch), data.labels_B[chosen].to(device), label_smoothing=0.05)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            rate.step()
            if epoch or args.epochs == 1:
                seconds, clips, cells = seconds + clock(device) - start, clips + len(rows), cells + len(batch.values)
    right = test(data, reading, model, args.batch, rng)
    return {"accuracy": right, "clips_per_second": clips / seconds, "tokens_per_clip": cells / clips}


@torch.no_grad()
def test(data: Data, reading: str, model: Classifier, size: int, rng: torch.Generator) -> float:
    device, right = next(model.parameters()).device, 0
    for rows in data.test.split(size):
        with autocast(device):
            scores = model(data.read(rows.tolist(), reading, rng).to(device))
        right += int((scores.argmax(1).cpu() == data.labels_B[rows]).sum())
    return right / len(data.test)


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
    data = Data.load(args.latents, args.tau, args.only)
    config = ModelConfig(
        channels=data.z_BCTHW.shape[1],
        classes=len(data.classes),
        width=args.width,
        depth=args.depth,
        heads=args.heads,
        attention=args.attention,
    )
    cells, kept = data.keep_BTHW[0].numel(), data.keep_BTHW.float().mean().item()
    print(
        f"{data.about}: {len(data.train)} clips to learn from, {len(data.test)} to test, keep rate {kept:.1%}",
        flush=True,
    )
    rows: list[dict[str, Any]] = []
    runs: dict[str, list[dict[str, Any]]] = {reading: [] for reading in args.readings}
    for seed in range(
        args.first_seed, args.first_seed + args.seeds
    ):  # seeds outside, readings inside: a busy machine is busy for all of them
        for reading in args.readings:
            runs[reading].append(fit(data, reading, config, args, seed))
            print(f"  seed {seed}, {reading}: {runs[reading][-1]['accuracy']:.1%}", flush=True)
        rows = [summary(reading, found) for reading, found in runs.items()]
        if args.out:  # after every seed, so that a run cut short leaves what it found
            args.out.write_text(json.dumps(record(args, data, cells, kept, rows), indent=1) + "\n", encoding="utf-8")
    print(f"{'reading':24} {'accuracy':>16} {'tokens a clip':>14} {'clips/s in training':>20}")
    for row in rows:
        accuracy = f"{row['accuracy']:.1%} ± {row['accuracy_sd']:.1%}"
        print(f"{row['reading']:24} {accuracy:>16} {row['tokens_per_clip']:14.0f} {row['clips_per_second']:20.0f}")
    return rows


def summary(reading: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    hits = [f["accuracy"] for f in found]
    return {
        "reading": reading,
        "what": READINGS[reading],
        "accuracy": statistics.mean(hits),
        "accuracy_sd": statistics.stdev(hits) if len(hits) > 1 else 0.0,
        "accuracies": hits,
        "tokens_per_clip": found[0]["tokens_per_clip"],
        "clips_per_second": statistics.median(f["clips_per_second"] for f in found),
    }


def record(args: argparse.Namespace, data: Data, cells: int, kept: float, rows: list[dict[str, Any]]) -> dict[str, Any]:
    settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items() if k not in ("out", "latents")}
    device = (
        torch.cuda.get_device_name() if args.device.startswith("cuda") else f"CPU, {torch.get_num_threads()} threads"
    )
    return {
        "command": f"python examples/sparse_classifier/train.py {args.latents.name} --out FILE",
        "machine": f"{platform.machine()}, torch {torch.__version__}, {device}",
        "data": data.about,
        "classes": data.classes,
        "clips": {"train": len(data.train), "test": len(data.test)},
        "cells_per_clip": cells,
        "keep_rate": kept,
        "settings": settings,
        "rows": rows,
    }


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
    main()
