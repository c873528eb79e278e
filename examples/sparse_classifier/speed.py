# SPDX-License-Identifier: Apache-2.0
"""Time training steps of each reading alone, for a small network and a larger one.

python examples/sparse_classifier/speed.py latents/motion.npz --device cuda --out speed.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from data import READINGS, Data
from model import Classifier, ModelConfig
from train import autocast, clock, device_name

SIZES = {  # name -> width, depth, heads
    "small": (128, 4, 4),
    "large": (768, 12, 12),
}


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    args = parse(argv)
    data = Data.load(args.latents, only=args.only, device=args.device)
    rows: list[dict[str, Any]] = []
    for size in args.sizes:
        width, depth, heads = SIZES[size]
        config = ModelConfig(
            channels=data.z_BCTHW.shape[1],
            classes=len(data.classes),
            width=width,
            depth=depth,
            heads=heads,
            attention=args.attention,
        )
        for reading in args.readings:
            rows.append({"network": size, "reading": reading} | steps(data, reading, config, args))
            print(json.dumps(rows[-1]), flush=True)
            if args.out:
                args.out.write_text(json.dumps(record(args, data, rows), indent=1) + "\n", encoding="utf-8")
    return rows


def steps(data: Data, reading: str, config: ModelConfig, args: argparse.Namespace) -> dict[str, float]:
    """Whole steps (batch, forward, backward, optimiser), after a few that are not timed."""
    device, rng = data.z_BCTHW.device, torch.Generator().manual_seed(0)
    model = Classifier(replace(config, run_lengths=reading == "sparse")).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    start, cells = 0.0, 0
    for step in range(-args.warm_up, args.steps):
        if step == 0:
            start, cells = clock(device), 0
        chosen = data.train[torch.randint(len(data.train), (args.batch,), generator=rng)]
        batch = data.read(chosen, reading, rng)
        with autocast(device):
            loss = F.cross_entropy(model(batch), data.labels_B[chosen.to(device)])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        cells += len(batch.values)
    seconds, clips = clock(device) - start, args.steps * args.batch
    return {
        "clips_per_second": clips / seconds,
        "tokens_per_second": cells / seconds,
        "tokens_per_clip": cells / clips,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def record(args: argparse.Namespace, data: Data, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "command": f"python examples/sparse_classifier/speed.py {args.latents.name} --device {args.device} --out FILE",
        "machine": f"torch {torch.__version__}, {device_name(args.device)}",
        "data": data.about,
        "batch": args.batch,
        "steps": args.steps,
        "rows": rows,
    }


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("latents", type=Path)
    parser.add_argument("--readings", nargs="+", choices=READINGS, default=["dense", "hold", "sparse"])
    parser.add_argument("--only", nargs="+", help="some of the classes; default: all")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--batch", type=int, default=64, help="clips")
    parser.add_argument("--attention", default="nested", help="per-clip, masked, nested or flex")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="where the record goes")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
