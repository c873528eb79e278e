# SPDX-License-Identifier: Apache-2.0
"""Videos a second of a whole `inlay tokenize` job against the bare encode loop on the same machine.

    python benchmarks/tokenize_rate.py [--videos DIR] [--count 256] [--engines local ray] [--out FILE]

There are two bare loops, both one process with all threads that goes from video to video, its start not counted:
`encode` opens, decodes and encodes, and keeps nothing; `write` also writes the token file, as `inlay encode` does. The
job does what `write` does, and hashes, sums up latents, makes shards, brings them to disk and writes records. Its
`videos_per_second` go from the first line of the command to the last, the start of its workers included; its `steady`
rate is that between a tenth and nine tenths of the videos. `cpu_seconds` are processor time for each video, of the job
in the same part of it and of all its processes: on a machine that others use too, these are the ones to compare.

Without --videos, clips of 33 frames at 128x128 are made; --count repeats what there is under other names. The defaults
take about five minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

from inlay.codec import Encoder
from inlay.container import TokenWriter
from inlay.scale import RunConfig, TokenizeConfig, TokenizeProgress, tokenize
from inlay.tokenizer import Tokenizer
from inlay.video import open_video, synthetic, write_video

MADE = 8  # different clips, where none are given


def main() -> None:
    args = parse()
    if args.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    with tempfile.TemporaryDirectory(prefix="inlay-rate-") as folder:
        source = fill(Path(folder) / "videos", args)
        load_before = os.getloadavg()[0]
        rows: list[dict[str, Any]] = []
        for turn in range(args.turns):
            loops = {name: bare(source, Path(folder) / "bare.inlay", args, write=name == "write") for name in LOOPS}
            for name, loop in loops.items():
                show({"bare": name, "turn": turn} | loop, rows)
            for engine in args.engines:
                made = job(source, Path(folder) / f"{engine}{turn}", engine, args)
                show({"engine": engine, "turn": turn} | made | ratios(made, loops), rows)
    record = {
        "command": f"python benchmarks/tokenize_rate.py {' '.join(sys.argv[1:])}".strip(),
        "backbone": args.backbone,
        "weight_hash": Tokenizer.from_pretrained(args.backbone).spec.weight_hash,
        "videos": args.count,
        "clips": str(args.videos.name) if args.videos else f"made, 33 frames at {args.side}x{args.side}",
        "cores": cores,
        "load_before": load_before,
        "rows": rows,
    }
    if args.out:
        args.out.write_text(json.dumps(record, indent=1) + "\n")


LOOPS = ("encode", "write")


def show(row: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    rows.append({name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()})
    print(json.dumps(rows[-1]), flush=True)


def ratios(made: dict[str, float], loops: dict[str, dict[str, float]]) -> dict[str, float]:
    """Of the job to each loop: the whole of it, its steady part, and the inverse of processor time."""
    found = {}
    for name, loop in loops.items():
        found[f"ratio_{name}"] = made["videos_per_second"] / loop["videos_per_second"]
        found[f"steady_ratio_{name}"] = made["steady"] / loop["videos_per_second"]
        found[f"cpu_ratio_{name}"] = loop["cpu_seconds"] / made["cpu_seconds"]
    return found


def fill(folder: Path, args: argparse.Namespace) -> Path:
    """`count` videos under different names."""
    folder.mkdir()
    if args.videos:
        originals = sorted(p for p in args.videos.iterdir() if p.suffix == ".mp4")
    else:
        originals = [
            write_video(synthetic.demo_clip(33, args.side, args.side, seed=n), folder.parent / f"made{n}.mp4")
            for n in range(MADE)
        ]
    for n in range(args.count):
        original = originals[n % len(originals)]
        shutil.copyfile(original, folder / f"{n:05d}{original.suffix}")
    return folder


def bare(source: Path, out: Path, args: argparse.Namespace, *, write: bool) -> dict[str, float]:
    """Videos a second, and seconds of processor time for each."""
    tokenizer = TokenizeConfig(backbone=args.backbone, tau=args.tau).load("cpu")
    paths = sorted(source.iterdir())
    encode_one(tokenizer, paths[0], out, args.tau, write=write)  # tables and caches are made with the first
    began, cpu = time.perf_counter(), time.process_time()
    for path in paths:
        encode_one(tokenizer, path, out, args.tau, write=write)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"videos_per_second": len(paths) / seconds, "cpu_seconds": cpu / len(paths)}


def encode_one(tokenizer: Tokenizer, path: Path, out: Path, tau: float, *, write: bool) -> None:
    encoder = Encoder(tokenizer, tau=tau)
    with open_video(path) as reader:
        chunks = list(encoder.encode(reader.chunks()))
    if write:
        with TokenWriter(out, info=chunks[0].info, recipe=chunks[0].recipe, force=True) as writer:
            for chunk in chunks:
                writer.append(chunk)


@dataclass
class Marks:
    """When how many videos were done, and at the two ends of the steady part, what processor time had been used."""

    at: list[tuple[float, int]] = field(default_factory=list)
    ends: list[tuple[float, int, float]] = field(default_factory=list)  # seconds, videos, processor seconds

    def watch(self, progress: TokenizeProgress) -> None:
        if not progress.done:
            return
        self.at.append((time.perf_counter(), progress.done))
        if progress.done >= progress.videos * (0.1, 0.9, 2.0)[len(self.ends)]:
            self.ends.append((*self.at[-1], cpu_seconds()))


def job(source: Path, out: Path, engine: str, args: argparse.Namespace) -> dict[str, float]:
    marks = Marks()
    config = TokenizeConfig(backbone=args.backbone, tau=args.tau)
    began = time.perf_counter()
    outcome = tokenize(str(source), str(out), config, RunConfig(engine=engine), watch=marks.watch)
    ended = time.perf_counter()
    (start, first, cpu_first), (end, last, cpu_last) = marks.ends
    return {
        "videos_per_second": outcome.videos_now / (ended - began),
        "steady": (last - first) / (end - start),
        "cpu_seconds": (cpu_last - cpu_first) / (last - first),
        "start_seconds": marks.at[0][0] - began,
        "end_seconds": ended - marks.at[-1][0],
    }


def cpu_seconds() -> float:
    """Of this process and all below it."""
    own, total = psutil.Process(), 0.0
    for process in [own, *own.children(recursive=True)]:
        try:
            used = process.cpu_times()
            total += used.user + used.system
        except psutil.Error:  # gone meanwhile
            continue
    return total


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=Path)
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--cores", type=int, default=0, help="use no more than so many; 0: all")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--engines", nargs="+", default=["local", "ray"])
    parser.add_argument("--backbone", default="mini")
    parser.add_argument("--tau", type=float, default=0.3)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
