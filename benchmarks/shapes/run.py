# SPDX-License-Identifier: Apache-2.0
"""Short training runs with one thing changed, one after the other on one GPU: shapes of a backbone for motion.

    python benchmarks/shapes/run.py PLAN.json --clips CLIPS --photos PHOTOS --test TEST --out OUT

**Clips.** `python recipes/mini.py clips VIDEOS CLIPS` makes .ivf files of a folder of AV1 videos, once, where PyAV is;
the `dav1d` program decodes them here (--dav1d names it). TEST holds a folder of .ivf files for each set to measure on
(TEST/davis, TEST/bench), made the same way. Never trained on: what lies in TEST, and what recipes/mini.py holds out,
one clip in 24 by name; the latter are measured as the set `held` unless TEST has a folder of that name. PHOTOS is a
folder of photographs for clips of things moving over one another (compose.py). --clips and --photos may be named more
than once. The recorded runs (benchmarks/shapes_h200_2026-11-16.json) had the first 49 frames of 410 clips, 272
photographs, and the sets davis, bench, held and heldnew (held-out clips of an older and a newer collection).

**Plans.** A list of runs; what a run does not say is in DEFAULTS.

    explore.json    the recorded runs: A, deep, align, finish, deep2 (shapes of frames.py), plain-data, M, Mg (`mini`)
    continue.json   the deep shape further, with the noise of a quantiser on latents: begins from deep2
    hybrid.json     `mini` with stages for single frames (hybrid.py): begins from `mini` as shipped

--only A,deep takes some runs of a plan. --deadline ends training that many seconds after the start; measuring and
saving come after it.

**What it leaves.** OUT/results-TAG.json: of each run its settings, PSNR of every set (also with latents rounded to a
quarter of their deviation: q4; and of the fastest third of its clips: fast), PSNR of every clip, the log.
STATE/NAME.safetensors (OUT/state unless --state is given): averaged weights, float32. For runs with "export":
OUT/NAME.0.safetensors, OUT/NAME.1.safetensors, ...: the same as fp16, in files below 16 MB with the network's config.

**Going on.** "init" names the weights a run begins from: NAME.safetensors or the parts NAME.0.safetensors, ..., looked
for in STATE, in every --weights folder and among those of the package ("mini"). What fits by name and shape is taken,
the rest begins new, and the old waits a little for it ("old_from", "old_full": steps). So, with what an earlier call
has exported in FOLDER:

    python benchmarks/shapes/run.py benchmarks/shapes/continue.json --weights FOLDER --clips ... --out NEXT

A rehearsal on a CPU, four steps a run with narrow networks on small clips: --tiny --limit 3.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import math
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))  # runs from a checkout, nothing installed

from clips import Clips, TestSet, find_clips, is_held_out, test_set
from fit import Run, fit
from frames import Frames, FramesConfig
from hybrid import Hybrid, HybridConfig

import inlay
from inlay.backbones import Mini, MiniConfig
from inlay.errors import MissingError, pick
from inlay.weightfile import load_weights, save_weights

NETS = {"mini": (Mini, MiniConfig), "frames": (Frames, FramesConfig), "hybrid": (Hybrid, HybridConfig)}
DEFAULTS: Run = {
    "net": "frames",  # one of NETS
    "cfg": {},  # its shape, where it is not the usual one
    "init": "",  # weights to begin from
    "seconds": 80.0,  # of training, counted from when compilation is done
    "steps": 10**9,  # at most; 0: measure only
    "lr": 1.5e-3,
    "min_lr": 1e-5,
    "warmup": 100,  # steps
    "hold": 0.25,  # share of the time before the rate begins to fall
    "old_from": 100,  # the step at which weights begun from start to move, where there are new ones as well
    "old_full": 500,  # and from which on they move like the others
    "batch": 16,
    "frames": 17,
    "size": 192,
    "seed": 0,
    "ema": 0.998,  # a step
    "weight_decay": 0.01,
    "noise": 0.05,  # on latents
    "quantiser": 0.0,  # more noise: that of rounding with a step of up to so many deviations
    "latent_size": 3e-3,  # weight of the latents' mean square
    "data": {},  # fields of clips.Mixture
    "export": False,
}
TINY: Run = {"batch": 4, "frames": 9, "size": 64, "seconds": 600.0, "steps": 4}
TINY_WIDTHS = {"encoder_fine": 16, "encoder_coarse": 32, "decoder_coarse": 32, "decoder_fine": 16}
PART_BYTES = 15.5e6  # of a file of exported weights: copied where large files cannot be
AFTERWARDS = 20.0  # seconds: with less than this before the deadline no run is begun
BEGAN = time.monotonic()


def main() -> None:
    args = parse()
    device = set_up()
    plan = [DEFAULTS | r for r in json.loads(args.plan.read_text(encoding="utf-8"))]
    if args.tiny:
        plan = [r | TINY | {"cfg": r["cfg"] | TINY_WIDTHS} if r["steps"] else r for r in plan]
    if args.only:
        plan = [r for r in plan if r["name"] in args.only.split(",")]
    args.out.mkdir(parents=True, exist_ok=True)
    clips, tests = load(args, device)
    rows: list[dict[str, Any]] = []
    for run in plan:
        if elapsed() > args.deadline - AFTERWARDS:
            say(f"{run['name']}: no time left")
            break
        try:
            rows.append(train(run, clips, tests, args, device))
        except Exception as error:  # one run's failure must not cost the others
            traceback.print_exc()
            rows.append({"name": run["name"], "failed": f"{type(error).__name__}: {error}", "run": run})
        (args.out / f"results-{args.tag}.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        say(json.dumps({k: v for k, v in rows[-1].items() if k not in ("measure", "log", "run")}))
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    show(rows, list(tests))
    sys.exit(any("failed" in r for r in rows))


def set_up() -> str:
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch._dynamo.config.recompile_limit = 64  # block by block and run by run there are many shapes
    if not torch.cuda.is_available():
        return "cpu"
    torch.cuda.set_stream(torch.cuda.Stream())  # no step can be recorded on the default one
    return "cuda"


def load(args: argparse.Namespace, device: str) -> tuple[Clips, dict[str, TestSet]]:
    """The clips to train on, and the sets to measure on by name."""
    sets = {d.name: find_clips([d]) for d in sorted(args.test.iterdir()) if d.is_dir()}
    tested = {p.stem for paths in sets.values() for p in paths}
    found = [p for p in find_clips(args.clips) if p.stem not in tested]
    held = [p for p in found if is_held_out(p)]
    if held:
        sets.setdefault("held", held)
    kept = [p for p in found if p not in held][: args.limit]
    clips = Clips(kept, args.photos, device=device, dav1d=args.dav1d, limit=args.limit)
    frames, size = (9, 64) if args.tiny else (33, 256)
    tests = {
        name: test_set(paths[: args.limit], device=device, dav1d=args.dav1d, frames=frames, size=size)
        for name, paths in sets.items()
    }
    say("measured on " + ", ".join(f"{name} ({len(names)} clips)" for name, (names, _) in tests.items()))
    return clips, tests


def train(run: Run, clips: Clips, tests: dict[str, TestSet], args: argparse.Namespace, device: str) -> dict[str, Any]:
    """One run: a network begun, trained, measured with its averaged weights, and saved; returns its row."""
    began = time.monotonic()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(run["seed"])
    network, config = pick("network", run["net"], NETS)
    net = network(config(**run["cfg"]))
    net.weight_hash = "in training"
    old = begin(net, run["init"], [args.state, *args.weights, Path(inlay.__file__).parent / "weights"])
    net = net.to(device).to(memory_format=torch.channels_last).train()
    ema = copy.deepcopy(net).requires_grad_(False)
    row: dict[str, Any] = {"name": run["name"], "steps": 0, "parameters": sum(p.numel() for p in net.parameters())}
    if run["steps"]:
        row |= fit(net, ema, run, clips, old, BEGAN + args.deadline, device)
    found = measure(ema, tests)
    row |= brief(found) | {"measure": found, "run": run}
    if run["steps"]:
        about = {"config": asdict(net.config), "net": run["net"], "steps": row["steps"], **brief(found)}
        save_weights(args.state / f"{run['name']}.safetensors", ema.state_dict(), about, stored="fp32")
        if run["export"]:
            export(ema, args.out, run["name"], about)
    return row | {"wall": round(time.monotonic() - began, 1)}


def begin(net: nn.Module, name: str, folders: Sequence[Path]) -> set[str]:
    """Fills what fits by name and shape; returns the names that were filled."""
    if not name:
        return set()
    tensors, want = find_weights(name, folders), net.state_dict()
    fitting = {k: v for k, v in tensors.items() if k in want and v.shape == want[k].shape}
    net.load_state_dict(fitting, strict=False)
    filled, whole = (sum(v.numel() for v in part.values()) / 1e6 for part in (fitting, want))
    say(f"begins from {name}: {filled:.2f} M of {whole:.2f} M numbers")
    return set(fitting)


def find_weights(name: str, folders: Sequence[Path]) -> dict[str, Tensor]:
    """The tensors of the first weights of that name, whole or in parts."""
    for folder in folders:
        whole = folder / f"{name}.safetensors"
        paths = [whole] if whole.is_file() else list(folder.glob(f"{name}.[0-9]*.safetensors"))
        parts = [load_weights(p) for p in paths]
        if parts and len(parts) < parts[0].meta.get("of", 1):
            raise MissingError(
                f"{folder} has {len(parts)} of {parts[0].meta['of']} parts of {name}; copy the others too"
            )
        if parts:
            return {k: v for part in parts for k, v in part.tensors.items()}
    raise MissingError(f"no weights {name!r} in {', '.join(map(str, folders))}; name their folder with --weights")


@torch.no_grad()
def measure(net: nn.Module, tests: dict[str, TestSet]) -> dict[str, dict[str, Any]]:
    """PSNR of every clip (mean over frames), from latents as they are and rounded to a quarter of their deviation."""
    net.eval()
    out = {}
    with torch.compiler.set_stance("force_eager"):
        for name, (names, clips) in tests.items():
            plain, rounded, motion, std = [], [], [], []
            for u8 in clips.split(4):
                z = net.encode((u8.float() / 127.5 - 1).transpose(1, 2))
                step = z.std(dim=(0, 2, 3, 4), keepdim=True) / 4
                plain += psnr(u8, net.decode(z))
                rounded += psnr(u8, net.decode((z / step).round() * step))
                motion += u8.float().diff(dim=1).abs().mean(dim=(1, 2, 3, 4)).tolist()
                std.append(z.std().item())
            fast = np.argsort(motion)[-max(1, len(motion) // 3) :]
            out[name] = {
                "psnr": float(np.mean(plain)),
                "clips": dict(zip(names, plain, strict=True)),
                "latent_std": float(np.mean(std)),
                "psnr_quarter_step": float(np.mean(rounded)),
                "fast_third": float(np.mean([plain[k] for k in fast])),
            }
    return out


def psnr(u8_BTCHW: Tensor, x_hat_BCTHW: Tensor) -> list[float]:
    y = ((x_hat_BCTHW.float().clamp(-1, 1) + 1) * 127.5).round().transpose(1, 2)
    mse = (y - u8_BTCHW.float()).square().flatten(2).mean(2).double()
    return (10 * (255**2 / mse.clamp_min(1e-9)).log10()).clamp(max=100).mean(1).tolist()


def brief(found: dict[str, dict[str, Any]]) -> dict[str, float]:
    kinds = {"": "psnr", "_q4": "psnr_quarter_step", "_fast": "fast_third"}
    return {name + short: round(of[kind], 3) for name, of in found.items() for short, kind in kinds.items()}


def export(ema: nn.Module, out: Path, name: str, about: dict[str, Any]) -> None:
    """The averaged weights as fp16, in files of a limited size; `find_weights` reads them together."""
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    for key, tensor in ema.state_dict().items():
        if size + tensor.numel() * 2 > PART_BYTES:
            parts.append({})
            size = 0
        parts[-1][key] = tensor
        size += tensor.numel() * 2
    for i, part in enumerate(parts):
        meta = about | {"part": i, "of": len(parts)}
        save_weights(out / f"{name}.{i}.safetensors", part, meta, stored="fp16")


def show(rows: Sequence[dict[str, Any]], sets: Sequence[str]) -> None:
    columns = ["steps", "ms", *(name + kind for name in sets for kind in ("", "_q4", "_fast"))]
    print("\n" + " ".join(f"{c:>12}" for c in ["name", *columns]))
    for row in rows:
        print(" ".join(f"{row.get(c, '-'):>12}" for c in ["name", *columns]), flush=True)


def elapsed() -> float:
    return time.monotonic() - BEGAN


def say(text: str) -> None:
    print(f"[{elapsed():7.1f}] {text}", flush=True)


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("plan", type=Path)
    p.add_argument("--clips", type=Path, action="append", required=True, help="a folder of .ivf files to train on")
    p.add_argument("--photos", type=Path, action="append", default=[], help="a folder of photographs")
    p.add_argument("--test", type=Path, required=True, help="a folder with a folder of .ivf files for each set")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--state", type=Path, help="where whole weights are kept (OUT/state)")
    p.add_argument("--weights", type=Path, action="append", default=[], help="a folder with weights to begin from")
    p.add_argument("--only", default="", help="names of runs, with commas between")
    p.add_argument("--tag", default="runs", help="results-TAG.json")
    p.add_argument("--deadline", type=float, default=math.inf, help="seconds after which training ends")
    p.add_argument("--dav1d", default="dav1d")
    p.add_argument("--limit", type=int, help="of clips a set, and of photographs")
    p.add_argument("--tiny", action="store_true", help="a rehearsal on a CPU")
    args = p.parse_args()
    args.state = args.state or args.out / "state"
    return args


if __name__ == "__main__":
    main()
