# SPDX-License-Identifier: Apache-2.0
"""From video files to shards of tokens on a GPU, beside the network's own rate in the same run; which stage limits.

    python benchmarks/file_rate.py --out file_rate.json --clips FOLDER [--models mini cosmos] [--kinds ivf raw]

What is timed is the worker of `inlay tokenize`: decoding, copies to the GPU, network, mask, entropy coding, and the
shard on disk. The machine need not have PyAV: clips are AV1 in .ivf, decoded by the program `dav1d` (`$DAV1D`), or
their raw frames in .npy. Each row holds milliseconds a clip of 33 frames:

    network_ms      encode + mask of the same clips alone, as many in step, pixels on the device
    files_ms        from files to a shard, `helpers` processes decoding and packing beside the worker
    decode_core_ms  decoding alone, one core
    pack_core_ms    entropy coding alone, one core
    cores_ms        both of them spread over all cores: no run with files can be quicker
    limit           what takes longest by these numbers

`share_of_network` is network_ms / files_ms. Rows with `helpers` 0 have one process that does everything.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # runs from a checkout, nothing installed
sys.path.insert(0, str(Path(__file__).parent))

from clips_on_disk import RandomConfig, open_clip

from inlay.codec import EncodeConfig, Encoder
from inlay.container.chunk import pack_chunk
from inlay.masking import scan
from inlay.origin import commit
from inlay.research.bench.stages import tau_for
from inlay.scale.feed import decode_item
from inlay.scale.plan import Shard
from inlay.scale.sources import SourceItem
from inlay.scale.worker import Task, Worker
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video, join_videos

CLIP = 33
MODELS = {"mini": "mini", "mini-random": "mini-random", "cosmos": "cosmos-360p-random", "tiny": "mini-untrained"}
WARM_VIDEOS = 3  # times the batch: graphs are captured the second time that a shape is met


def main() -> None:
    args = parse()
    began = time.monotonic()
    record: dict[str, Any] = {
        "what": "from files to shards of tokens beside the network alone: milliseconds a clip of 33 frames",
        "command": f"python benchmarks/file_rate.py {' '.join(sys.argv[1:])}",
        "commit": commit(),
        "machine": f"{torch.cuda.get_device_name() if torch.cuda.is_available() else 'cpu'}, torch {torch.__version__}",
        "cores": len(os.sched_getaffinity(0)),
        "dtype": args.dtype,
        "batch": args.batch,
        "rows": [],
    }

    def show(row: dict[str, Any]) -> None:
        record["rows"].append(row)
        print(f"{time.monotonic() - began:6.1f} s {row}", flush=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n")

    with tempfile.TemporaryDirectory(prefix="inlay-files-") as folder:
        clips = {"ivf": sorted(args.clips.glob("*.ivf"))}
        clips["raw"] = sorted(args.clips.glob("*.npy")) or raw_clips(clips["ivf"], Path(folder))
        for model in args.models:
            measure(model, {kind: clips[kind] for kind in args.kinds}, Path(folder), args, show)


def measure(
    model: str, clips: dict[str, list[Path]], folder: Path, args: argparse.Namespace, show: Callable[..., None]
) -> None:
    """All rows of one network."""
    config, tokenizer, video = settled(model, clips, args)
    network = network_ms(tokenizer, video, config.tau or 0.0, args)
    cores = {kind: core_ms(tokenizer, paths[0], config) for kind, paths in clips.items()}
    del tokenizer
    for helpers in args.helpers:
        out = folder / f"{model}{helpers}"
        (out / "job").mkdir(parents=True)
        task = Task(
            out=str(out), config=config, device=args.device, threads=1, batch=args.batch, run="run",
            helpers=helpers, opens=open_clip,
        )  # fmt: skip
        worker = Worker(task)
        try:
            for number, (kind, paths) in enumerate(clips.items()):
                count = args.videos if helpers else max(args.videos // 8, 4 * args.batch)
                found = files_ms(worker, paths, count, number, args)
                row = {"model": model, "kind": kind, "helpers": helpers, "network_ms": network, **found, **cores[kind]}
                show(judged(row))
        finally:
            worker.close()


def settled(
    model: str, clips: dict[str, list[Path]], args: argparse.Namespace
) -> tuple[RandomConfig, Tokenizer, Video]:
    """Settings with the tau that keeps as much as asked for, the network, and a clip to measure it on."""
    config = RandomConfig(backbone=MODELS[model], device=args.device, dtype=args.dtype, tau=0.0, batch=args.batch)
    tokenizer = config.load()
    path = next(iter(clips.values()))[0]
    found = decode_item(item_of(path), config, open_clip)
    video = join_videos([piece for piece in found if isinstance(piece, Video)])
    z_BCTHW = tokenizer.encode_pixels(tokenizer.pixels([video[:CLIP]]))
    return replace(config, tau=tau_for(z_BCTHW, args.keep)), tokenizer, video


def network_ms(tokenizer: Tokenizer, video: Video, tau: float, args: argparse.Namespace) -> float:
    """Encode + mask of whole videos in step, chunk after chunk with carried state, all on the device."""
    ends = [*range(CLIP, len(video), CLIP - 1), len(video)]
    chunks = [video[a:b] for a, b in pairwise([0, *ends])]
    pixels = [tokenizer.pixels([part] * args.batch, continued=n > 0) for n, part in enumerate(chunks)]
    mask, best = EncodeConfig().mask(tau), float("inf")
    for _ in range(3 + args.repeats):
        synchronise()
        start = time.perf_counter()
        for _ in range(args.rounds):
            state, reference = None, None
            for x_BCTHW in pixels:
                z_BCTHW, state = tokenizer.encode_next(x_BCTHW, state)
                _, reference = scan(z_BCTHW, mask, reference)
        synchronise()
        best = min(best, time.perf_counter() - start)
    return 1000 * best * CLIP / (args.rounds * args.batch * len(video))


def core_ms(tokenizer: Tokenizer, path: Path, config: RandomConfig) -> dict[str, float]:
    """Decoding and packing of one clip in this process, one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    item = item_of(path)
    videos = [found for found in decode_item(item, config, open_clip) if isinstance(found, Video)]
    clips = sum(len(video) for video in videos) / CLIP
    tokens = list(Encoder(tokenizer, config.encode, tau=config.tau).encode(videos))
    best = {
        "decode_core_ms": least(lambda: list(decode_item(item, config, open_clip))),
        "pack_core_ms": least(lambda: [pack_chunk(part, 0, part.recipe) for part in tokens]),
    }
    torch.set_num_threads(threads)
    return {name: 1000 * seconds / clips for name, seconds in best.items()}


