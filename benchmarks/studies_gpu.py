# SPDX-License-Identifier: Apache-2.0
"""Videos in, the records of the studies out, made on a GPU machine that has torch and little else (no PyAV, no typer).

    python benchmarks/studies_gpu.py clips   VIDEOS CLIPS     AV1 videos to .ivf, where PyAV is; nothing is re-encoded
    python benchmarks/studies_gpu.py arrays  CLIPS ARRAYS     .ivf to .npy of 256x256, by the `dav1d` program
    python benchmarks/studies_gpu.py run     --data-davis ARRAYS/davis --data-bench ARRAYS/bench --out RUN --pack FILE
    tar xzf FILE -C RUN && inlay study all --data-davis ... --data-bench ... --metrics paper --out RUN

`clips` leaves `clips.json`, which `arrays` copies: with it the clips keep the names they have as videos, and
`inlay study` on either finds the records and computes nothing twice. A run that stops (--seconds) goes on when it is
called again. Flow and figures are not made here: `inlay study` adds flicker and draws. TF32 is off, so that masks are
those of a CPU.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # runs from a checkout, nothing installed

from inlay.measure import MeasureConfig
from inlay.study.catalogue import chosen, run_all
from inlay.study.datasets import ORIGINS, ClipSpec, open_data
from inlay.study.evaluate import Bench
from inlay.study.readings import choose_metrics
from inlay.study.records import Store
from inlay.study.workspace import Workspace
from inlay.tokenizer import Tokenizer, pick_device
from inlay.train.ivf import PlanarVideo, decode_ivf, i420_to_rgb, remux_to_ivf


class OutOfTime(Exception):
    """The seconds given are spent; what was measured is stored."""


def make_clips(a: argparse.Namespace) -> None:
    sizes = {}
    for video in sorted(a.videos.glob("*.mp4")):
        remux_to_ivf(video, a.clips / f"{video.stem}.ivf")
        sizes[video.stem] = video.stat().st_size
    (a.clips / ORIGINS).write_text(json.dumps(sizes, indent=1) + "\n")
    print(f"{len(sizes)} clips in {a.clips}")


def make_arrays(a: argparse.Namespace) -> None:
    files = sorted(a.clips.glob("*.ivf"))
    a.arrays.mkdir(parents=True, exist_ok=True)
    for file, video in zip(files, decode_ivf(files, program=a.dav1d), strict=True):
        np.save(a.arrays / f"{file.stem}.npy", square(video, a.side))
    if (a.clips / ORIGINS).is_file():
        shutil.copyfile(a.clips / ORIGINS, a.arrays / ORIGINS)
    print(f"{len(files)} arrays in {a.arrays}")


def square(video: PlanarVideo, side: int) -> np.ndarray:
    """uint8 [T, side, side, 3]: resized to just cover the square where need be, then cut from the centre."""
    x_TCHW = i420_to_rgb(video.y, video.u, video.v, matrix=video.matrix)
    height, width = x_TCHW.shape[2:]
    short = min(height, width)
    if short != side:
        size = [max(side, round(n * side / short)) for n in (height, width)]
        x_TCHW = F.interpolate(x_TCHW, size=size, mode="bicubic", antialias=True).clamp(-1, 1)
        height, width = size
    top, left = (height - side) // 2, (width - side) // 2
    x_TCHW = x_TCHW[:, :, top : top + side, left : left + side]
    return ((x_TCHW + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def run(a: argparse.Namespace) -> None:
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    begin = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - begin:7.1f} s  {line}", flush=True)
        if time.monotonic() - begin > a.seconds:
            raise OutOfTime

    device = pick_device(a.device)
    tokenizer = Tokenizer.from_pretrained(a.backbone, weights=a.weights, fill=a.fill, device=str(device))
    places = {role: place for role, place in (("davis", a.data_davis), ("bench", a.data_bench)) if place is not None}
    spec = ClipSpec(frames=a.frames, size=a.side)
    work = Workspace(
        bench=Bench(tokenizer, tau=a.tau, measure=MeasureConfig(device=str(device))),
        store=Store(a.out),
        data={role: open_data(place, name=role, spec=spec, limit=a.limit) for role, place in places.items()},
        metrics=choose_metrics(a.metrics, str(device)),
        also=tuple(a.also),
        command=f"python benchmarks/studies_gpu.py {shlex.join(Path(w).name if '/' in w else w for w in sys.argv[1:])}",
        tell=tell,
    )
    names = [name for word in a.studies for name in chosen(word)]
    try:
        done, failed = run_all(work, names)
        print(f"done: {', '.join(done)}", *(f"not run: {name}: {why}" for name, why in failed.items()), sep="\n")
    except OutOfTime:
        print(f"stopped after {a.seconds:.0f} s; the same command goes on from here")
    finally:
        if a.pack is not None:
            pack(a.out, a.pack)


def pack(root: Path, target: Path) -> None:
    """All that resuming needs, as one file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:gz") as tar:
        for name in ("records", "matching", "sections", "tables"):
            if (root / name).is_dir():
                tar.add(root / name, arcname=name)
    print(f"{target}: {target.stat().st_size:,} bytes")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)
    clips = stages.add_parser("clips")
    clips.add_argument("videos", type=Path)
    clips.add_argument("clips", type=Path)
    arrays = stages.add_parser("arrays")
    arrays.add_argument("clips", type=Path)
    arrays.add_argument("arrays", type=Path)
    arrays.add_argument("--dav1d", default="dav1d")
    arrays.add_argument("--side", type=int, default=256)
    one = stages.add_parser("run")
    one.add_argument("studies", nargs="*", default=["all"])
    one.add_argument("--data-davis", type=Path)
    one.add_argument("--data-bench", type=Path)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--pack", type=Path, help="write the records as one .tar.gz, also when time runs out")
    one.add_argument("--backbone", default="mini")
    one.add_argument("--weights", type=Path)
    one.add_argument("--fill")
    one.add_argument("--also", action="append", default=[])
    one.add_argument("--tau", type=float)
    one.add_argument("--metrics", default="paper")
    one.add_argument("--frames", type=int, default=33)
    one.add_argument("--side", type=int, default=256)
    one.add_argument("--limit", type=int, default=0)
    one.add_argument("--device", default="auto")
    one.add_argument("--seconds", type=float, default=float("inf"), help="stop before the clip that begins after these")
    return parser.parse_args()


if __name__ == "__main__":
    args = parse()
    {"clips": make_clips, "arrays": make_arrays, "run": run}[args.stage](args)
