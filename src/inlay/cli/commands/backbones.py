# SPDX-License-Identifier: Apache-2.0
"""`inlay backbones`: the backbones that have a name, with licence, size, strides, and which weights are here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inlay.cli.screen import Screen

if TYPE_CHECKING:
    from inlay.backbones import Entry

LINE = "{:>8}  {:>8}  {:>10}  {:<15}  {}"
HEAD = LINE.format("strides", "channels", "parameters", "weights", "what it is; licence")


def backbones(*, screen: Screen) -> None:
    """List the backbones that can be named.

    Besides these: a folder that diffusers saved, and module:Class for one of your own (docs/backbones.md).
    """
    from inlay.backbones import BACKBONES

    records = {name: record(entry) for name, entry in BACKBONES.items()}
    rows = [("name", HEAD), *((name, LINE.format(*cells(r))) for name, r in records.items())]
    screen.show({"backbones": records}, rows)


def record(entry: Entry) -> dict[str, Any]:
    same = {name: getattr(entry, name) for name in ("about", "licence", "channels", "strides", "tau")}
    return same | {
        "million_parameters": entry.million,
        "repository": entry.source.repo if entry.source else None,
        "weights": weights_of(entry),
    }


def weights_of(entry: Entry) -> str:
    """Where they are: shipped, cached, or to be fetched."""
    if entry.source is None:
        return "shipped"
    from inlay.backbones.hub import cached
    from inlay.errors import MissingError, install_line

    try:
        return "cached" if cached(entry.source) else "to fetch, gated" if entry.source.gated else "to fetch"
    except MissingError:
        return f"to fetch; needs: {install_line('hf')}"


def cells(r: dict[str, Any]) -> tuple[str, ...]:
    """A line of the list, below HEAD."""
    strides = "x".join(map(str, r["strides"]))
    return (
        strides,
        str(r["channels"]),
        f"{r['million_parameters']:.1f} M",
        r["weights"],
        f"{r['about']}; {r['licence']}",
    )
