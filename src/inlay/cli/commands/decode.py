# SPDX-License-Identifier: Apache-2.0
"""`inlay decode`: token files back to videos, chunk by chunk."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated

import typer

from inlay import sandbox
from inlay.cli import many, options, paths
from inlay.cli.screen import Screen
from inlay.errors import UsageError, number_of
from inlay.files import made_folder

MOST_MB, MOST_SECONDS = 4096, 600.0  # of an untrusted file


def decode(
    context: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="TOKENS... [OUT.mp4]",
            help="A token file (*.inlay) and the name of its video, or - for standard output  "
            "[default: TOKENS with .decoded.mp4]. With --out-dir: token files, folders of them, patterns.",
        ),
    ],
    *,
    out_dir: options.OutDir = None,
    start_seconds: options.From = None,
    end_seconds: options.To = None,
    fill: options.FilesFill = None,
    lossless: options.Lossless = False,
    crf: options.Crf = 16,
    backbone: options.FilesBackbone = None,
    weights: options.Weights = None,
    trust: options.Trust = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    keep_going: options.KeepGoing = False,
    large: options.Large = False,
    untrusted: Annotated[
        bool,
        typer.Option(
            "--untrusted", help=f"Decode in a process of its own: {MOST_MB:,} MB and {MOST_SECONDS:g} s at most."
        ),
    ] = False,
    force: options.Force = False,
    screen: Screen,
) -> None:
    """Turn token files back into videos.

    Or the seconds --from to --to of them: what lies outside is not read.
    """
    inputs, target_of = _places(sources, out_dir)
    if untrusted:
        if inputs.many:
            raise UsageError("the limits for untrusted files hold for one; decode them one by one", about="untrusted")
        words = [word for word in context.obj if word != "--untrusted"]
        raise typer.Exit(sandbox.run(words, memory_mb=MOST_MB, seconds=MOST_SECONDS).returncode)
    if not 0 <= crf <= 51:
        raise UsageError(f"--crf is a quality from 0 (best) to 51 (smallest); got {crf:g}")
    load = cache(options.Model.load)  # files of one backbone share it

    def work(item: many.Input, screen: Screen) -> many.Result:
        start, target = time.perf_counter(), target_of[item]
        with nullcontext() if out_dir is None else made_folder(Path(target).parent):
            paths.input_tokens(item.source)
            paths.output_video(target, force=force, inputs=(item.source,))

            from inlay.cli.passes import backbone_of, decode_file, fill_of
            from inlay.codec import check_file, cutting
            from inlay.container import TokenReader

            with TokenReader(item.source, keep_going=keep_going, large=large) as reader:
                check_file(reader)
                whole = start_seconds is None and end_seconds is None
                cut = None if whole else cutting(reader, start_seconds, end_seconds)
                name = backbone_of(reader.recipe, backbone)
                model = options.Model(
                    backbone=name, weights=weights, fill=fill, device=device, dtype=dtype, trust=trust
                )
                model.check()
                tokenizer = load(model)
                chosen = fill_of(reader.recipe, tokenizer, fill, screen)
                frames = decode_file(reader, target, tokenizer=tokenizer, fill=chosen, lossless=lossless, crf=crf,
                                     force=force, screen=screen, cut=cut)  # fmt: skip
                info, problems = reader.info, list(reader.problems)
        elapsed = time.perf_counter() - start
        record = {
            "input": item.source, "output": target, "frames": frames, "width": info.width, "height": info.height,
            "fps": info.fps, "fill": chosen, "problems": problems, "device": str(tokenizer.device),
            "elapsed_seconds": elapsed,
        }  # fmt: skip
        video = f"{number_of(frames, 'frame')} {info.width}x{info.height} at {float(info.fps):g} fps"
        took = f"{elapsed:.1f} s on {tokenizer.device}"
        rows = [("video", f"{target}, {video}"), ("fill", chosen), ("took", took)]
        return many.Result(record=record, rows=rows, line=f"{target}: {video}, {took}", notes=tuple(problems))

    screen = replace(screen, results_to_stderr=paths.STREAM in target_of.values())
    many.for_each(inputs, work, context=context, screen=screen)


def _places(sources: list[str], out_dir: str | None) -> tuple[many.Inputs, dict[many.Input, str]]:
    """What is decoded, and where to."""
    from inlay.video.target import CONTAINERS

    if out_dir is not None:
        inputs = many.token_files(sources)
        return inputs, many.targets(inputs, out_dir, f"{many.DECODED}.mp4")
    (source,), out = many.one_output(sources, tuple(CONTAINERS))
    inputs = many.token_files([source])
    target = paths.beside(source, f"{many.DECODED}.mp4") if out is None else out
    return inputs, {inputs.items[0]: target}
