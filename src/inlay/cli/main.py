# SPDX-License-Identifier: Apache-2.0
"""Assemble the commands, run one, and turn whatever goes wrong into one line on stderr and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import typer

from inlay.cli import streams
from inlay.cli.commands import (
    backbones,
    bench,
    cache,
    calibrate,
    compare,
    decode,
    demo,
    doctor,
    encode,
    export,
    fetch,
    info,
    serve,
    study,
    tokenize,
    train,
    verify,
    view,
)
from inlay.cli.commands import eval as evaluation
from inlay.cli.failures import TRACING, explain
from inlay.cli.help import PanelCommand, PanelGroup
from inlay.cli.options import with_flags
from inlay.cli.running import reuse_memory
from inlay.errors import PIPE_CLOSED, Terminated, UsageError

PANELS: dict[str, dict[str, Callable[..., Any]]] = {  # heading in the help -> command -> function
    "Use": {
        "encode": encode.encode,
        "decode": decode.decode,
        "info": info.info,
        "verify": verify.verify,
        "view": view.view,
        "demo": demo.demo,
        "serve": serve.serve,
        "tokenize": tokenize.tokenize,
        "export": export.export,
        "backbones": backbones.backbones,
        "fetch": fetch.fetch,
        "doctor": doctor.doctor,
    },
    "Train": {"calibrate": calibrate.calibrate},
    "Measure": {"compare": compare.compare, "eval": evaluation.evaluate},
    "Research": {"study": study.study, "bench": bench.bench},
}
COMMANDS = {name: with_flags(function) for panel in PANELS.values() for name, function in panel.items()}
GROUPS: dict[str, tuple[str, typer.Typer]] = {  # commands with commands of their own, and their panel
    "train": ("Train", train.app),
    "cache": ("Use", cache.app),
}


app = typer.Typer(
    name="inlay",
    cls=PanelGroup,
    rich_markup_mode=None,  # plain help: half the time, and it can be piped
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, (_panel, _group) in GROUPS.items():
    app.add_typer(_group, name=_name, rich_help_panel=_panel)
for _panel, _commands in PANELS.items():
    for _name in _commands:
        app.command(_name, cls=PanelCommand, rich_help_panel=_panel)(COMMANDS[_name])


def _show_version(wanted: bool) -> None:
    if wanted:
        from inlay.origin import version_text

        typer.echo(version_text())
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print version and commit, and leave."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (also INLAY_DEBUG=1; at any place).")
    ] = False,
) -> None:
    """An adaptive video tokeniser: keeps the latent cells that change, and fills in the others."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(argv: list[str] | None = None) -> int:
    """Run one command; what the exit code means is in `errors.EXIT_CODES`."""
    args = list(sys.argv[1:] if argv is None else argv)
    if argv is None:  # as a program, not from a test or a notebook
        streams.prepare()
        signal.signal(signal.SIGTERM, _terminate)
        if args[:1] != ["serve"]:  # which runs for days, and must give memory back
            reuse_memory()
    if "_INLAY_COMPLETE" in os.environ:  # the shell asks for completions: typer's own runner knows how
        app(args, prog_name="inlay")
    TRACING.set(os.environ.get("INLAY_DEBUG", "0") not in ("", "0") or "--debug" in args)
    try:
        code = _invoke([a for a in args if a != "--debug"])
        sys.stdout.flush()
    except BrokenPipeError:
        streams.lose_output()
        return PIPE_CLOSED
    except (KeyboardInterrupt, Exception) as error:
        message, code = _explain(error, args)
        with suppress(OSError):
            sys.stderr.write(f"{message}\n")
        try:
            sys.stdout.flush()
        except OSError:
            streams.lose_output()
    return code


def _terminate(number: int, frame: object) -> None:
    """Once: `timeout` asks twice, and what is being put away must not be interrupted."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def _invoke(args: list[str]) -> int:
    """Typer's own `main` would catch interrupts and closed pipes with other exit codes than ours."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("inlay", list(args), obj=tuple(args)) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    return 0


def _explain(error: BaseException, args: list[str]) -> tuple[str, int]:
    """The one line a person needs, and the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command: its help is the answer
        return str(error), UsageError.exit_code
    command = typer.main.get_command(app)
    for word in args:
        command = getattr(command, "commands", {}).get(word, command)
    message, code = explain(error, command)
    return f"inlay: {message}", code
