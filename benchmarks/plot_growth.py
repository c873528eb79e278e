# SPDX-License-Identifier: Apache-2.0
"""Plot a record of `growth.py` or of `speed_gpu.py`: time and memory against what grows, with straight lines.

    python benchmarks/plot_growth.py benchmarks/speed_fourth_h200_2026-11-15.json --out docs/pictures/growth.png

Dashed is the line through the first and the last point: what lies on it grows as fast as its input. For videos a second
it is the model of `growth.py`: as many times the rate of one worker, up to what the main process can feed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AXES = {"frames": "frames", "size": "megapixels of a frame", "batch": "clips in a batch"}
STEPS = ("encode", "mask", "lit", "decode")
Points = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One plot: lines of points by name, each with the line it is held against."""

    across: str
    up: str
    lines: dict[str, Points]
    against: dict[str, Points]


def straight(lines: dict[str, Points]) -> dict[str, Points]:
    return {name: [points[0], points[-1]] for name, points in lines.items()}


def series(rows: list[dict[str, Any]], kind: str) -> list[tuple[float, dict[str, Any]]]:
    """(x, row) of the points that differ from the common one in this alone, in order."""
    base = rows[0]  # the common point is measured first
    same = {"frames": ("batch", "height", "width"), "size": ("batch", "frames"), "batch": ("frames", "height", "width")}
    mine = [row for row in rows if all(row[key] == base[key] for key in same[kind])]
    places = [row["height"] * row["width"] / 1e6 if kind == "size" else row[kind] for row in mine]
    return sorted(zip(places, mine, strict=True), key=lambda point: point[0])


def network_panels(rows: list[dict[str, Any]], key: str, label: str) -> list[Panel]:
    panels = []
    for kind, across in AXES.items():
        points = series(rows, kind)
        lines = {step: [(x, row[step][key]) for x, row in points] for step in STEPS}
        panels.append(Panel(across=across, up=label, lines=lines, against=straight(lines)))
    return panels


def streams_panel(part: dict[str, Any]) -> Panel:
    rows = sorted(part.values(), key=lambda row: row["streams"])
    lines = {step: [(row["streams"], row[step]["ms"]) for row in rows] for step in ("encode", "decode")}
    return Panel(across="streams in step", up="milliseconds", lines=lines, against=straight(lines))


def keep_panel(part: dict[str, Any]) -> Panel:
    rows = sorted(part.values(), key=lambda row: row["keep_rate"])
    lines = {
        f"{fill} and decode": [
            (100 * row["keep_rate"], row[fill]["fill"]["ms"] + row[fill]["decode"]["ms"]) for row in rows
        ]
        for fill in ("lit", "hold")
    }
    return Panel(across="cells kept, %", up="milliseconds", lines=lines, against={})


def workers_panel(part: dict[str, Any], model: dict[str, Any]) -> Panel:
    lines = {"measured": sorted((int(n), row["steady"]) for n, row in part.items())}
    last = max(x for x, _ in lines["measured"])
    held = sorted((int(n), rate) for n, rate in model["videos_per_second"].items() if int(n) <= last)
    return Panel(across="workers", up="videos a second", lines=lines, against={"measured": held})


def panels_of(record: dict[str, Any]) -> list[list[Panel]]:
    """Rows of panels: times of networks, memory where it was measured, and whatever else the record holds."""
    rows: list[list[Panel]] = []
    networks = record.get("networks") or record.get("stages", {}).get("growth") or {}
    if points := [row for row in networks.values() if isinstance(row, dict) and "batch" in row]:
        shown = {"ms": "milliseconds", "call_gb": "memory a call takes, GB"}
        rows += [network_panels(points, key, label) for key, label in shown.items() if key in points[0]["encode"]]
    others: dict[str, Callable[[dict[str, Any]], Panel]] = {
        "streams": streams_panel, "keep": keep_panel, "workers": lambda part: workers_panel(part, record["model"])
    }  # fmt: skip
    more = [panel(record[part]) for part, panel in others.items() if record.get(part)]
    return [*rows, *([more] if more else [])]


def draw(record: dict[str, Any], title: str, out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = panels_of(record)
    widest = max(map(len, rows))
    figure, grid = plt.subplots(
        len(rows), widest, figsize=(4 * widest, 3.2 * len(rows)), squeeze=False, layout="constrained"
    )
    for axes in grid.flat:
        axes.set_visible(False)
    for line, panels in zip(grid, rows, strict=True):
        for axes, panel in zip(line, panels, strict=False):
            axes.set_visible(True)
            for name, points in panel.lines.items():
                (drawn,) = axes.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name)
                if held := panel.against.get(name):
                    axes.plot(*zip(*held, strict=True), linestyle="--", linewidth=0.8, color=drawn.get_color())
            axes.set_xlabel(panel.across)
            axes.set_ylabel(panel.up)
            axes.set_ylim(bottom=0)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False)
    figure.suptitle(title)
    figure.savefig(out, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    record = json.loads(a.record.read_text())
    kind = f", {record['dtype'][6:]}" if "dtype" in record else ""
    draw(record, f"mini and its LIT on {record['device']}{kind}", a.out)


if __name__ == "__main__":
    main()
