# SPDX-License-Identifier: Apache-2.0
"""Memory of an `inlay tokenize` job by how many videos it has done: the job and its workers, proportional set size.

    python benchmarks/tokenize_memory.py [--count 2000] [--engine local] [--workers 2] [--out FILE]

The videos are small and many (5 frames at 32x32, the untrained backbone), so that whatever grows with their number
shows. `growth_mib` is the last tenth of the samples against the second, in medians: the first fills caches.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil

from inlay.scale import RunConfig, TokenizeConfig, TokenizeProgress, tokenize
from inlay.video import synthetic, write_video

SAMPLES = 100


def main() -> None:
    args = parse()
    samples: list[tuple[int, int, int]] = []  # videos done, MiB of the job, MiB of its workers

    def watch(progress: TokenizeProgress) -> None:
        if progress.done >= (samples[-1][0] if samples else 0) + max(args.count // SAMPLES, 1):
            samples.append((progress.done, *used_mib()))

    with tempfile.TemporaryDirectory(prefix="inlay-memory-") as folder:
        source = fill(Path(folder) / "videos", args.count)
        config = TokenizeConfig(backbone="mini-untrained", tau=0.1)
        began = time.perf_counter()
        outcome = tokenize(
            str(source),
            str(Path(folder) / "out"),
            config,
            RunConfig(engine=args.engine, workers=args.workers),
            watch=watch,
        )
        seconds = time.perf_counter() - began
    tenth = len(samples) // 10
    growth = {
        name: median(s[place] for s in samples[-tenth:]) - median(s[place] for s in samples[tenth : 2 * tenth])
        for place, name in ((1, "job"), (2, "workers"))
    }
    record = {
        "command": f"python benchmarks/tokenize_memory.py {' '.join(sys.argv[1:])}".strip(),
        "engine": args.engine,
        "workers": args.workers,
        "videos": outcome.videos_now,
        "seconds": round(seconds, 1),
        "growth_mib": growth,
        "columns": ["videos done", "MiB of the job", "MiB of its workers together"],
        "memory": samples,
    }
    print(json.dumps({name: value for name, value in record.items() if name != "memory"}))
    if args.out:
        lines = json.dumps(record | {"memory": None}, indent=1).replace(
            '"memory": null', '"memory": [\n' + ",\n".join(f"  {json.dumps(s)}" for s in samples) + "\n ]"
        )
        args.out.write_text(lines + "\n")


def fill(folder: Path, count: int) -> Path:
    folder.mkdir()
    first = write_video(synthetic.demo_clip(5, 32, 32), folder / "00000.mp4")
    for n in range(1, count):
        shutil.copyfile(first, folder / f"{n:05d}.mp4")
    return folder


def used_mib() -> tuple[int, int]:
    own = psutil.Process()
    below = 0
    for process in own.children(recursive=True):
        try:
            below += process.memory_full_info().pss
        except psutil.Error:  # gone meanwhile
            continue
    return own.memory_full_info().pss >> 20, below >> 20


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