def least(call: Callable[[], object]) -> float:
    """Seconds, the best of five."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def files_ms(worker: Worker, paths: list[Path], count: int, number: int, args: argparse.Namespace) -> dict[str, Any]:
    """From files to a shard on disk, after another shard has warmed up everything."""
    shards = []
    for n, videos in enumerate((WARM_VIDEOS * args.batch, count)):
        items = tuple(item_of(paths[i % len(paths)]) for i in range(videos))
        shards.append(Shard(number=2 * number + n, first=0, items=items))
    worker.run(shards[0])
    synchronise()
    start = time.perf_counter()
    record = worker.run(shards[1])
    seconds = time.perf_counter() - start
    if record.refused:
        raise RuntimeError(record.refused[0]["reason"])
    frames = sum(video.frames for video in record.videos)
    kept = sum(video.tokens for video in record.videos) / sum(video.cells for video in record.videos)
    return {"videos": count, "frames": frames, "keep": kept, "files_ms": 1000 * seconds * CLIP / frames}


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """With what limits it, rounded."""
    cores = len(os.sched_getaffinity(0)) if row["helpers"] else 1
    decode, pack = row["decode_core_ms"] / cores, row["pack_core_ms"] / cores
    parts = {"network": row["network_ms"], "decoding on the cores": decode, "entropy coding on the cores": pack}
    bound = max(row["network_ms"], decode + pack)
    limit = "network" if bound == row["network_ms"] else max(parts, key=lambda name: parts[name] * (name != "network"))
    row |= {
        "cores_ms": decode + pack,
        "bound_ms": bound,
        "limit": limit,
        "share_of_network": row["network_ms"] / row["files_ms"],
        "share_of_bound": bound / row["files_ms"],
    }
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}


def raw_clips(paths: list[Path], folder: Path) -> list[Path]:
    """The frames of clips, as they are, in files of their own."""
    made = []
    for path in paths:
        found = decode_item(item_of(path), RandomConfig(), open_clip)
        frames = torch.cat([piece.frames for piece in found if isinstance(piece, Video)])
        made.append(folder / f"{path.stem}.npy")
        np.save(made[-1], frames.numpy())
    return made


def item_of(path: Path) -> SourceItem:
    return SourceItem(name=path.name, address=str(path))


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--clips", type=Path, required=True, help="a folder of .ivf, or of .npy")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["mini", "cosmos"])
    parser.add_argument("--kinds", nargs="+", choices=["ivf", "raw"], default=["raw", "ivf"])
    parser.add_argument("--helpers", type=int, nargs="+", default=[len(os.sched_getaffinity(0)), 0])
    parser.add_argument("--videos", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--keep", type=float, default=0.22)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
