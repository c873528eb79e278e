# SPDX-License-Identifier: Apache-2.0
"""Plot a record of `speed_gpu.py`: time and memory against frames, pixels, batch, with straight lines.

    python benchmarks/plot_growth.py benchmarks/speed_fourth_h200_2026-11-15.json --out docs/pictures/growth.png

Dashed is the line through the first and the last point: what lies on it grows as fast as its input.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

AXES = {"frames": "frames", "size": "megapixels of a frame", "batch": "clips in a batch"}
SHOWN = {"ms": "milliseconds", "call_gb": "memory a call takes, GB"}
STEPS = ("encode", "mask", "lit", "decode")


def series(growth: dict[str, Any], kind: str) -> list[tuple[float, dict[str, Any]]]:
    """(x, row) of the points that differ from the common one in this alone, in order."""
    rows = [row for row in growth.values() if isinstance(row, dict) and "batch" in row]
    base = rows[0]  # the stage measures the common point first
    same = {"frames": ("batch", "height", "width"), "size": ("batch", "frames"), "batch": ("frames", "height", "width")}
    mine = [row for row in rows if all(row[key] == base[key] for key in same[kind])]
    places = [row["height"] * row["width"] / 1e6 if kind == "size" else row[kind] for row in mine]
    return sorted(zip(places, mine, strict=True), key=lambda point: point[0])


def draw(growth: dict[str, Any], title: str, out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    first = next(row for row in growth.values() if isinstance(row, dict))
    shown = {key: label for key, label in SHOWN.items() if key in first["encode"]}
    figure, grid = plt.subplots(
        len(shown), 3, figsize=(12, 3.2 * len(shown)), sharex="col", squeeze=False, layout="constrained"
    )
    for column, (kind, label) in enumerate(AXES.items()):
        xs, rows = zip(*series(growth, kind), strict=True)
        for axes, key in zip(grid[:, column], shown, strict=True):
            for step in STEPS:
                ys = [row[step][key] for row in rows]
                (drawn,) = axes.plot(xs, ys, marker="o", markersize=4, label=step)
                axes.plot([xs[0], xs[-1]], [ys[0], ys[-1]], linestyle="--", linewidth=0.8, color=drawn.get_color())
        grid[-1][column].set_xlabel(label)
    for axes, label in zip(grid[:, 0], shown.values(), strict=True):
        axes.set_ylabel(label)
    grid[0][0].legend(frameon=False)
    for axes in grid.flat:
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    figure.savefig(out, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    a = parser.parse_args()
    record = json.loads(a.record.read_text())
    draw(record["stages"]["growth"], f"mini and its LIT on {record['device']}, {record['dtype'][6:]}", a.out)


if __name__ == "__main__":
    main()
