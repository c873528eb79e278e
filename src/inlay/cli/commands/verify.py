# SPDX-License-Identifier: Apache-2.0
"""`inlay verify`: the damage of token files; every checksum is compared and every chunk decoded."""

from __future__ import annotations

from typing import Annotated

import typer

from inlay.cli import paths
from inlay.cli.screen import Screen
from inlay.errors import TokenFileError


def verify(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Token files (*.inlay).")],
    screen: Screen,
) -> None:
    """Check token files to the last byte.

    The exit code is 4 if one of them is damaged.
    """
    reports = {file: _problems(file) for file in files}
    record = {
        "ok": not any(reports.values()),
        "files": [{"file": file, "ok": not found, "problems": found} for file, found in reports.items()],
    }
    screen.show(record, [(f, "; ".join(found) or "ok") for f, found in reports.items()])
    if not record["ok"]:
        raise typer.Exit(TokenFileError.exit_code)


def _problems(file: str) -> list[str]:
    """A file that cannot even be opened is one more problem, not the end of the list."""
    try:
        paths.input_tokens(file)
        from inlay.container import verify as verify_file

        return verify_file(file)
    except TokenFileError as error:
        return [str(error).removeprefix(f"{file}: ")]
