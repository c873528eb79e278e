# SPDX-License-Identifier: Apache-2.0
"""Short annealed runs of `mini` under different settings, in one process so that they compile once.

python benchmarks/ablate_backbone.py --clips CLIPS --seconds 30 --out record.json 'optimizer=muon,lr=1e-3' '…'
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).parent.parent / "recipes"))

from mini import load_clips

from inlay.backbones import Mini, MiniConfig
from inlay.train.loop import fit
from inlay.train.presets import mini_training as preset
from inlay.train.sampler import Sampler
from inlay.train.tasks import BackboneTask


def main() -> None:
    args = parse()
    torch.backends.cudnn.benchmark = True
    base = replace(preset(), steps=10**6, validate_every=0, checkpoint_every=10**6, log_every=50)
    clips, held_out = load_clips(args)
    torch.manual_seed(0)
    module = Mini(MiniConfig()).to(args.device)
    first = {k: v.clone() for k, v in module.state_dict().items()}
    loading = time_loading(clips, base, args.device)
    print(f"loading: {loading:.2f} ms a batch", flush=True)
    if args.device == "cuda":
        module.encoder.compile()
        module.decoder.compile()
        began = time.monotonic()
        fit(BackboneTask(module, base), clips, replace(base, steps=3), args.work / "warm", quiet=True)
        print(f"compiled in {time.monotonic() - began:.0f} s", flush=True)
    records = []
    for text in args.settings:
        module.load_state_dict(first)
        config = replace(base.with_options(**read(text)), max_seconds=args.seconds)
        outcome = fit(BackboneTask(module, config, validation=held_out), clips, config, args.work / text, quiet=True)
        std = json.loads((args.work / text / "log.jsonl").read_text().splitlines()[-2]).get("latent_std")
        rate = outcome.step * config.batch / args.seconds
        records.append({"settings": text, "steps": outcome.step, "psnr": outcome.best_psnr, "clips_per_second": rate})
        print(json.dumps({**records[-1], "latent_std": std}), flush=True)
    args.out.write_text(json.dumps({"loading_ms": loading, "seconds": args.seconds, "runs": records}, indent=2))


def read(text: str) -> dict[str, object]:
    """`optimizer=muon,lr=1e-3` to keyword arguments."""
    found: dict[str, object] = {}
    for part in text.split(","):
        name, value = part.split("=")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def time_loading(clips, config, device: str) -> float:  # type: ignore[no-untyped-def]
    sampler = Sampler(clips.entries, config.clips, weights=clips.weights)
    for step in range(22):
        if step == 2:
            began = time.monotonic()
        torch.stack([clips.cut(d) for d in sampler.step(step, config.batch)])
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.monotonic() - began) * 50


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="+")
    parser.add_argument("--clips", type=Path, action="append", required=True)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/ablate"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dav1d", default="dav1d")
    parser.add_argument("--limit", type=int)
    parser.set_defaults(photos=None, photo_share=0.1, tiny=False)
    return parser.parse_args()


if __name__ == "__main__":
    main()
