# SPDX-License-Identifier: Apache-2.0
"""A data set of videos in, a data set of token files out, by many processes or many machines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.cli import options
from inlay.cli.screen import Screen

if TYPE_CHECKING:
    from inlay.scale import TokenizeProgress

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A folder, a list (.txt, .csv, .tsv, .jsonl, .parquet), WebDataset tars (x-{00..99}.tar), or an address.",
    ),
]
Out = Annotated[str, typer.Argument(metavar="OUT", help="A folder of its own, or an address of one.")]
Engine = Annotated[str, typer.Option("--engine", metavar="NAME", help="Who does the work: local or ray.")]
Workers = Annotated[
    int,
    typer.Option(
        "--workers",
        metavar="N",
        show_default=False,
        help="Processes.  [default: one for each GPU, else for each core]",
    ),
]
Address = Annotated[
    str | None, typer.Option("--address", metavar="HOST:PORT", help="With ray: a cluster that runs already, or auto.")
]
Format = Annotated[str, typer.Option("--format", metavar="NAME", help="Of the shards: tar or parquet.")]
ShardVideos = Annotated[
    int,
    typer.Option(
        "--shard-videos", metavar="N", show_default=False, help="Videos in a shard at most.  [default: by their number]"
    ),
]
Batch = Annotated[
    int,
    typer.Option(
        "--batch",
        metavar="N",
        show_default=False,
        help="Videos of one size encoded together.  [default: 8 on a GPU, else 1]",
    ),
]
PathColumn = Annotated[
    str | None, typer.Option("--path-column", metavar="NAME", help="Of a table.  [default: path, video, file …]")
]
CaptionColumn = Annotated[
    str | None, typer.Option("--caption-column", metavar="NAME", help="Of a table.  [default: caption, text …]")
]


def tokenize(
    source: Source,
    out: Out,
    engine: Engine = "local",
    workers: Workers = 0,
    address: Address = None,
    format: Format = "tar",
    shard_videos: ShardVideos = 0,
    batch: Batch = 0,
    path_column: PathColumn = None,
    caption_column: CaptionColumn = None,
    tau: options.Tau = None,
    keep: options.Keep = None,
    tokens: options.TokenCount = None,
    bits: options.Bits = None,
    exact: options.Exact = False,
    bucket: options.Bucket = None,
    noise: options.Noise = False,
    criterion: options.Criterion = "latent-l1",
    reference: options.Reference = "last-kept",
    precision: options.Precision = "q8",
    fill: options.Fill = None,
    mode: options.Mode = "auto",
    chunk: options.Chunk = 33,
    key_every: options.KeyEvery = 10.0,
    cuts: options.Cuts = True,
    size: options.Size = "keep",
    backbone: options.BackboneName = "mini",
    weights: options.Weights = None,
    trust: options.Trust = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    keep_going: options.KeepGoing = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Turn a data set of videos into shards of token files.

    Run the same command again to go on after an interruption: what is done stays, and the result is the same as without
    it. Videos that cannot be read are listed in OUT/quarantine.csv.
    """
    screen = Screen(json=json, quiet=quiet)

    from inlay.scale import RunConfig, TokenizeConfig
    from inlay.scale import tokenize as run_job

    run = RunConfig(engine=engine, workers=workers, address=address)
    config = TokenizeConfig(
        backbone=backbone, weights=weights, trust=trust, fill=fill, device=device, dtype=dtype,
        tau=tau, keep=keep, tokens=tokens, bits=bits, exact=exact, bucket_seconds=bucket,
        criterion=criterion, reference=reference, precision=precision,
        mode=mode, chunk_frames=chunk, key_seconds=key_every, cuts=cuts, noise=noise,
        size=size, keep_going=keep_going, format=format, shard_videos=shard_videos, batch=batch,
    )  # fmt: skip
    with bar(screen) as watch:
        outcome = run_job(source, out, config, run, path_column=path_column, caption_column=caption_column, watch=watch)
    screen.show(outcome.record(), outcome.rows())


@contextmanager
def bar(screen: Screen) -> Iterator[Callable[[TokenizeProgress], None]]:
    """Videos done, how fast, how long still, how many failed; only on a terminal."""
    if screen.quiet or screen.json or not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns: tuple[Any, ...] = (
        TextColumn("tokenising (videos)"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:.2f}/s"),
        TextColumn("{task.fields[refused]} failed"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=120) as shown:
        task = shown.add_task("", total=None, rate=0.0, refused=0)

        def watch(progress: TokenizeProgress) -> None:
            elapsed = shown.tasks[0].elapsed or 0.0
            rate = (progress.done - progress.before) / elapsed if elapsed else 0.0
            shown.update(task, total=progress.videos, completed=progress.done, rate=rate, refused=progress.refused)

        yield watch
