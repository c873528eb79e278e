# SPDX-License-Identifier: Apache-2.0
"""How time grows: with frames, pixels, batch, streams in step, cells kept, and a data set's workers and nodes.

    python benchmarks/growth.py --out growth.json --plot growth.png           # about 15 minutes on two idle cores
    python benchmarks/growth.py --out growth.json --small                     # the same code on tiny sizes, a minute
    python benchmarks/growth.py --out growth.json --parts keep                # one of them
    python benchmarks/growth.py --out growth.json --parts nodes --nodes 1 2   # simulated Ray nodes, one core each

Every point is on disk as soon as it is measured, and a record that is there is added to: points it has are not measured
again. Where other work runs beside, compare `cpu_ms` and `cpu_seconds`, not wall times; `load_average` says so.

`workers` and `nodes` run whole `inlay tokenize` jobs; `same` is whether they wrote the bytes that one worker wrote. The
model of what limits a larger job takes two numbers from one worker: processor seconds of a video in the worker, and in
the process that hands out work and keeps records. n workers of one core make at most n / worker videos a second, and
all of them together at most 1 / main.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from plot_growth import draw
from speed_stages import Setup, grown
from tokenize_rate import Marks

from inlay.codec import Decoder, Encoder
from inlay.files import write_atomic
from inlay.masking import MaskConfig, keep_mask, keep_rate_of
from inlay.research.bench.run import with_lit
from inlay.research.bench.stages import tau_for
from inlay.research.bench.timing import timed
from inlay.scale import RunConfig, TokenizeConfig, tokenize
from inlay.tokenizer import Tokenizer
from inlay.video import synthetic, write_video

KEEPS = (1.0, 0.9, 0.6, 0.32, 0.2, 0.15)
STREAMS = (1, 2, 4, 8)
NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}


class Record(dict[str, Any]):
    """Points by part, on disk whenever one is added."""

    def __init__(self, path: Path, head: dict[str, Any]) -> None:
        super().__init__(json.loads(path.read_text()) if path.is_file() else {})
        self.path = path
        self.update(head)

    def add(self, part: str, name: str, measure: Callable[[], dict[str, Any]]) -> None:
        if name in self.setdefault(part, {}):
            return
        began = time.perf_counter()
        self[part][name] = measure() | {"load_average": round(os.getloadavg()[0], 1)}
        write_atomic(self.path, (json.dumps(self, indent=1) + "\n").encode())
        sys.stderr.write(f"{part} {name}: {time.perf_counter() - began:.0f} s\n")


def measure_networks(a: argparse.Namespace, record: Record) -> None:
    """Frames, pixels and batch, one of them at a time, with random weights: time does not depend on them."""
    s = Setup(device=torch.device(a.device), small=a.small, repeats=a.repeats, until=time.monotonic() + 1e6)
    base, frames = ((16, 16), 5) if a.small else ((256, 256), 33)
    sizes = [(24, 24)] if a.small else [(128, 128), (192, 192), (384, 384), (480, 848), (720, 1280)]
    lengths, batches = ((9,), (2,)) if a.small else ((9, 17, 65, 129), (2, 4, 8))
    points = [(1, frames, base), *((1, t, base) for t in lengths), *((b, frames, base) for b in batches)]
    for batch, length, size in [*points, *((1, frames, size) for size in sizes)]:
        name = f"{batch}x{length}x{size[0]}x{size[1]}"
        record.add("networks", name, lambda b=batch, t=length, hw=size: grown(s, b, t, hw))


def measure_streams(a: argparse.Namespace, record: Record) -> None:
    """A chunk of each of n streams, encoded and decoded in step."""
    tokenizer = load(a)
    side, frames = (32, 9) if a.small else (256, 33)
    for n in STREAMS[: 2 if a.small else None]:
        clips = [synthetic.demo_clip(frames, side, side, seed=i) for i in range(n)]
        record.add("streams", str(n), lambda n=n, clips=clips: streams_row(a, tokenizer, clips, n))


def streams_row(a: argparse.Namespace, tokenizer: Tokenizer, clips: list[Any], n: int) -> dict[str, Any]:
    def encode() -> list[list[Any]]:
        encoder = Encoder(tokenizer, tau=a.tau, streams=n)
        pushed, rest = encoder.push_all(clips), encoder.flush_all()
        return [[*first, *last] for first, last in zip(pushed, rest, strict=True)]

    chunks = [own[0] for own in encode()]
    device = tokenizer.device
    return {
        "streams": n,
        "encode": timed(encode, device, repeats=a.repeats, warmup=1),
        "decode": timed(lambda: Decoder(tokenizer, streams=n).push_all(chunks), device, repeats=a.repeats, warmup=1),
    }


def measure_keep(a: argparse.Namespace, record: Record) -> None:
    """Fill and decode of one clip against the share of cells that is kept."""
    tokenizer = load(a)
    side, frames = (32, 9) if a.small else (256, 33)
    clip = synthetic.demo_clip(frames, side, side)
    z = tokenizer.encode_pixels(tokenizer.pixels([clip])).float()
    for share in KEEPS:
        record.add("keep", str(share), lambda share=share: keep_row(a, tokenizer, z, share))


def keep_row(a: argparse.Namespace, tokenizer: Tokenizer, z: torch.Tensor, share: float) -> dict[str, Any]:
    tau = 0.0 if share == 1 else tau_for(z, share)
    keep = keep_mask(z, MaskConfig(tau=tau))
    sparse = z * keep[:, None]
    made: dict[str, Any] = {"keep_rate": keep_rate_of(keep), "tau": tau}
    for fill in ("lit", "hold"):
        dense = tokenizer.fill_cells(sparse, keep, tau, fill)
        made[fill] = {
            "fill": timed(
                lambda f=fill: tokenizer.fill_cells(sparse, keep, tau, f), z.device, repeats=a.repeats, warmup=1
            ),
            "decode": timed(lambda d=dense: tokenizer.decode_latents(d), z.device, repeats=a.repeats, warmup=1),
        }
    return made


def measure_workers(a: argparse.Namespace, record: Record) -> None:
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="inlay-growth-") as folder:
        source = videos(a, Path(folder) / "videos")
        for n in a.workers or sorted({1, *(2**i for i in range(1, 7) if 2**i < cores), cores}):
            record.add("workers", str(n), lambda n=n: job_row(a, source, Path(folder), RunConfig(workers=n, threads=1)))
    one = record["workers"].get("1")
    if one:
        record["model"] = model_of(one)
        write_atomic(record.path, (json.dumps(record, indent=1) + "\n").encode())


def measure_nodes(a: argparse.Namespace, record: Record) -> None:
    """Ray nodes of one core each on this machine: what they write is compared, their speed is not theirs."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="inlay-growth-") as folder:
        source = videos(a, Path(folder) / "videos")
        for n in a.nodes:
            cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
            for _ in range(n - 1):
                cluster.add_node(**NODE)
            run = RunConfig(engine="ray", address=cluster.address, threads=1)
            try:
                record.add("nodes", str(n), lambda run=run: job_row(a, source, Path(folder), run))
            finally:
                ray.shutdown()
                cluster.shutdown()


