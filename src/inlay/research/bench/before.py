# SPDX-License-Identifier: Apache-2.0
"""A record beside an earlier one: what each stage took before, and what else has changed since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inlay.errors import UsageError

PLACE = ("size", "frames", "batch", "path", "stage")
SAME = ("device", "threads", "torch", "backbone", "parameters")  # where these differ, times are of something else


def read_record(path: Path) -> dict[str, Any]:
    """A record that `inlay bench` wrote."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        rows = {place_of(row): row["clip_ms"] for row in record["rows"] if "missing" not in row}
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); give a record of inlay bench") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path}: is no record of inlay bench; give a file that its --out wrote") from error
    if not all(isinstance(ms, int | float) and ms > 0 for ms in rows.values()):
        raise UsageError(f"{path}: holds times that are no positive numbers; give another record")
    return record


def compare(record: dict[str, Any], before: dict[str, Any], name: str) -> None:
    """Add to each row what the same stage took before, and to the record what the comparison is worth."""
    took = {place_of(row): row["clip_ms"] for row in before["rows"] if "missing" not in row}
    found = 0
    for row in record["rows"]:
        if "missing" not in row and place_of(row) in took:
            row |= {"before_ms": took[place_of(row)], "times_before": row["clip_ms"] / took[place_of(row)]}
            found += 1
    changed = [f"{key} {before.get(key)} then, {record[key]} now" for key in SAME if before.get(key) != record[key]]
    then, now = before.get("load_average"), record.get("load_average")
    if isinstance(then, int | float) and isinstance(now, int | float):
        changed.append(f"load {then:.1f} then, {now:.1f} now")
    record["before"] = f"{name}, {found} of {len(record['rows'])} rows; " + (
        "; ".join(changed) or "nothing else differs"
    )


def place_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[key] for key in PLACE)
