# SPDX-License-Identifier: Apache-2.0
"""`inlay bench`: warm timings of every stage on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from inlay.cli import options, paths
from inlay.cli.screen import Screen, plain
from inlay.files import write_atomic


def bench(
    *,
    sizes: Annotated[
        str, typer.Option("--sizes", metavar="NAMES", help="256, 480p, 720p or HxW, with commas between.")
    ] = "256",
    frames: Annotated[str, typer.Option("--frames", metavar="NUMBERS", help="Clip lengths, with commas.")] = "33",
    batches: Annotated[str, typer.Option("--batches", metavar="NUMBERS", help="Clips together, with commas.")] = "1",
    paths_: Annotated[
        str, typer.Option("--paths", metavar="NAMES", help="eager, fast, compiled (CUDA), with commas between.")
    ] = "eager,fast",
    stages: Annotated[
        str, typer.Option("--stages", metavar="NAMES", help="video, encode, mask, gather, entropy, lit, decode.")
    ] = "video,encode,mask,gather,entropy,lit,decode",
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", help="Timed runs of each; the median counts.")] = 5,
    backbone: Annotated[
        str,
        typer.Option("--backbone", metavar="NAME", help="As elsewhere, or mini-random, cosmos-360p-random."),
    ] = "mini",
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", help="For all timed calls together; each is made at least twice.")
    ] = 90.0,
    against: Annotated[
        str | None, typer.Option("--against", metavar="FILE", help="An earlier record to show the times of.")
    ] = None,
    out: Annotated[str | None, typer.Option("--out", "-o", metavar="FILE", help="Also write the record here.")] = None,
    force: options.Force = False,
    screen: Screen,
) -> None:
    """Time every stage on this machine.

    Eager and fast paths in one run, with operations, achieved rate, memory and the least time the machine would need.
    About two minutes.
    """
    if out is not None:
        paths.output(out, force=force, what="a record", suffixes=(".json",))
    from inlay.research.bench import BenchConfig, compare, read_record, table
    from inlay.research.bench import bench as run
    from inlay.research.bench.config import names, numbers

    before = None if against is None else read_record(Path(against))  # first: it may be the file that is written
    config = BenchConfig(
        backbone=backbone, device=device, dtype=dtype, repeats=repeats, sizes=names(sizes),
        frames=numbers(frames, "--frames"), batches=numbers(batches, "--batches"), paths=names(paths_),
        stages=names(stages), seconds=seconds,
    )  # fmt: skip
    record = run(config, note=lambda text: None if screen.json else screen.note(text))
    if before is not None:
        compare(record, before, str(against))
    if out is not None:
        write_atomic(out, (json.dumps(plain(record), indent=2) + "\n").encode())
    screen.show(record, [("", line) for line in table(record).splitlines()])
