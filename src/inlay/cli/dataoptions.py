# SPDX-License-Identifier: Apache-2.0
"""The flags of the commands that measure on data sets, each written once."""

from __future__ import annotations

from typing import Annotated

import typer

Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA", help="A video, a folder of videos or frame folders, or a list of them (a text file)."
    ),
]
Layout = Annotated[
    str,
    typer.Option("--layout", metavar="NAME", help="auto, folder, list, davis, tokenbench, ucf101 or kinetics400."),
]
Split = Annotated[
    str | None, typer.Option("--split", metavar="NAME", help="Part of the data set.  [default: the layout's own]")
]
Metrics = Annotated[
    str,
    typer.Option(
        "--metrics",
        metavar="NAMES",
        help="auto (paper on a GPU, else quick), quick, paper (with LPIPS, FVD, KVD), or names with commas between.",
    ),
]
Frames = Annotated[int, typer.Option("--frames", metavar="N", min=1, help="Frames of a clip.")]
Side = Annotated[
    int, typer.Option("--side", metavar="N", min=0, help="Side of the square a clip is cut to; 0 keeps its size.")
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=0, help="Use the first N videos; 0 means all.")]
