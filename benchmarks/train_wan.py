# SPDX-License-Identifier: Apache-2.0
"""Time and memory of `inlay train lit --backbone wan-2.1` on one GPU, with random weights; writes one JSON object.

    python benchmarks/train_wan.py --out benchmarks/train_wan_h200.json [--seconds 60]

Steps of the preset `plus` (16 clips of 33 frames) on noise: encode, mask, fill, decode, gradients through the decoder,
one update. Reading videos, validation and checkpoints are left out. Each case is a size of the crop and a number of
parts that a step is cut into (`--accumulate`); one that does not fit is recorded with its error. After `--seconds` no
case is begun; the record names those left out. `--device cpu --tiny` only shows that it runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import platform
import shlex
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from bench_wan import CONFIGS, made

from inlay.fill import Lit, plus
from inlay.train.config import TrainConfig
from inlay.train.data import Batch
from inlay.train.loop import Training, matmul_precision
from inlay.train.presets import plus_training, smoke_training
from inlay.train.processes import join_processes
from inlay.train.rundir import RunDir
from inlay.train.sampler import Draw
from inlay.train.tasks import LitTask


def settings(size: int, parts: int, a: argparse.Namespace) -> TrainConfig:
    config = smoke_training() if a.tiny else plus_training()
    return replace(config, accumulate=parts, clips=replace(config.clips, size=size))


def measure(name: str, config: TrainConfig, a: argparse.Namespace, folder: Path) -> dict[str, Any]:
    device = torch.device(a.device)
    backbone = made(name, a).float()  # as it is loaded; the step itself runs in the preset's precision
    torch.manual_seed(0)
    lit = Lit.build(replace(plus(), channels=backbone.spec.channels)).to(device)
    task = LitTask(lit, backbone, config)
    training = Training(task, config, RunDir(folder), join_processes(device))
    training.begin(None)
    clips = config.clips
    draws = tuple(Draw(clip=0, start=0, frames=clips.frames, size=clips.size, level=i / config.batch)
                  for i in range(config.batch))  # fmt: skip
    pixels = torch.rand(config.batch, 3, clips.frames, clips.size, clips.size, device=device).mul_(2).sub_(1)
    seconds = []
    with matmul_precision(config.precision):
        for _ in range(1 + a.steps):  # the first one warms up
            if device.type == "cuda":
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            begin = time.perf_counter()
            terms = training.take_step(Batch(pixels=pixels, draws=draws), config.optim.lr)
            loss = terms["loss"].item()  # waits
            seconds.append(time.perf_counter() - begin)
    found = {"seconds_a_step": min(seconds[1:]), "first_step_seconds": seconds[0], "finite": math.isfinite(loss)}
    if device.type == "cuda":
        found["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["wan-2.1"], choices=list(CONFIGS))
    parser.add_argument(
        "--cases", nargs="+", default=["192/8", "192/4", "128/4", "192/2"], help="size / parts of a step"
    )
    parser.add_argument("--steps", type=int, default=2, help="timed, after one to warm up; the quickest counts")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after so many no case is begun")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="a hundredth of the network, to see that all is in place")
    parser.add_argument("--out", type=Path, default=None)
    words = sys.argv[1:]
    a = parser.parse_args(words)
    if a.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("this measures a GPU, and there is none")
    told = ["FILE" if word == str(a.out) else word for word in words]
    record: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/train_wan.py", *told]),
        "device": torch.cuda.get_device_name() if a.device == "cuda" else platform.machine(),
        "torch": torch.__version__, "tiny": a.tiny, "rows": [],
        "left_out": [f"{name} {case}" for name in a.models for case in a.cases],
    }  # fmt: skip
    begin = time.perf_counter()
    for name, case in ((name, case) for name in a.models for case in a.cases):
        if time.perf_counter() - begin > a.seconds:
            break
        size, parts = map(int, case.split("/"))
        config = settings(size, parts, a)
        row: dict[str, Any] = {"model": name, "size": size, "accumulate": parts, "batch": config.batch,
                               "frames": config.clips.frames, "precision": config.precision}  # fmt: skip
        try:
            with tempfile.TemporaryDirectory() as folder:
                row |= measure(name, config, a, Path(folder))
        except Exception as error:  # the other cases are worth their numbers all the same
            row["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
        gc.collect()
        if a.device == "cuda":
            torch.cuda.empty_cache()
        record["rows"].append(row)
        record["left_out"].pop(0)
        print(row, flush=True)
        if a.out:  # after every case, so that a run cut short leaves what it found
            a.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
