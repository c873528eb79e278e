# SPDX-License-Identifier: Apache-2.0
"""`inlay serve`: the web page: drop in a video, move tau, look at what is kept and how it comes back."""

from __future__ import annotations

import threading
from importlib.util import find_spec

from inlay.cli import options
from inlay.cli.screen import Screen
from inlay.errors import require
from inlay.web import Limits, ServeConfig, running
from inlay.web.server import free_port, one_arena


def serve(
    *,
    config: ServeConfig,
    limits: Limits,
    fill: options.Fill = None,
    backbone: options.BackboneName = "mini",
    weights: options.Weights = None,
    device: options.Device = "auto",
    screen: Screen,
) -> None:
    """Show it in a browser.

    Uploads stay in a temporary folder that is removed at the end; nothing is sent anywhere. Ctrl-C ends it.
    """
    if find_spec("gradio") is None:  # imported only once its settings are in place: it reads them on the way in
        require("gradio", extra="web")

    model = options.Model(backbone=backbone, weights=weights, fill=fill, device=device)
    model.check()
    free_port(config)
    one_arena()
    with running(model.load(), config, limits) as (_, address):
        screen.line({"address": address}, f"Inlay is at {address} (Ctrl-C ends it)")
        try:
            threading.Event().wait()  # until the terminal, or whoever started this, ends it
        except KeyboardInterrupt:
            screen.note("stopped")
