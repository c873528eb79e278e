# SPDX-License-Identifier: Apache-2.0
"""`inlay fetch`: weights that are too large or too foreign to ship with the package, into the user's cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from inlay.cli import options
from inlay.cli.screen import Screen
from inlay.errors import MissingError, UsageError, pick

PARCELS = {"metrics": ("lpips", "i3d")}  # what can be fetched -> the networks it brings


def fetch(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT", help="A backbone's name (inlay backbones), or metrics: the networks of LPIPS, FVD and KVD."
        ),
    ],
    *,
    folder: Annotated[
        str | None,
        typer.Option("--folder", metavar="DIR", help="Take the files of metrics from here, not from the network."),
    ] = None,
    force: options.Force = False,
    screen: Screen,
) -> None:
    """Bring weights of backbones or metrics into the cache.

    An interrupted download goes on where it stopped, and every file is checked against the digest of its publisher.
    """
    if what not in PARCELS:
        record = {what: str(fetch_backbone(what, folder, force=force, quiet=screen.quiet or screen.json))}
        screen.show({"fetched": record}, list(record.items()))
        return
    if folder is not None and not Path(folder).is_dir():
        raise MissingError(f"{folder}: no such folder; give the one that holds the files")

    from inlay.measure import fetch_metrics

    tell = replace(screen, quiet=screen.quiet or screen.json).note
    found = fetch_metrics(PARCELS[what], folder=Path(folder) if folder else None, force=force, tell=tell)
    record = {name: str(path) for name, path in found.items()}
    screen.show({"fetched": record}, list(record.items()))


def fetch_backbone(name: str, folder: str | None, *, force: bool, quiet: bool) -> Path:
    """The folder that has the weights of a backbone."""
    from inlay.backbones import BACKBONES, WEIGHTS, resolve

    table = {**BACKBONES, **dict.fromkeys(PARCELS)}  # so that an unknown name is told all that can be fetched
    entry = pick("weights", resolve(name), table)
    assert entry is not None, "parcels are handled by the caller"
    if folder is not None:
        raise UsageError(f"--folder is for metrics; local weights of {name} are used with --weights")
    if entry.source is None:
        return WEIGHTS

    from inlay.backbones.hub import fetch as fetch_source
    from inlay.backbones.hub import show_progress

    show_progress(not quiet)
    return fetch_source(entry.source, force=force)
