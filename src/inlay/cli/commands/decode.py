# SPDX-License-Identifier: Apache-2.0
"""`inlay decode`: a token file back to a video, chunk by chunk."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated

import typer

from inlay import sandbox
from inlay.cli import options, paths
from inlay.cli.screen import Screen
from inlay.errors import UsageError

MOST_MB, MOST_SECONDS = 4096, 600.0  # of an untrusted file


def decode(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="IN", help="A token file (*.inlay).")],
    out: Annotated[
        str | None,
        typer.Argument(metavar="OUT", help="Video, or - for standard output.  [default: <stem>.decoded.mp4]"),
    ] = None,
    *,
    start_seconds: options.From = None,
    end_seconds: options.To = None,
    fill: options.Fill = None,
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
    """Turn a token file, or the seconds --from to --to of it, back into a video."""
    start = time.perf_counter()
    if untrusted:
        words = [word for word in context.obj if word != "--untrusted"]
        raise typer.Exit(sandbox.run(words, memory_mb=MOST_MB, seconds=MOST_SECONDS).returncode)
    if not 0 <= crf <= 51:
        raise UsageError(f"--crf is a quality from 0 (best) to 51 (smallest); got {crf:g}")
    paths.input_tokens(source)
    target = paths.output_video(out or paths.beside(source, ".decoded.mp4"), force=force, inputs=(source,))

    from inlay.cli.passes import backbone_of, decode_file, tokenizer_of
    from inlay.codec import check_file, cutting
    from inlay.container import TokenReader

    screen = replace(screen, results_to_stderr=target == paths.STREAM)
    with TokenReader(source, keep_going=keep_going, large=large) as reader:
        check_file(reader)
        whole = start_seconds is None and end_seconds is None
        cut = None if whole else cutting(reader, start_seconds, end_seconds)
        name = backbone_of(reader.recipe, backbone)
        model = options.Model(backbone=name, weights=weights, fill=fill, device=device, dtype=dtype, trust=trust)
        model.check()
        tokenizer, chosen = tokenizer_of(reader.recipe, model, screen)
        frames = decode_file(reader, target, tokenizer=tokenizer, fill=chosen, lossless=lossless, crf=crf, force=force,
                             screen=screen, cut=cut)  # fmt: skip
        info, problems = reader.info, list(reader.problems)
    elapsed = time.perf_counter() - start
    record = {
        "input": source, "output": target, "frames": frames, "width": info.width, "height": info.height,
        "fps": info.fps, "fill": chosen, "problems": problems, "device": str(tokenizer.device),
        "elapsed_seconds": elapsed,
    }  # fmt: skip
    rows = [
        ("video", f"{target}, {frames} frames {info.width}x{info.height} at {float(info.fps):g} fps"),
        ("fill", chosen),
        ("took", f"{elapsed:.1f} s on {tokenizer.device}"),
    ]
    for problem in problems:
        screen.note(problem)
    screen.show(record, rows)
