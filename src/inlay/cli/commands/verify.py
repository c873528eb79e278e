# SPDX-License-Identifier: Apache-2.0
"""`inlay verify`: the damage of token files; every checksum is compared, every chunk decoded."""

from __future__ import annotations

from typing import Annotated

import typer

from inlay.cli import options, paths
from inlay.cli.screen import Screen
from inlay.errors import TokenFileError


def verify(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Token files (*.inlay).")],
    *,
    large: options.Large = False,
    screen: Screen,
) -> None:
    """Check token files to the last byte.

    What passes decodes to exactly what its header says. The exit code is 4 if one of them does not.
    """
    reports = {file: _problems(file, large=large) for file in files}
    record = {
        "ok": not any(reports.values()),
        "files": [{"file": file, "ok": not found, "problems": found} for file, found in reports.items()],
    }
    screen.show(record, [(f, "; ".join(found) or "ok") for f, found in reports.items()])
    if not record["ok"]:
        raise typer.Exit(TokenFileError.exit_code)


def _problems(file: str, *, large: bool) -> list[str]:
    """A file that cannot even be opened is one more problem, not the end of the list."""
    try:
        paths.input_tokens(file)
        from inlay.codec import verify as verify_file

        return [problem.removeprefix(f"{file}: ") for problem in verify_file(file, large=large)]
    except TokenFileError as error:
        return [str(error).removeprefix(f"{file}: ")]
