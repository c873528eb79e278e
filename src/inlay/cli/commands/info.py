# SPDX-License-Identifier: Apache-2.0
"""A token file in, what it holds out; no network is loaded."""

from __future__ import annotations

from typing import Annotated

import typer

from inlay.cli import options, paths
from inlay.cli.screen import Screen


def info(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A token file (*.inlay).")],
    json: options.Json = False,
) -> None:
    """Say what a token file holds.

    The video it came from, how it was made, how many tokens, and where its bits went.
    """
    paths.input_tokens(file)
    from inlay.cli.record import file_record, file_rows

    record = file_record(file)
    Screen(json=json).show(record, file_rows(record))
