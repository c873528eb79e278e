# SPDX-License-Identifier: Apache-2.0
"""Hunt for minutes, or try one case again.

    python -m tests.hunt --minutes 5 --out benchmarks/fuzz_cpu_DATE.json
    python -m tests.hunt --seed 1 --target forged --case 4711

A case is (seed, target, number): the same three make the same case. Exit code 1 where something unexpected was found.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import resource
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from inlay.origin import commit
from tests.hunt.targets import TARGETS

SHARES = {  # of a thousand cases; those that go through a file of the disk take longest
    "damaged": 850, "forged": 90, "header": 20, "profile": 8, "weights": 8, "manifest": 8, "list": 8, "caption": 8,
}  # fmt: skip
SLOWEST_SECONDS, MOST_MB = 2.0, 300  # of one case, of which the largest has a few kilobytes
MOST_FINDINGS = 20


@dataclass(kw_only=True)
class Count:
    """What became of the cases of one target."""

    cases: int = 0
    refused: int = 0
    read: int = 0
    seconds: float = 0.0
    slowest_seconds: float = 0.0
    largest_case_bytes: int = 0


@dataclass(kw_only=True)
class Hunt:
    """A hunt with one seed, its counters and its findings."""

    seed: int
    folder: Path
    counts: dict[str, Count] = field(default_factory=lambda: {name: Count() for name in TARGETS})
    findings: list[dict[str, Any]] = field(default_factory=list)
    peak_mb: float = 0.0

    def __post_init__(self) -> None:
        self._least, self._commit = _resident_mb(), commit()  # of the code that runs, whatever is committed meanwhile

    def run(self, *, seconds: float, cases: int | None = None) -> None:
        """In turns that depend on the seed alone, until the time or the cases are over."""
        turns = random.Random(f"{self.seed} turns")
        names, shares = list(SHARES), list(SHARES.values())
        end, done = time.monotonic() + seconds, 0
        while time.monotonic() < end and done != cases and len(self.findings) < MOST_FINDINGS:
            self.try_one(turns.choices(names, shares)[0])
            done += 1

    def try_one(self, target: str) -> None:
        count = self.counts[target]
        number, count.cases = count.cases, count.cases + 1
        start = time.process_time()  # which other programs do not lengthen
        try:
            outcome = attempt(self.seed, target, number, self.folder)
        except Exception as error:  # which is what is hunted
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.find(target, number, f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})")
            return
        spent = (time.process_time() - start) / outcome.readings
        count.seconds += spent * outcome.readings
        count.slowest_seconds = max(count.slowest_seconds, spent)
        count.largest_case_bytes = max(count.largest_case_bytes, len(outcome.case))
        count.refused, count.read = count.refused + outcome.refused, count.read + (not outcome.refused)
        if spent > SLOWEST_SECONDS:
            self.find(target, number, f"took {spent:.1f} s for {len(outcome.case):,} bytes")
        peak = _resident_mb() - self._least
        if peak > max(self.peak_mb, MOST_MB):
            self.find(target, number, f"took {peak:.0f} MB for {len(outcome.case):,} bytes")
        self.peak_mb = max(self.peak_mb, peak)

    def find(self, target: str, number: int, what: str) -> None:
        again = f"python -m tests.hunt --seed {self.seed} --target {target} --case {number}"
        self.findings.append({"target": target, "case": number, "what": what[:500], "again": again})
        sys.stderr.write(f"{what}\n  {again}\n")

    def record(self, command: str, seconds: float) -> dict[str, Any]:
        rounded = {
            name: {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(count).items()}
            for name, count in self.counts.items()
        }
        return {
            "command": command,
            "commit": self._commit,
            "seed": self.seed,
            "seconds": round(seconds, 1),
            "cases": sum(count.cases for count in self.counts.values()),
            "unexpected": len(self.findings),
            "peak_mb": round(self.peak_mb),
            "limits": {"seconds": SLOWEST_SECONDS, "mb": MOST_MB},
            "targets": rounded,
            "findings": self.findings,
        }


def attempt(seed: int, target: str, number: int, folder: Path) -> Any:
    """One case, which these three make."""
    return TARGETS[target](random.Random(f"{seed} {target} {number}"), folder)


def _resident_mb() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hunt")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the record here, as JSON")
    parser.add_argument("--target", choices=TARGETS, help="with --case: try one case again")
    parser.add_argument("--case", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # every loss of every damaged file
    with tempfile.TemporaryDirectory(prefix="inlay-hunt-") as place:
        if args.case is not None:
            outcome = attempt(args.seed, args.target or "forged", args.case, Path(place))
            print("refused" if outcome.refused else "read", len(outcome.case), "bytes")
            return 0
        hunt = Hunt(seed=args.seed, folder=Path(place))
        start = time.monotonic()
        hunt.run(seconds=60 * args.minutes)
    out = f" --out {args.out.name}" if args.out else ""
    record = hunt.record(
        f"python -m tests.hunt --minutes {args.minutes:g} --seed {args.seed}{out}", time.monotonic() - start
    )
    text = json.dumps(record, indent=1) + "\n"
    if args.out:
        args.out.write_text(text)
    print(text, end="")
    return 1 if hunt.findings else 0


if __name__ == "__main__":
    sys.exit(main())
