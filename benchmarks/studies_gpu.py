# SPDX-License-Identifier: Apache-2.0
"""Make the records of the studies on a GPU machine that has torch and little else (no PyAV, no typer).

    python benchmarks/studies_gpu.py clips   VIDEOS CLIPS     AV1 videos to .ivf, where PyAV is; nothing is re-encoded
    python benchmarks/studies_gpu.py arrays  CLIPS ARRAYS     .ivf to .npy of 256x256, by the `dav1d` program
    python benchmarks/studies_gpu.py run     --data-davis ARRAYS/davis --data-bench ARRAYS/bench --out RUN --pack FILE
    tar xzf FILE -C RUN && inlay study all --data-davis ... --data-bench ... --metrics paper --out RUN
    python benchmarks/studies_gpu.py keep    RUN benchmarks/studies && inlay study docs --out RUN

`clips` leaves `clips.json`, which `arrays` copies: with it the clips keep the names they have as videos, and
`inlay study` on either finds the records and computes nothing twice. `run` makes records only; the tables and figures
are drawn by `inlay study`. Several processes (--jobs) share the GPU; seconds are measured while the others rest. A run
that stops (--seconds) goes on when it is called again. TF32 is off, so that masks are those of a CPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shlex
import shutil
import struct
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # runs from a checkout, nothing installed

from study_processes import PARTED, Crew, Order, tasks_of

from inlay.errors import InlayError
from inlay.research.recipe.ivf import PlanarVideo, decode_ivf, i420_to_rgb, remux_to_ivf
from inlay.research.studies.catalogue import STUDIES, chosen
from inlay.research.studies.datasets import ORIGINS, ClipSpec
from inlay.research.studies.workspace import Workspace

BEFORE = ("main", "ablation", "sweep", "fill-sweep", "main-matched", "streaming")  # by all processes, then by one:
ORDER = (*BEFORE, "cost", "backbones", "flicker", "usage", "masks")


class OutOfTime(Exception):
    """The seconds given are spent; what was measured is stored."""


def make_clips(a: argparse.Namespace) -> None:
    sizes = {}
    for video in sorted(a.videos.glob("*.mp4")):
        cut_ivf(remux_to_ivf(video, a.clips / f"{video.stem}.ivf"), a.frames)
        sizes[video.stem] = video.stat().st_size
    (a.clips / ORIGINS).write_text(json.dumps(sizes, indent=1) + "\n")
    print(f"{len(sizes)} clips in {a.clips}")


def cut_ivf(path: Path, frames: int) -> None:
    """Only the first frames of a file, 0 for all: AV1 shows one frame for each unit, in the order of the file."""
    data, end, count = path.read_bytes(), 32, 0
    while end < len(data) and (not frames or count < frames):
        end += 12 + struct.unpack_from("<I", data, end)[0]
        count += 1
    path.write_bytes(data[:24] + struct.pack("<I", count) + data[28:end])


def make_arrays(a: argparse.Namespace) -> None:
    files = sorted(a.clips.glob("*.ivf"))
    a.arrays.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)

    def make(file: Path) -> None:
        video = decode_ivf([file], program=a.dav1d, processes=1)[0]
        np.save(a.arrays / f"{file.stem}.npy", square(video, a.side, a.frames))

    with ThreadPoolExecutor(a.threads) as pool:
        list(pool.map(make, files))
    if (a.clips / ORIGINS).is_file():
        shutil.copyfile(a.clips / ORIGINS, a.arrays / ORIGINS)
    print(f"{len(files)} arrays in {a.arrays}")


def square(video: PlanarVideo, side: int, frames: int = 0) -> np.ndarray:
    """uint8 [T, side, side, 3]: resized to just cover the square where need be, then cut from the centre."""
    first = slice(frames or None)
    x_TCHW = i420_to_rgb(video.y[first], video.u[first], video.v[first], matrix=video.matrix)
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
    begin = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - begin:7.1f} s  {line}", flush=True)
        if time.monotonic() - begin > a.seconds:
            raise OutOfTime

    order = ordered(a)
    wanted = {name for word in a.studies for name in chosen(word)}
    wanted |= {"main-matched"} if "main" in wanted else set()
    names = [name for name in ORDER if name in wanted]
    crew = Crew(order, a.jobs, a.seconds)
    try:
        work = order.open(tell)
        tell(f"{a.jobs} processes on {work.bench.machine}")
        failed = by_the_crew(crew, work, [n for n in names if n in BEFORE], tell)
        for name in [n for n in names if n not in PARTED]:
            failed += alone(work, name)
        failed += by_the_crew(crew, work, [n for n in names if n in PARTED and n not in BEFORE], tell)
        print(f"done: {', '.join(names)}", *(f"not made: {line}" for line in failed), sep="\n")
    except OutOfTime:
        print(f"stopped after {a.seconds:.0f} s; the same command goes on from here")
    finally:
        crew.close()
        if a.pack is not None:
            pack(a.out, a.pack)


def ordered(a: argparse.Namespace) -> Order:
    places = tuple((role, place) for role, place in (("davis", a.data_davis), ("bench", a.data_bench)) if place)
    return Order(
        out=a.out,
        places=places,
        backbone=a.backbone,
        weights=a.weights,
        fill=a.fill,
        tau=a.tau,
        device=a.device,
        metrics=a.metrics,
        spec=ClipSpec(frames=a.frames, size=a.side),
        limit=a.limit,
        also=tuple(a.also),
        command=f"python benchmarks/studies_gpu.py {shlex.join(Path(w).name if '/' in w else w for w in sys.argv[1:])}",
        threads=a.threads,
    )


def by_the_crew(crew: Crew, work: Workspace, names: list[str], tell) -> list[str]:  # type: ignore[no-untyped-def]
    """What failed; all studies here go clip by clip."""
    failed = []
    for task, done, why in crew.run(tasks_of(work, names)):
        if why:
            failed.append(f"{task.study}: {task.place}: {why}")
        tell(done or f"FAILED {failed[-1]}")
    return failed


def alone(work: Workspace, name: str) -> list[str]:
    """One study in this process, while the others rest; its section is drawn again by `inlay study`."""
    try:
        STUDIES[name](work)
    except InlayError as error:
        return [f"{name}: {error}"]
    return []


def pack(root: Path, target: Path) -> None:
    """All that resuming needs, as one file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:gz") as tar:
        for name in ("records", "matching"):
            if (root / name).is_dir():
                tar.add(root / name, arcname=name)
    print(f"{target}: {target.stat().st_size:,} bytes")


