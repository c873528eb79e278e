# SPDX-License-Identifier: Apache-2.0
"""What a training step waits for: kernels by time, and milliseconds by part, as one JSON object.

    python benchmarks/train_profile.py backbone --clips CLIPS --run UNUSED --out benchmarks/train_profile_h200.json

Takes the stages and options of `recipes/mini.py`; nothing is kept of the steps it trains.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "recipes"))
sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import mini as recipe

from inlay.train.data import Loader
from inlay.train.loop import Training, matmul_precision
from inlay.train.optim import rate_at
from inlay.train.processes import join_processes
from inlay.train.rundir import RunDir
from inlay.train.sampler import Sampler

WARM, COUNTED = 20, 10  # a recorded step is settled after the first dozen


def main() -> None:
    out = sys.argv.pop(sys.argv.index("--out") + 1)
    sys.argv.remove("--out")
    args = recipe.parse()
    config = recipe.settings(args)
    clips, held_out = recipe.load_clips(args)
    task = recipe.TASKS[args.stage](args, config, held_out)
    training = Training(task, config, RunDir(Path("unused")), join_processes(args.device))
    if config.compile:
        task.compile()
    sampler = Sampler(clips.entries, config.clips, seed=config.seed, weights=clips.weights)
    batches = Loader(clips, lambda step: sampler.step(step, config.batch), device=args.device).batches(0, 10**6)
    rate = rate_at(config.optim, step=10**4, progress=0.0)
    torch.backends.cudnn.benchmark = True
    with matmul_precision(config.precision):
        for _ in range(WARM):
            training.take_step(next(batches), rate)
        record = {"machine": machine(args.device), "batch": config.batch, "parts_ms": parts(training, batches, rate)}
        record["whole_ms"] = timed(lambda: training.take_step(next(batches), rate), args.device)
        record["kernels"] = kernels(lambda: training.take_step(next(batches), rate), args.device)
    Path(out).write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


def parts(training: Training, batches: Any, rate: float) -> dict[str, float]:
    """Each part alone, waited for: their sum is more than the whole, which overlaps them."""
    device = str(training.device)
    batch = next(batches)

    def forward() -> None:
        training.task.loss(training.task.inputs(batch))

    def both() -> None:
        training.task.loss(training.task.inputs(batch)).total.backward()
        for p in training.module.parameters():
            p.grad = None

    def update() -> None:
        for p in training.module.parameters():
            p.grad = torch.ones_like(p)
        for optimizer in training.optimizers:
            optimizer.step()

    return {
        "cut the clips": timed(lambda: next(batches), device),
        "forward": timed(forward, device),
        "forward and backward": timed(both, device),
        "optimiser (with made-up gradients)": timed(update, device),
    }


def timed(call: Callable[[], Any], device: str) -> float:
    spans = []
    for _ in range(COUNTED):
        wait(device)
        begin = time.perf_counter()
        call()
        wait(device)
        spans.append((time.perf_counter() - begin) * 1e3)
    return median(spans)


def kernels(call: Callable[[], Any], device: str) -> list[dict[str, Any]]:
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.startswith("cuda") else [])]
    with profile(activities=kinds) as seen:
        for _ in range(3):
            call()
        wait(device)
    key = "self_device_time_total" if device.startswith("cuda") else "self_cpu_time_total"
    rows = sorted(seen.key_averages(), key=lambda e: -getattr(e, key))[:40]
    return [{"name": e.key[:100], "ms_a_step": getattr(e, key) / 3e3, "calls": e.count // 3} for e in rows]


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def machine(device: str) -> str:
    name = torch.cuda.get_device_name() if device.startswith("cuda") else "CPU"
    return f"{name}, torch {torch.__version__}"


if __name__ == "__main__":
    main()
