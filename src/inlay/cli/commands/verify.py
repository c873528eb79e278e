# SPDX-License-Identifier: Apache-2.0
"""`inlay verify`: the damage of token files; every checksum is compared, every chunk decoded."""

from __future__ import annotations

from typing import Annotated

import typer

from inlay.cli import many, options, paths
from inlay.cli.screen import Screen
from inlay.errors import TokenFileError


def verify(
    context: typer.Context,
    files: Annotated[
        list[str], typer.Argument(metavar="TOKENS...", help="Token files (*.inlay), folders of them, patterns.")
    ],
    *,
    large: options.Large = False,
    screen: Screen,
) -> None:
    """Check token files to the last byte.

    What passes decodes to exactly what its header says. The exit code is 4 if one of them does not.
    """

    def work(item: many.Input, screen: Screen) -> many.Result:
        found = _problems(item.source, large=large)
        line = "; ".join(found) or "ok"
        return many.Result(
            record={"file": item.source, "ok": not found, "problems": found},
            rows=[(item.source, line)],
            line=line,
            exit_code=TokenFileError.exit_code if found else 0,
        )

    many.for_each(many.token_files(files), work, context=context, screen=screen)


def _problems(file: str, *, large: bool) -> list[str]:
    """A file that cannot even be opened is one more problem, not the end of the list."""
    try:
        paths.input_tokens(file)
        from inlay.codec import verify as verify_file
        from inlay.kernels.switch import at_level

        with at_level("0"):  # ISA-L lets incomplete Huffman codes pass, which zlib elsewhere would not
            return [problem.removeprefix(f"{file}: ") for problem in verify_file(file, large=large)]
    except TokenFileError as error:
        return [str(error).removeprefix(f"{file}: ")]
