# SPDX-License-Identifier: Apache-2.0
"""`inlay compare`: the distance of two videos, one number for each metric."""

from __future__ import annotations

from typing import Annotated

import typer

from inlay.cli import options, paths
from inlay.cli.screen import Screen
from inlay.errors import MissingError, UsageError, pick


def compare(
    reference: Annotated[str, typer.Argument(metavar="A", help="The reference video.")],
    other: Annotated[str, typer.Argument(metavar="B", help="The video to judge.")],
    *,
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="NAMES", help="Names with commas between; an unknown one lists all.")
    ] = "psnr,ssim",
    size: options.Size = "keep",
    device: options.Device = "auto",
    screen: Screen,
) -> None:
    """Measure how close two videos are."""
    paths.input_video(reference)
    paths.input_video(other)
    names = tuple(name.strip() for name in metrics.split(",") if name.strip())
    if not names:
        raise UsageError("--metrics is empty; give names with commas between, as psnr,ssim")

    from inlay.cli.passes import counted
    from inlay.measure import METRICS, MeasureConfig
    from inlay.measure import compare as measure_pair
    from inlay.tokenizer import pick_device
    from inlay.video import open_video

    for name in names:
        if not pick("metric", name, METRICS).per_video:
            raise UsageError(f"{name} compares sets of videos, not two; leave it out")
    config = MeasureConfig(device=str(pick_device(device)))
    with (
        open_video(reference, size=size) as a,
        open_video(other, size=size) as b,
        screen.progress("comparing", a.frames) as advance,
    ):
        report = measure_pair(counted(a.chunks(), advance), b.chunks(), names, config=config)
    record = {"reference": reference, "other": other} | report.record()
    record |= {name: score.value for name, score in report.scores.items()}
    rows = [(name, f"{score.value:.4f} {score.unit}".rstrip()) for name, score in report.scores.items()]
    screen.show(record, rows + [(name, f"not measured: {why}") for name, why in report.missing.items()])
    if not report.scores:
        raise MissingError(f"nothing could be measured: {'; '.join(report.missing.values())}")
