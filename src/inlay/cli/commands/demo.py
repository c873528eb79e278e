# SPDX-License-Identifier: Apache-2.0
"""`inlay demo`: one clip through everything, into one folder: tokens, decoded video, film, curve, and a table."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from inlay.cli import options, paths
from inlay.cli.screen import Screen, size_text
from inlay.files import made_folder
from inlay.video.geometry import Geometry

FILES = ("clip.mp4", "clip.inlay", "clip.decoded.mp4", "side-by-side.mp4", "curve.png")


def demo(
    *,
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
    screen: Screen,
) -> None:
    """Take one clip through everything.

    It becomes tokens and comes back; a film, a curve and a table tell how well.
    """
    if video is not None:
        paths.input_video(video)
    Geometry.parse(size)  # refused here if it is none
    with made_folder(out) as folder:
        files = [str(folder / name) for name in FILES]
        for path in files:
            paths.output(path, force=force, inputs=() if video is None else (video,))
        model = options.Model(backbone=backbone, fill=fill, device=device)
        model.check()
        record = _run(video, files, model, tau, screen, size=size, frames=frames)
    screen.show(record, _rows(record))


def _run(
    video: str | None, files: list[str], model: options.Model, tau: float | None, screen: Screen, *, size: str,
    frames: int,
) -> dict[str, Any]:  # fmt: skip
    """The stages in order; each reads what the one before wrote, so that the files are known to be good."""
    from inlay.cli.commands.encode import encode_video
    from inlay.cli.commands.info import file_record
    from inlay.cli.passes import decode_file
    from inlay.cli.viewing import write_film
    from inlay.codec import VideoEncoder
    from inlay.container import TokenReader
    from inlay.draw.caption import Caption
    from inlay.draw.film import shots
    from inlay.masking import Budget
    from inlay.measure import compare
    from inlay.video import open_video, write_video

    budget = Budget(tau=tau)
    clip, tokens, decoded, film, curve = files
    seconds: dict[str, float] = {}

    @contextmanager
    def timed(stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds[stage] = round(time.perf_counter() - start, 3)

    with timed("load"):
        tokenizer = model.load()
    with timed("clip"), _source(video) as source, open_video(source, size=size, frames=frames) as reader:
        write_video(reader.chunks(), clip, force=True)
    with timed("encode"), open_video(clip) as reader:
        encode_video(VideoEncoder(tokenizer, budget=budget), reader, tokens, screen, force=True)
    with timed("decode"), TokenReader(tokens) as token_reader:
        fill = model.fill or tokenizer.filler.default
        decode_file(token_reader, decoded, tokenizer=tokenizer, fill=fill, force=True, screen=screen)
    with timed("film"), open_video(clip) as a, open_video(decoded) as b, TokenReader(tokens) as token_reader:
        scenes = shots(token_reader, b, a)
        caption = Caption(title=Path(video or clip).name)
        made = write_film(scenes, film, curve, fill=fill, caption=caption, frames=a.frames, force=True, screen=screen)
    with timed("measure"), open_video(clip) as a, open_video(decoded) as b:
        report = compare(a.chunks(), b.chunks(), ("psnr", "ssim"))
    named = {"clip": clip, "token_file": tokens, "decoded": decoded, "fill": fill}
    quality = {name: report[name] for name in ("psnr", "ssim")}
    return file_record(tokens) | made | named | quality | {"stage_seconds": seconds}


@contextmanager
def _source(video: str | None) -> Iterator[str]:
    """The video to take, or the clip made by code as a file, which is then read at the size that was asked for."""
    from inlay.video import write_video
    from inlay.video.synthetic import demo_clip

    if video is not None:
        yield video
        return
    with tempfile.TemporaryDirectory() as folder:
        yield str(write_video(demo_clip(), Path(folder) / "clip.mp4", lossless=True))


def _rows(record: dict[str, Any]) -> list[tuple[str, str]]:
    seconds = record["stage_seconds"]
    return [
        ("clip", f"{record['clip']}: {record['frames']} frames {record['width']}x{record['height']}"),
        ("kept", f"{record['keep_rate']:.1%}: {record['tokens']:,} tokens of {record['cells']:,} cells "
                 f"(tau {record['tau']:g}, mode {record['streaming']}, {record['backbone']}, fill {record['fill']})"),
        ("tokens", f"{record['token_file']}: {size_text(record['bytes'])}, "
                   f"{record['bits_per_pixel']:.4f} bits a pixel"),
        ("decoded", f"{record['decoded']}: PSNR {record['psnr']:.2f} dB, SSIM {record['ssim']:.4f}"),
        ("film", record["film"]),
        ("curve", record["curve"]),
        ("seconds", ", ".join(f"{stage} {spent:.1f}" for stage, spent in seconds.items())),
    ]  # fmt: skip
