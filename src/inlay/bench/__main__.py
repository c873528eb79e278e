# SPDX-License-Identifier: Apache-2.0
"""Flags in, a table on stdout and a JSON file out: `inlay bench` for machines that have nothing but torch."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from inlay.bench.config import BenchConfig
from inlay.bench.run import bench, table
from inlay.errors import InlayError


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m inlay.bench", description=__doc__)
    parser.add_argument("--backbone", default=BenchConfig.backbone)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--repeats", type=int, default=BenchConfig.repeats)
    for name, kind in (("sizes", str), ("frames", int), ("batches", int), ("paths", str), ("stages", str)):
        parser.add_argument(f"--{name}", type=kind, nargs="+", default=list(getattr(BenchConfig, name)))
    parser.add_argument("--out", type=Path)
    a: dict[str, Any] = vars(parser.parse_args(argv))
    out = a.pop("out")
    try:
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in a.items()}
        record = bench(BenchConfig(**given), note=say)
    except InlayError as error:
        sys.stderr.write(f"inlay: {error}\n")
        return error.exit_code
    sys.stdout.write(table(record) + "\n")
    if out is not None:
        out.write_text(json.dumps(record, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
