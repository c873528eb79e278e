# SPDX-License-Identifier: Apache-2.0
"""A video in, a token file out, chunk by chunk."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from inlay.app import options, paths
from inlay.app.screen import Screen
from inlay.errors import UsageError


def encode(
    source: Annotated[str, typer.Argument(metavar="IN", help="A video, or - for standard input.")],
    out: Annotated[str | None, typer.Argument(metavar="OUT", help="Token file.  [default: IN with .inlay]")] = None,
    tau: options.Tau = None,
    criterion: options.Criterion = "latent-l1",
    reference: options.Reference = "last-kept",
    precision: options.Precision = "q8",
    fill: options.Fill = None,
    size: options.Size = "keep",
    backbone: options.BackboneName = "mini",
    weights: options.Weights = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    keep_going: options.KeepGoing = False,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Turn a video into a token file.

    Keeps the latent cells that change and drops the rest; prints how many were kept and what they cost in bits.
    """
    start = time.perf_counter()
    paths.input_video(source)
    target = out or paths.beside(source, paths.TOKEN_SUFFIX)
    if target == paths.STREAM:
        raise UsageError("a token file is completed at its end and cannot be a stream; give the name of a file")
    paths.output(target, force=force, inputs=(source,))

    from inlay.app.model import Model, Settings
    from inlay.app.passes import encode_file, open_clip
    from inlay.app.record import file_record, file_rows

    settings = Settings(tau=tau, criterion=criterion, reference=reference, precision=precision)
    model = Model(backbone=backbone, weights=weights, fill=fill, device=device, dtype=dtype)
    screen = Screen(json=json, quiet=quiet)
    with open_clip(source, size=size, keep_going=keep_going) as reader:  # an unreadable video shows before loading
        tokenizer = model.load()
        piped = source == paths.STREAM
        encode_file(reader, target, tokenizer=tokenizer, settings=settings, piped=piped, force=force, screen=screen)
        if reader.damage:
            screen.note(reader.damage)
    elapsed = time.perf_counter() - start
    record = file_record(target) | {"input": source, "device": str(tokenizer.device), "elapsed_seconds": elapsed}
    screen.show(record, [*file_rows(record), ("took", f"{elapsed:.1f} s on {tokenizer.device}")])
