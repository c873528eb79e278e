# SPDX-License-Identifier: Apache-2.0
"""`inlay compare`: the distance of two videos, or of many pairs, one number for each metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inlay.cli import many, options, paths
from inlay.cli.screen import Screen
from inlay.errors import MissingError, UsageError, VideoError, pick

if TYPE_CHECKING:
    from inlay.measure import MeasureConfig

METRIC_NAMES = (  # those that two videos suffice for; a guard test holds them against the library's table
    "psnr", "psnr-video", "ssim", "ssim-gaussian", "lpips", "vmaf", "flicker", "flicker-static", "flicker-moving",
    "error-level",
)  # fmt: skip


def compare(
    context: typer.Context,
    reference: Annotated[
        str, typer.Argument(metavar="REFERENCE", help="The original video; or a folder or a pattern of them.")
    ],
    other: Annotated[
        str,
        typer.Argument(metavar="OTHER", help="The video to judge; or a folder or a pattern, named like the originals."),
    ],
    *,
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="NAMES", help=f"With commas between, of {', '.join(METRIC_NAMES)}.")
    ] = "psnr,ssim",
    size: options.Size = "keep",
    device: options.Device = "auto",
    screen: Screen,
) -> None:
    """Measure how close two videos are, or many pairs.

    In two folders, videos of one name are a pair; NAME.decoded.mp4, as decode writes it, belongs to NAME.
    """
    inputs, partner = _pairs(reference, other, screen)
    names = tuple(name.strip() for name in metrics.split(",") if name.strip())
    if not names:
        raise UsageError("--metrics is empty; give names with commas between, as psnr,ssim")

    from inlay.measure import METRICS, MeasureConfig
    from inlay.tokenizer import pick_device

    for name in names:
        if not pick("metric", name, METRICS).per_video:
            raise UsageError(f"{name} compares sets of videos, not two; leave it out")
    config = MeasureConfig(device=str(pick_device(device)))

    def work(item: many.Input, screen: Screen) -> many.Result:
        if item.name not in partner and inputs.many:
            raise VideoError(f"{item.source}: no video of {other} has this name")
        return _compare_two(item.source, partner[item.name], names, config, screen, size=size)

    results = many.for_each(inputs, work, context=context, screen=screen)
    if inputs.many and not screen.json:
        units = {name: f" {METRICS[name].unit}".rstrip() for name in names}
        _show_means(results, units, screen)


def _pairs(reference: str, other: str, screen: Screen) -> tuple[many.Inputs, dict[str, str]]:
    """The references, and by name the video that is compared with each."""
    if not many.is_several(reference) and not many.is_several(other):
        inputs = many.videos([paths.input_video(reference)])
        return inputs, {inputs.items[0].name: paths.input_video(other)}
    if not (many.is_several(reference) and many.is_several(other)):
        one, more = (other, reference) if many.is_several(reference) else (reference, other)
        raise UsageError(f"{more} is several videos and {one} is not; give two videos, or two folders or patterns")
    inputs, others = many.videos([reference]), many.videos([other])
    partner: dict[str, str] = {}
    for item in others.items:
        name = item.name.removesuffix(many.DECODED)
        if name in partner:
            raise UsageError(f"{partner[name]} and {item.source} are both named like {name}; take one of them away")
        partner[name] = item.source
    alone = sorted(set(partner) - {item.name for item in inputs.items})
    if alone:
        screen.note(f"without a reference, and left out: {', '.join(alone)}")
    return inputs, partner


def _compare_two(
    reference: str, other: str, names: tuple[str, ...], config: MeasureConfig, screen: Screen, *, size: str
) -> many.Result:
    from inlay.cli.passes import counted
    from inlay.measure import compare as measure_pair
    from inlay.video import open_video

    with (
        open_video(reference, size=size) as a,
        open_video(other, size=size) as b,
        screen.progress("comparing", a.frames) as advance,
    ):
        report = measure_pair(counted(a.chunks(), advance), b.chunks(), names, config=config)
    if not report.scores:
        raise MissingError(f"nothing could be measured: {'; '.join(report.missing.values())}")
    record = {"reference": reference, "other": other} | report.record()
    record |= {name: score.value for name, score in report.scores.items()}
    rows = [(name, f"{score.value:.4f} {score.unit}".rstrip()) for name, score in report.scores.items()]
    rows += [(name, f"not measured: {why}") for name, why in report.missing.items()]
    return many.Result(record=record, rows=rows, line=", ".join(f"{name} {text}" for name, text in rows))


def _show_means(results: list[many.Result], units: dict[str, str], screen: Screen) -> None:
    """What the pairs have in common, in one line at the end."""
    values = {name: [r.record[name] for r in results if name in r.record] for name in units}
    means = [f"{name} {sum(found) / len(found):.4f}{units[name]}" for name, found in values.items() if found]
    screen.line({}, f"mean of {len(results)}: {', '.join(means)}")
