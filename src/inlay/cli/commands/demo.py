# SPDX-License-Identifier: Apache-2.0
"""A clip in, the whole story in one folder out: clip, tokens, decoded video, side-by-side film, curve, and a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inlay.cli import options, paths
from inlay.cli.screen import Screen, size_text
from inlay.errors import UsageError

FILES = ("clip.mp4", "clip.inlay", "clip.decoded.mp4", "side-by-side.mp4", "curve.png")


def demo(
    video: Annotated[
        str | None, typer.Option("--video", metavar="PATH", help="A video of yours.  [default: a clip made by code]")
    ] = None,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Folder for the results; made if need be.")] = "demo",
    size: options.Size = "256",
    frames: Annotated[int, typer.Option("--frames", metavar="N", min=1, help="Use at most the first N frames.")] = 330,
    tau: options.Tau = None,
    fill: options.Fill = None,
    backbone: options.BackboneName = "mini",
    device: options.Device = "auto",
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Take one clip through everything.

    It becomes tokens and comes back; a film, a curve and a table tell how well.
    """
    if video is not None:
        paths.input_video(video)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{out}: is a file; give the name of a folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        paths.output(str(folder / name), force=force, inputs=() if video is None else (video,))

    from inlay.cli.model import Model
    from inlay.cli.showing import Show

    screen = Screen(json=json, quiet=quiet)
    model = Model(backbone=backbone, fill=fill, device=device)
    show = Show(folder=folder, model=model, tau=tau, screen=screen)
    record = show.run(video, size=size, frames=frames)
    screen.show(record, _rows(record))


def _rows(record: dict) -> list[tuple[str, str]]:
    seconds = record["stage_seconds"]
    return [
        ("clip", f"{record['clip']}: {record['frames']} frames {record['width']}x{record['height']}"),
        ("kept", f"{record['keep_rate']:.1%}: {record['tokens']:,} tokens of {record['cells']:,} cells "
                 f"(tau {record['tau']:g}, mode {record['streaming']}, {record['backbone']}, fill {record['fill']})"),
        ("tokens", f"{record['token_file']}: {size_text(record['bytes'])}, "
                   f"{record['bits_per_pixel']:.4f} bits a pixel"),
        ("decoded", f"{record['decoded']}: PSNR {record['psnr']:.2f} dB, SSIM {record['ssim']:.4f}"),
        ("film", record["film"]),
        ("curve", record["curve"] or "not drawn; run: pip install 'inlay[plot]'"),
        ("seconds", ", ".join(f"{stage} {spent:.1f}" for stage, spent in seconds.items())),
    ]  # fmt: skip
