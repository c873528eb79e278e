# SPDX-License-Identifier: Apache-2.0
"""`inlay serve`: the web page: drop in a video, move tau, look at what is kept and how it comes back."""

from __future__ import annotations

import os
import sys
import threading
from importlib.util import find_spec
from typing import Annotated

import typer

from inlay.cli import options
from inlay.errors import ConfigError, require
from inlay.web import Limits, ServeConfig, running
from inlay.web.server import free_port, one_arena

MOST_THREADS = 64  # or as many as there are cores; far more than these bring a thread pool down


def serve(
    *,
    config: ServeConfig,
    limits: Limits,
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
    most = max(MOST_THREADS, os.cpu_count() or 1)
    if threads is not None and not 1 <= threads <= most:
        raise ConfigError(f"--threads is a number of threads from 1 to {most}; got {threads}")
    if find_spec("gradio") is None:  # imported only once its settings are in place: it reads them on the way in
        require("gradio", extra="web")

    model = options.Model(backbone=backbone, weights=weights, fill=fill, device=device)
    model.check()
    free_port(config)
    one_arena()
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
