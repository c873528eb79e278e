# SPDX-License-Identifier: Apache-2.0
"""The record of `train.py` as a table; with `--into`, in the place of the one in a page.

python examples/world_model/table.py world.json --into examples/world_model/README.md
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- table -->\n", "<!-- end of the table -->\n"
HEAD = (
    "| trained on | tokens a clip | bytes of the set | error | decoded | error, true past | steps a second |",
    "|---|---|---|---|---|---|---|",
)


def table(record: dict[str, Any]) -> str:
    """Mean ± sd over seeds."""
    lines, clips = list(HEAD), record["clips"]["train"]
    for row in record["rows"]:
        own = spread(row, "error_true_past", 4) if "error_true_past" in row else ""
        cells = [name(row["kind"]), f"{row['tokens'] / clips:,.0f}", f"{row['bytes'] / 1e6:.2f} MB"]
        cells += [spread(row, "error", 4), f"{spread(row, 'psnr', 2)} dB", own, f"{row['steps_per_second']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    whole = record["data"]["training_set_bytes"]["q8, all cells"]
    lines.append(f"| *all cells as token files* | {record['cells_per_clip']:,} | {whole / 1e6:.2f} MB | | | | |")
    for what, found in record["without a network"].items():
        lines.append(f"| *{what}* | | | {found['error']:.4f} | {found['psnr']:.2f} dB | | |")
    return "\n".join(lines) + "\n"


def name(kind: str) -> str:
    how, _, share = kind.partition(" ")
    words = {"latents": "all latents", "filled": "latents filled in from", "tokens": "tokens alone,"}
    words["tokens+fill"] = "tokens, to latents filled in,"
    return f"{words[how]} {float(share):.0%}" if share else words[how]


def spread(row: dict[str, Any], key: str, digits: int) -> str:
    sd = row[f"{key}_sd"]
    return f"{row[key]:.{digits}f}" + ("" if sd is None else f" ± {sd:.{digits}f}")


def put(page: str, made: str) -> str:
    """The page with this table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"table: the page has no lines {BEGIN.strip()} and {END.strip()}")
    return f"{before}{BEGIN}{made}{END}{after}"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("--into", type=Path, help="a page with the marks of a table")
    args = parser.parse_args(argv)
    made = table(json.loads(args.record.read_text(encoding="utf-8")))
    if args.into is None:
        print(made, end="")
    else:
        args.into.write_text(put(args.into.read_text(encoding="utf-8"), made), encoding="utf-8")


if __name__ == "__main__":
    main()
