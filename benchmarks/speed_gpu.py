# SPDX-License-Identifier: Apache-2.0
"""Measure everything that docs/speed.md says about a GPU: tests, mask kernel, LIT, whole pipeline, growth.

    PYTHONPATH=src python benchmarks/speed_gpu.py --seconds 200 --out speed_gpu.json  # all stages
    PYTHONPATH=src python benchmarks/speed_gpu.py --stages lit --out speed_gpu.json
    PYTHONPATH=src python benchmarks/speed_gpu.py --device cpu --small                # the same code on tiny sizes

Each stage is a process with a time limit of its own: one that fails, hangs or spoils the device leaves its error and
what it had measured, and the next one runs. Every measurement is on disk as soon as it is made, in FILE.STAGE.part;
FILE itself is put together after each stage. Compilations run beside the tests into a cache on disk; nothing is timed
until they are done.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LIMITS = {"tests": 120, "mask": 60, "lit": 75, "pipeline": 120, "growth": 120}  # seconds; in the order they run
QUIET = 110  # seconds kept for what is timed
LEAST = 12  # seconds below which a stage is not begun
FORMS = ("eager", "fast", "compiled")  # of the whole pipeline
COMPILED = ("encode:1", "decode:1", "encode:8", "decode:8")  # halves of Cosmos and clips at once, compiled ahead


# --- the parent ----------------------------------------------------------------------------------------------------


def run_all(a: argparse.Namespace) -> dict[str, Any]:
    """All stages, each in a process of its own, until time is up."""
    begin = time.monotonic()
    command = f"python benchmarks/speed_gpu.py --stages {' '.join(a.stages)} --seconds {a.seconds:.0f}"
    command += f" --forms {' '.join(a.forms)}" if a.forms != list(FORMS) else ""
    record: dict[str, Any] = {"command": command, "stages": {}}
    warming = [start(a, "--warm", job) for job in COMPILED] if wants_compiling(a) else []
    for name in a.stages:
        left = a.seconds - (time.monotonic() - begin)
        if name != "tests" and warming:
            finish(warming, max(left - QUIET, 1))  # what is not compiled by then is compiled again, or left out
            warming = []
            left = a.seconds - (time.monotonic() - begin)
        if left < LEAST:
            record["stages"][name] = {"error": "no time was left"}
            continue
        clock = time.monotonic()
        found = run_stage(a, name, min(LIMITS[name], left))
        record |= found.pop("machine", {})
        record["stages"][name] = found | {"took_s": round(time.monotonic() - clock, 1)}
        a.out.write_text(json.dumps(record, indent=2) + "\n")
        sys.stderr.write(f"{name}: {time.monotonic() - clock:.0f} s {found.get('error', '')}\n")
    finish(warming, 0)
    return record


def run_stage(a: argparse.Namespace, name: str, limit: float) -> dict[str, Any]:
    part = part_of(a.out, name)
    part.unlink(missing_ok=True)
    child = start(a, "--one", name, "--limit", f"{limit - 3:.0f}")
    try:
        _, complaints = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        complaints = end(child)
    except KeyboardInterrupt:
        end(child)
        raise
    found: dict[str, Any] = json.loads(part.read_text()) if part.is_file() else {}
    if child.returncode:
        found.setdefault("error", f"ended with {child.returncode} after at most {limit:.0f} s")
        found["complaints"] = complaints.decode(errors="replace").splitlines()[-25:]
    return found


def start(a: argparse.Namespace, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "--device", a.device, "--repeats", str(a.repeats), "--out", str(a.out), *more]
    command += ["--forms", *a.forms]
    command += ["--small"] if a.small else []
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    env = {"TORCHINDUCTOR_CACHE_DIR": str(ROOT / ".cache" / "inductor"), "TORCHINDUCTOR_COMPILE_THREADS": "4"}
    env = {**env, **os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, **pipes)


def end(child: subprocess.Popen[bytes]) -> bytes:
    """Stops it and all that it began: what still runs would disturb the next stage."""
    os.killpg(child.pid, signal.SIGKILL)
    return child.communicate()[1]


def wants_compiling(a: argparse.Namespace) -> bool:
    return a.device == "cuda" and not a.small and "pipeline" in a.stages and "compiled" in a.forms


def finish(children: list[subprocess.Popen[bytes]], seconds: float) -> None:
    """Waits for them together, then ends those that are not done."""
    until = time.monotonic() + seconds
    for child in children:
        try:
            child.communicate(timeout=max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            end(child)


def part_of(out: Path, stage: str) -> Path:
    return out.with_name(f"{out.name}.{stage}.part")


# --- a child -------------------------------------------------------------------------------------------------------


def run_one(a: argparse.Namespace) -> None:
    """One stage; what it has found is written after every measurement."""
    import torch
    from speed_stages import STAGES, Notes, Setup

    device = torch.device(a.device)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True
    s = Setup(device=device, small=a.small, repeats=a.repeats, until=time.monotonic() + a.limit, forms=tuple(a.forms))
    notes = Notes(part_of(a.out, a.one))
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    notes["machine"] = {
        "device": name, "torch": torch.__version__, "python": platform.python_version(), "dtype": str(s.dtype)
    }  # fmt: skip
    try:
        STAGES[a.one](s, notes)
    except Exception as error:
        notes["error"] = f"{type(error).__name__}: {error}"[:500]
        notes["where"] = traceback.format_exc().splitlines()[-25:]


def warm(a: argparse.Namespace) -> None:
    """Compiles one half of Cosmos for one batch, so that the cache on disk has it."""
    import torch
    from speed_stages import Setup, made_tokenizer

    from inlay.kernels.switch import at_level

    half, batch = a.warm.split(":")
    torch.backends.cudnn.benchmark = True  # as where it is measured
    s = Setup(device=torch.device(a.device), small=a.small, repeats=1, until=float("inf"))
    with at_level("compile"), torch.inference_mode():
        tokenizer = made_tokenizer(s, "cosmos")
        if half == "encode":
            tokenizer.encode_pixels(torch.rand(int(batch), 3, 33, 256, 256, device=s.device, dtype=s.dtype))
        else:
            tokenizer.decode_latents(torch.randn(int(batch), 16, 9, 32, 32, device=s.device, dtype=s.dtype))


# --- what is said at the end ---------------------------------------------------------------------------------------


def brief(record: dict[str, Any]) -> str:
    """The numbers that matter, for a terminal."""
    lines = [f"{record.get('device')}, torch {record.get('torch')}"]
    for name, found in record["stages"].items():
        lines.append(f"[{name}] {found.get('took_s', 0):.0f} s {found.get('error', '')}")
        lines += [f"  ! {line}" for line in found.get("where", found.get("complaints", []))[-12:]]
        lines += [f"  {line}" for line in told(name, found)]
    return "\n".join(lines)


def told(stage: str, found: dict[str, Any]) -> list[str]:
    """One line for each measurement of a stage; a failed one says why."""
    rows = {k: v for k, v in found.items() if isinstance(v, dict)}
    if stage == "tests":
        return [line for file in rows.values() for line in file["summary"] + file["failed"]]
    lines = []
    for key, row in rows.items():
        if "clip_ms" in row and isinstance(row["clip_ms"], dict):
            said = " ".join(f"{k} {v:.3f}" for k, v in row["clip_ms"].items())
            said += f" | adaptivity {row['adaptivity_share']:.1%}, adds {row['adaptivity_added']:.1%}"
        elif "ms" in row:
            more = ("share_of_copy", "equal", "clip_ms", "off_float32", "floor_ms", "refused")
            said = f"{row['ms']:.4f} ms " + " ".join(
                f"{k}={short(row[k])}" for k in more if row.get(k) not in (None, "")
            )
        else:
            said = " ".join(f"{k} {v['ms']:.2f}" for k, v in row.items() if isinstance(v, dict) and "ms" in v)
        lines.append(f"{key}: {row.get('error', said)}")
        lines += [f"    {line}" for line in row.get("where", [])[-6:]]
    return lines


def short(x: Any) -> str:
    return f"{x:.4g}" if isinstance(x, float) else str(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", nargs="+", default=list(LIMITS), choices=list(LIMITS))
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS, help="of the stage `pipeline`")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to rehearse")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=300, help="for all stages together")
    parser.add_argument("--out", type=Path, default=Path("speed_gpu.json"))
    parser.add_argument("--one", choices=list(LIMITS), help="used by the parent: run this stage here")
    parser.add_argument("--limit", type=float, default=120, help="used by the parent: seconds of this stage")
    parser.add_argument("--warm", help="used by the parent: compile this into the cache")
    a = parser.parse_args()
    a.out = a.out.absolute()
    if a.one:
        run_one(a)
    elif a.warm:
        warm(a)
    else:
        print(brief(run_all(a)))


if __name__ == "__main__":
    main()