def keep(a: argparse.Namespace) -> None:
    """A finished run in a form for the repository: sections as they are, records as lines of JSON."""
    if not (a.out / "sections").is_dir():
        raise SystemExit(f"{a.out}: no sections here; draw them first: inlay study all --out {a.out} ...")
    shutil.copytree(a.out / "sections", a.target / "sections", dirs_exist_ok=True)
    (a.target / "records").mkdir(parents=True, exist_ok=True)
    for folder in sorted((a.out / "records").iterdir()):
        rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
        text = "".join(json.dumps(without_features(row), sort_keys=True) + "\n" for row in rows)
        (a.target / "records" / f"{folder.name}.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        print(f"{folder.name}: {len(rows)} records")


def without_features(row: dict[str, Any]) -> dict[str, Any]:
    """I3D's 800 numbers a record would be most of the bytes; what they gave (FVD, KVD) stands in the sections."""
    if isinstance(row.get("reading"), dict):
        row["reading"].pop("features", None)
    return row


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)
    clips = stages.add_parser("clips")
    clips.add_argument("videos", type=Path)
    clips.add_argument("clips", type=Path)
    clips.add_argument("--frames", type=int, default=0, help="the first frames only; streaming reads 66, the others 33")
    arrays = stages.add_parser("arrays")
    arrays.add_argument("clips", type=Path)
    arrays.add_argument("arrays", type=Path)
    arrays.add_argument("--dav1d", default="dav1d")
    arrays.add_argument("--side", type=int, default=256)
    arrays.add_argument("--frames", type=int, default=0, help="the first frames only; 66 is what the studies need")
    arrays.add_argument("--threads", type=int, default=16)
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
    one.add_argument("--jobs", type=int, default=8, help="processes that share the device")
    one.add_argument("--threads", type=int, default=1, help="of the CPU, for each process")
    one.add_argument("--seconds", type=float, default=float("inf"), help="stop before the clip that begins after these")
    kept = stages.add_parser("keep")
    kept.add_argument("out", type=Path, help="the folder of a run, with its sections")
    kept.add_argument("target", type=Path, help="as benchmarks/studies")
    return parser.parse_args()


if __name__ == "__main__":
    args = parse()
    {"clips": make_clips, "arrays": make_arrays, "run": run, "keep": keep}[args.stage](args)
