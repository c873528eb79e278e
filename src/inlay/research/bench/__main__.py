# SPDX-License-Identifier: Apache-2.0
"""`inlay bench` for machines that have nothing but torch: a table on stdout, and a JSON file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from inlay.errors import InlayError, UsageError
from inlay.research.bench.before import compare, read_record
from inlay.research.bench.config import BenchConfig, names, numbers
from inlay.research.bench.run import bench, table

LISTS = ("sizes", "frames", "batches", "paths", "stages")


def check_out(out: Path | None) -> None:
    """Refuse before minutes of timing what could not be written after them."""
    if out is not None and out.exists():
        raise UsageError(f"{out}: exists already; give another name")
    if out is not None and not out.parent.is_dir():
        raise UsageError(f"{out}: the folder {out.parent} does not exist; make it first")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m inlay.research.bench", description=__doc__)
    parser.add_argument("--backbone", default=BenchConfig.backbone)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--repeats", type=int, default=BenchConfig.repeats)
    parser.add_argument("--seconds", type=float, default=BenchConfig.seconds)
    for name in LISTS:
        default = [str(value) for value in getattr(BenchConfig, name)]
        parser.add_argument(f"--{name}", nargs="+", default=default, help="with commas or spaces between")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--out", type=Path)
    a: dict[str, Any] = vars(parser.parse_args(argv))
    out, against = a.pop("out"), a.pop("against")
    try:
        check_out(out)
        before = None if against is None else read_record(against)
        lists = {name: ",".join(a[name]) for name in LISTS}
        counts = {name: numbers(lists.pop(name), f"--{name}") for name in ("frames", "batches")}
        config = BenchConfig(**{**a, **counts, **{name: names(text) for name, text in lists.items()}})
        record = bench(config, note=lambda line: print(line, file=sys.stderr))  # noqa: T201
        if before is not None:
            compare(record, before, str(against))
    except InlayError as error:
        sys.stderr.write(f"inlay: {error}\n")
        return error.exit_code
    sys.stdout.write(table(record) + "\n")
    if out is not None:
        out.write_text(json.dumps(record, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
