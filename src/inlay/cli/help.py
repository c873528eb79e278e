# SPDX-License-Identifier: Apache-2.0
"""How help is laid out: commands and flags under headings, examples last; plain text that can be piped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import typer

from inlay.cli.examples import EXAMPLES

COMMAND_PANELS = ("Use", "Train", "Measure", "Research")
FIRST = ("encode", "info", "decode", "compare", "view", "demo")  # commands that one begins with
FLAG_PANELS = {  # heading -> the parameters below it, wherever a command has them; others stand under Options, first
    "Budget": ("tau", "keep", "tokens", "bits", "psnr", "loss", "exact", "bucket_seconds", "noise"),
    "Tokens": ("criterion", "reference", "key_slots", "second_look", "precision", "step", "scale"),
    "Chunks": ("mode", "chunk_frames", "key_seconds", "cuts"),
    "Model": ("backbone", "weights", "trust", "device", "dtype", "fill", "profile", "shape", "init", "init_lit"),
    "Screen and machine": ("json", "quiet", "verbose", "threads", "help"),
}
_PANEL_OF = {name: panel for panel, names in FLAG_PANELS.items() for name in names}
_PLACE = {name: place for place, name in enumerate(_PANEL_OF)}
_UNBROKEN = "\N{NON-BREAKING HYPHEN}"  # in names, until lines are made: one that is cut in two cannot be copied


class PanelGroup(typer.core.TyperGroup):
    """Print the commands under the headings of their panels; those of a group without panels as they are."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        limit = formatter.width - 6 - max(map(len, self.commands))
        panels: dict[str, list[Any]] = {panel: [] for panel in (*COMMAND_PANELS, "Commands")}
        for command in self.commands.values():
            named = getattr(command, "rich_help_panel", None)
            panels[named if named in COMMAND_PANELS else "Commands"].append(command)
        for panel, own in panels.items():
            if own:
                with formatter.section(panel):
                    formatter.write_dl([(c.name, c.get_short_help_str(limit)) for c in own])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The first example of each command; of all commands, those that one begins with."""
        below = ctx.command_path.split()[1:]
        names = [" ".join([*below, name]) for name in (self.commands if below else FIRST)]
        _write_examples(formatter, [EXAMPLES[name][0] for name in names])


class PanelCommand(typer.core.TyperCommand):
    """Print the flags under their headings, then the examples."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [p for p in self.get_params(ctx) if p.param_type_name == "argument"]
        names = [p.metavar if p.required else f"[{p.metavar}]" for p in arguments]
        return [self.options_metavar or "", *(str(name) for name in names)]

    def get_help(self, ctx: Any) -> str:
        return super().get_help(ctx).replace(_UNBROKEN, "-")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments: list[tuple[str, str]] = []
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in sorted(self.get_params(ctx), key=_place):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            if parameter.param_type_name == "argument":
                arguments.append((str(parameter.metavar), record[1].removesuffix("  [required]")))
            else:
                panels.setdefault(_panel(parameter), []).append(record)
        first, last = ("Options",), tuple(FLAG_PANELS)
        between = tuple(panel for panel in panels if panel not in (*first, *last))  # a command's own
        for panel, records in {
            "Arguments": arguments,
            **{p: panels.get(p, []) for p in first + between + last},
        }.items():
            if records:
                with formatter.section(panel):
                    formatter.write_dl([(name, re.sub(r"(?<=\w)-(?=\w)", _UNBROKEN, text)) for name, text in records])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The examples as they are typed, unwrapped."""
        _write_examples(formatter, EXAMPLES[" ".join(ctx.command_path.split()[1:])])


def _write_examples(formatter: Any, lines: Sequence[str]) -> None:
    with formatter.section("Examples"):
        for line in lines:
            formatter.write(f"{'':{formatter.current_indent}}{line}\n")


def _place(parameter: Any) -> int:
    """Where a flag stands under its heading; arguments stay in the order in which they are typed."""
    return -1 if parameter.param_type_name == "argument" else _PLACE.get(parameter.name, -1)


def _panel(parameter: Any) -> str:
    return getattr(parameter, "rich_help_panel", None) or _PANEL_OF.get(parameter.name, "Options")
