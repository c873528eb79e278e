# SPDX-License-Identifier: Apache-2.0
"""Make a record for each task: every reading and seed, several processes at once; then the speeds.

python examples/sparse_classifier/sweep.py latents/motion.npz latents/subject.npz --device cuda --out results

A process that fails, or is cut short, is told and passed over: what the others found is written as it comes. Speeds are
timed after all have ended, with nobody else on the device.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from train import summary, table

HERE = Path(__file__).parent
OBJECTS = ("still", "object left", "object right", "object up", "object down")
EPOCHS = {"motion": 30, "object": 60, "subject": 20}  # so that each task sees about as many batches
PLAIN = "per-clip"
NETWORK = ("--width", "128", "--depth", "4", "--heads", "4", "--batch", "52", "--lr", "1e-3")


@dataclass(frozen=True, kw_only=True)
class Task:
    name: str
    latents: Path
    only: tuple[str, ...] = ()

    def options(self) -> list[str]:
        return [str(self.latents), *(["--only", *self.only] if self.only else [])]


@dataclass(kw_only=True, eq=False)
class Run:
    """One seed of one task, by a process of its own."""

    task: Task
    seed: int
    part: Path
    attention: str
    process: subprocess.Popen[bytes] | None = field(default=None)

    def start(self, args: argparse.Namespace) -> None:
        epochs = args.epochs or EPOCHS.get(self.task.name, 30)
        log = self.part.with_suffix(".log").open("wb")
        command = [sys.executable, str(HERE / "train.py"), *self.task.options(), *NETWORK, "--device", args.device]
        more = ["--epochs", str(epochs), "--seeds", "1", "--first-seed", str(self.seed), "--attention", self.attention]
        with log:
            self.process = subprocess.Popen(
                [*command, *more, "--out", str(self.part)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // args.processes))},
            )


def main(argv: list[str] | None = None) -> list[Path]:
    args = parse(argv)
    (args.out / "parts").mkdir(parents=True, exist_ok=True)
    tasks = [task for path in args.latents for task in tasks_of(path)]
    waiting = [
        Run(task=task, seed=seed, part=args.out / "parts" / f"{task.name}-{seed}.json", attention=args.attention)
        for seed in range(args.seeds)
        for task in tasks
    ]
    running: list[Run] = []
    deadline = time.monotonic() + args.minutes * 60
    while waiting or running:
        while waiting and len(running) < args.processes:
            running.append(waiting.pop(0))
            running[-1].start(args)
        time.sleep(0.2)
        late = time.monotonic() > deadline
        over = [run for run in running if ended(run, late=late)]
        running = [run for run in running if run not in over]
        waiting = [] if late else waiting + [replace(run, attention=PLAIN) for run in over if to_be_retried(run)]
    written = [merge(task, args.out) for task in tasks]
    if not args.no_speed:
        for task in tasks:
            time_alone(task, args)
    return [path for path in written if path]


def tasks_of(path: Path) -> list[Task]:
    """The clips with an object before a still ground are a task of their own: there most cells can be dropped."""
    own = [Task(name=path.stem, latents=path)]
    return own + ([Task(name="object", latents=path, only=OBJECTS)] if path.stem == "motion" else [])


def ended(run: Run, *, late: bool) -> bool:
    assert run.process is not None
    if run.process.poll() is None:
        if not late:
            return False
        run.process.kill()
        run.process.wait()
    if run.process.returncode:
        last = (run.part.with_suffix(".log").read_text(errors="replace").strip().splitlines() or ["no words"])[-1]
        print(f"{run.task.name}, seed {run.seed}: failed ({run.process.returncode}): {last}", flush=True)
    else:
        print(f"{run.task.name}, seed {run.seed}: done", flush=True)
    merge(run.task, run.part.parent.parent)
    return True


def to_be_retried(run: Run) -> bool:
    """Once, with the attention that runs everywhere: kernels for clips of many lengths are young."""
    assert run.process is not None
    return bool(run.process.returncode) and run.attention != PLAIN and not run.part.exists()


def merge(task: Task, out: Path) -> Path | None:
    """One record of the seeds there are by now."""
    parts = [json.loads(path.read_text()) for path in sorted((out / "parts").glob(f"{task.name}-*.json"))]
    if not parts:
        return None
    runs: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        for row in part["rows"]:
            found = {"accuracy": row["accuracies"][0], "class_accuracy": row["class_accuracies"][0]}
            runs.setdefault(row["reading"], []).append(row | found)
    rows = [summary(reading, found) for reading, found in runs.items()]
    for row in rows:
        row.pop("clips_per_second")  # processes side by side: the speeds are those that speed.py times alone
    seeds = sorted(part["settings"]["first_seed"] for part in parts)
    path = out / f"sparse_classifier_{task.name}.json"
    merged = parts[0] | {"command": f"python examples/sparse_classifier/sweep.py {task.latents.name} --out DIR"}
    path.write_text(json.dumps(merged | {"seeds": seeds, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return path


def time_alone(task: Task, args: argparse.Namespace) -> None:
    out = args.out / "parts" / f"{task.name}-speed.txt"
    record = out.with_name(f"speed-{task.name}.json")
    sizes = ["small"] if args.device == "cpu" else ["small", "large"]
    command = [sys.executable, str(HERE / "speed.py"), *task.options(), "--device", args.device, "--sizes", *sizes]
    with out.open("wb") as log:
        code = subprocess.call(
            [*command, "--attention", args.attention, "--steps", str(args.speed_steps), "--out", str(record)],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    path = args.out / f"sparse_classifier_{task.name}.json"
    if record.exists() and path.exists():
        merged = json.loads(path.read_text()) | {"speed": json.loads(record.read_text())}
        path.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")
    if code:
        print(f"{task.name}: speeds failed ({code}); see {out}", flush=True)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("latents", type=Path, nargs="+", help="the file's name is that of its task")
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--seeds", type=int, default=4, help="four test every clip once")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=10.0, help="then what still runs is ended")
    parser.add_argument("--epochs", type=int, default=0, help="of every task; 0: its own")
    parser.add_argument("--speed-steps", type=int, default=20)
    parser.add_argument("--no-speed", action="store_true")
    parser.add_argument("--attention", default="nested")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args(argv)


if __name__ == "__main__":
    for path in main():
        told = json.loads(path.read_text())
        print(f"\n{path.stem}: {told['data']}, keep rate {told['keep_rate']:.1%}, seeds {told['seeds']}")
        print(table(told["rows"]))
        for row in told.get("speed", {}).get("rows", []):
            print(f"  {row['network']} network, {row['reading']}: {row['clips_per_second']:.0f} clips/s")
