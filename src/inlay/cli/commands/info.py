# SPDX-License-Identifier: Apache-2.0
"""`inlay info`: what token files hold; no network is loaded."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from inlay.cli import many, paths
from inlay.cli.screen import Screen, size_text
from inlay.errors import number_of


def info(
    context: typer.Context,
    files: Annotated[
        list[str], typer.Argument(metavar="TOKENS...", help="Token files (*.inlay), folders of them, patterns.")
    ],
    *,
    screen: Screen,
) -> None:
    """Say what token files hold.

    The video each came from, how it was made, how many tokens, and where its bits went.
    """

    def work(item: many.Input, screen: Screen) -> many.Result:
        record = file_record(paths.input_tokens(item.source))
        return many.Result(record=record, rows=file_rows(record), line=file_line(record))

    many.for_each(many.token_files(files), work, context=context, screen=screen)


def file_record(path: str) -> dict[str, Any]:
    """What `info --json` prints; the keys are part of the public surface."""
    from inlay.container import summary

    return {"file": str(Path(path)), **asdict(summary(path))}


def step_text(record: dict[str, Any]) -> str:
    """How coarsely the numbers were rounded, where that was chosen."""
    if record["steps"] is None:
        return ""
    least, most = min(record["steps"]), max(record["steps"])
    place = "steps" if record["step"] is None else f"step {record['step']:g}"
    return f" {place} ({least:.3g} to {most:.3g})"


def scale_text(record: dict[str, Any]) -> str:
    """The size that the video was encoded at, where that is not its own."""
    return "" if record["scale"] == "1" else f", encoded at {record['scale']} of its size"


def thin_text(record: dict[str, Any]) -> str:
    """What was kept of key slots, where that was not all."""
    return "" if record["key_slots"] == "whole" else f", {record['key_slots']} key slots"


def file_line(record: dict[str, Any]) -> str:
    """The record as one line among many."""
    return (
        f"{number_of(record['frames'], 'frame')} {record['width']}x{record['height']}, {record['keep_rate']:.1%} kept, "
        f"{record['tokens']:,} tokens, {record['bytes']:,} bytes, {record['bits_per_pixel']:.4f} bits a pixel"
    )


def file_rows(record: dict[str, Any]) -> list[tuple[str, str]]:
    """The record as lines for a person."""
    fps = float(record["fps"])
    return [
        ("file", f"{record['file']}, {size_text(record['bytes'])}"),
        ("video", f"{number_of(record['frames'], 'frame')} {record['width']}x{record['height']} at {fps:g} fps"
                  f"{scale_text(record)}"),
        ("kept", f"{record['keep_rate']:.1%}: {record['tokens']:,} tokens of {record['cells']:,} cells, "
                 f"mode {record['streaming']}"),
        ("bits", f"{record['bits_per_pixel']:.4f} a pixel, all included"),
        ("bytes", f"values {record['value_bytes']:,}, mask {record['mask_bytes']:,}, rest {record['header_bytes']:,}, "
                  f"in {number_of(record['chunks'], 'chunk')}"),
        ("recipe", f"{record['backbone']}, tau {record['tau']:g}, {record['criterion']}, {record['reference']}"
                   f"{thin_text(record)}, {record['precision']}{step_text(record)}, fill {record['fill']}"),
    ]  # fmt: skip
