# SPDX-License-Identifier: Apache-2.0
"""`inlay serve`: the web page: drop in a video, move tau, look at what is kept and how it comes back."""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec
from typing import Annotated

import typer

from inlay.cli import options
from inlay.errors import ConfigError, require


def serve(
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Where to listen; 0.0.0.0 lets the whole network in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", help="Port; 0 takes a free one.")] = 7860,
    max_mb: Annotated[float, typer.Option("--max-mb", metavar="X", help="Largest upload in megabytes.")] = 64.0,
    max_seconds: Annotated[float, typer.Option("--max-seconds", metavar="X", help="Longest video.")] = 10.0,
    max_side: Annotated[int, typer.Option("--max-side", metavar="N", help="Longest side of a video.")] = 1920,
    side: Annotated[
        int, typer.Option("--side", metavar="N", help="Short side worked at; larger videos are reduced to it.")
    ] = 256,
    waiting: Annotated[int, typer.Option("--waiting", metavar="N", help="Requests that may wait in the queue.")] = 16,
    sessions: Annotated[int, typer.Option("--sessions", metavar="N", help="Visitors whose clips are kept.")] = 16,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", help="Threads of the network.  [default: all cores]")
    ] = None,
    fill: options.Fill = None,
    backbone: options.BackboneName = "mini",
    weights: options.Weights = None,
    device: options.Device = "auto",
) -> None:
    """Show it in a browser.

    Uploads stay in a temporary folder that is removed at the end; nothing is sent anywhere. Ctrl-C ends it.
    """
    if threads is not None and threads < 1:
        raise ConfigError(f"--threads is a number of threads, 1 or more; got {threads}")
    if find_spec("gradio") is None:  # imported only once its settings are in place: it reads them on the way in
        require("gradio", extra="web")

    from inlay.web import Limits, ServeConfig, running
    from inlay.web.server import free_port

    config = ServeConfig(host=host, port=port, waiting=waiting, sessions=sessions)
    limits = Limits(max_mb=max_mb, max_seconds=max_seconds, max_side=max_side, side=side)
    model = options.Model(backbone=backbone, weights=weights, fill=fill, device=device)
    model.check()
    free_port(config)
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    with running(model.load(), config, limits) as (_, address):
        typer.echo(f"Inlay is at {address} (Ctrl-C ends it)")
        sys.stdout.flush()
        try:
            threading.Event().wait()  # until the terminal, or whoever started this, ends it
        except KeyboardInterrupt:
            typer.echo("stopped")