def videos(a: argparse.Namespace, folder: Path) -> Path:
    folder.mkdir()
    side, count = (32, 12) if a.small else (128, a.videos)
    for n in range(count):
        write_video(synthetic.demo_clip(9 if a.small else 33, side, side, seed=n), folder / f"{n:05d}.mp4")
    return folder


def job_row(a: argparse.Namespace, source: Path, folder: Path, run: RunConfig) -> dict[str, Any]:
    """One job, and whether it wrote what one local worker writes."""
    config = TokenizeConfig(backbone=backbone_of(a), weights=a.weights, tau=a.tau, shard_videos=4, device="cpu")
    plain = folder / "plain"
    if not plain.exists():
        tokenize(str(source), str(plain), config, RunConfig(workers=1, threads=1))
    out = Path(tempfile.mkdtemp(dir=folder)) / "out"
    marks = Marks()
    began, own = time.perf_counter(), time.process_time()
    done = tokenize(str(source), str(out), config, run, watch=marks.watch)
    seconds, own = time.perf_counter() - began, time.process_time() - own
    (start, first, cpu_first), (end, last, cpu_last) = marks.ends
    whole = (cpu_last - cpu_first) / (last - first)
    return {
        "videos": done.videos_now,
        "videos_per_second": done.videos_now / seconds,
        "steady": (last - first) / (end - start),
        "cpu_seconds": whole,
        "main_cpu_seconds": own / done.videos_now,
        "same": files_of(out) == files_of(plain),
    }


def files_of(folder: Path) -> dict[str, bytes]:
    """What a job is for: the shards and what tells of their contents. Reports hold times."""
    found = [*(folder / "shards").rglob("*"), folder / "manifest.jsonl", folder / "dataset.json"]
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(found) if p.is_file()}


def model_of(one: dict[str, Any]) -> dict[str, Any]:
    """What limits more workers: their own time, or the one process that all of them wait for."""
    main = one["main_cpu_seconds"]
    worker = max(one["cpu_seconds"] - main, 1e-9)
    return {
        "worker_cpu_seconds": worker,
        "main_cpu_seconds": main,
        "videos_per_second": {str(n): min(n / worker, 1 / main) for n in (1, 2, 4, 8, 16, 64, 256, 1024)},
        "workers_that_main_can_feed": worker / main,
    }


def load(a: argparse.Namespace) -> Tokenizer:
    return with_lit(Tokenizer.from_pretrained(backbone_of(a), weights=a.weights, device=a.device))


def backbone_of(a: argparse.Namespace) -> str:
    return "mini-untrained" if a.small else "mini"


PARTS: dict[str, Callable[[argparse.Namespace, Record], None]] = {
    "networks": measure_networks,
    "streams": measure_streams,
    "keep": measure_keep,
    "workers": measure_workers,
    "nodes": measure_nodes,
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["networks", "streams", "keep", "workers"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--weights", help="of mini, in place of those that ship")
    parser.add_argument("--tau", type=float, default=0.3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--videos", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="+")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--small", action="store_true")
    a = parser.parse_args(argv)
    device = torch.cuda.get_device_name() if a.device == "cuda" else platform.processor() or platform.machine()
    record = Record(a.out, {
        "command": " ".join(["python benchmarks/growth.py", *(Path(word).name for word in argv or sys.argv[1:])]),
        "device": device,
        "cores": len(os.sched_getaffinity(0)), "threads": torch.get_num_threads(), "torch": torch.__version__,
    })  # fmt: skip
    for part in a.parts:
        PARTS[part](a, record)
    if a.plot:
        draw(record, f"mini and its LIT on {device}", a.plot)


if __name__ == "__main__":
    main()
