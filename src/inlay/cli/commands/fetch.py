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

METRICS = "metrics"  # the networks of all metrics together


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
    hushed = screen.quiet or screen.json
    if what == METRICS:
        from inlay.measure import fetch_metrics

        if folder is not None and not Path(folder).is_dir():
            raise MissingError(f"{folder}: no such folder; give the one that holds the files")
        place, tell = Path(folder) if folder else None, replace(screen, quiet=hushed).note
        found = fetch_metrics(folder=place, force=force, tell=tell)
    elif folder is not None:
        raise UsageError(f"--folder is for metrics; local weights of {what} are used with --weights")
    else:
        found = {what: fetch_backbone(what, force=force, quiet=hushed)}
    record = {name: str(path) for name, path in found.items()}
    screen.show({"fetched": record}, list(record.items()))


def fetch_backbone(name: str, *, force: bool, quiet: bool) -> Path:
    """The folder that has the weights of a backbone."""
    from inlay.backbones import BACKBONES, WEIGHTS, hub, resolve

    table = {**BACKBONES, METRICS: None}  # so that all that can be fetched is listed for an unknown name
    entry = pick("weights", resolve(name), table)
    assert entry is not None, "the caller has taken metrics"
    if entry.source is None:
        return WEIGHTS
    hub.show_progress(not quiet)
    return hub.fetch(entry.source, force=force)
