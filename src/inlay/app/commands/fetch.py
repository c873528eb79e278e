# SPDX-License-Identifier: Apache-2.0
"""A name in, files in the user's cache out: what is too large or too foreign to ship with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inlay.app import options
from inlay.app.screen import Screen
from inlay.errors import MissingError, pick

PARCELS = {"metrics": ("lpips", "i3d")}  # what can be fetched -> the networks it brings


def fetch(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="metrics: the networks behind LPIPS, FVD and KVD.")],
    folder: Annotated[
        str | None, typer.Option("--folder", metavar="DIR", help="Take the archives from here, not from the network.")
    ] = None,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Bring weights of metrics into the cache."""
    names = pick("parcel", what, PARCELS)
    if folder is not None and not Path(folder).is_dir():
        raise MissingError(f"{folder}: no such folder; give the one that holds the archives")

    from inlay.measure import fetch_metrics

    screen = Screen(json=json, quiet=quiet or json)
    found = fetch_metrics(names, folder=Path(folder) if folder else None, force=force, tell=screen.note)
    record = {name: str(path) for name, path in found.items()}
    Screen(json=json, quiet=quiet).show({"fetched": record}, list(record.items()))
