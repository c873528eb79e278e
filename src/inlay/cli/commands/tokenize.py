# SPDX-License-Identifier: Apache-2.0
"""`inlay tokenize`: a data set of videos to one of token files, by many processes or many machines."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from inlay.cli import options
from inlay.cli.screen import Screen
from inlay.scale.layout import known

Source = Annotated[
    str,
    typer.Argument(
        metavar="VIDEOS",
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
WorkerThreads = Annotated[
    int | None,
    typer.Option("--threads", metavar="N", help="CPU threads of each process.  [default: its share of the cores]"),
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
    str | None,
    typer.Option(
        "--path-column",
        metavar="NAME",
        help="Of a table: which names the videos.  [default: the first of path, video, video_path, file, file_name, "
        "filename, url]",
    ),
]
CaptionColumn = Annotated[
    str | None,
    typer.Option(
        "--caption-column",
        metavar="NAME",
        help="Of a table: which has the captions.  [default: the first of caption, text, prompt, description]",
    ),
]


def tokenize(
    source: Source,
    out: Out,
    *,
    engine: Engine = "local",
    workers: Workers = 0,
    threads: WorkerThreads = None,
    address: Address = None,
    format: Format = "tar",
    shard_videos: ShardVideos = 0,
    batch: Batch = 0,
    path_column: PathColumn = None,
    caption_column: CaptionColumn = None,
    encoding: options.Encoding,
    size: options.Size = "keep",
    model: options.FilledModel,
    keep_going: options.KeepGoing = False,
    screen: Screen,
) -> None:
    """Turn a data set of videos into shards of token files.

    Run the same command again to go on after an interruption: what is done stays, and the result is the same as without
    it. Videos that cannot be read are listed in OUT/quarantine.csv.
    """
    from inlay.scale import RunConfig, TokenizeConfig, TokenizeProgress
    from inlay.scale import tokenize as run_job

    run = RunConfig(engine=engine, workers=workers, threads=threads, address=address)
    config = TokenizeConfig(
        **known(TokenizeConfig, vars(model) | encoding.settings()),
        size=size, keep_going=keep_going, format=format, shard_videos=shard_videos, batch=batch,
    )  # fmt: skip
    columns, start = ("{task.fields[rate]:.2f}/s", "{task.fields[refused]} failed"), time.perf_counter()
    with screen.bar("tokenising (videos)", *columns, time_left=True, rate=0.0, refused=0) as update:

        def watch(progress: TokenizeProgress) -> None:
            rate = (progress.done - progress.before) / (time.perf_counter() - start)
            update(total=progress.videos, completed=progress.done, rate=rate, refused=progress.refused)

        outcome = run_job(source, out, config, run, path_column=path_column, caption_column=caption_column, watch=watch)
    screen.show(outcome.record(), outcome.rows())
