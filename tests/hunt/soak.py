# SPDX-License-Identifier: Apache-2.0
"""Kill, stream and ask for as long as wanted, and see that nothing is lost, nothing grows and nobody is harmed.

    python -m tests.hunt.soak --kills 300 --frames 1000000 --requests 2000 --out benchmarks/soak_cpu_DATE.json
    python -m tests.hunt.soak --seed 1 --only encode --case 17

A case is (seed, part, number). `encode` and `train` die at a chosen call of a function, counted from the start, so that
the same case dies at the same place; `tokenize` has several processes and dies at a chosen time. Exit code 1 where
something unexpected was found.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from inlay.cli.main import main as inlay
from inlay.codec import Decoder, EncodeConfig, VideoEncoder, encode_file
from inlay.container import TokenReader
from inlay.masking import Budget
from inlay.origin import commit
from inlay.tokenizer import Tokenizer
from inlay.video import write_video
from inlay.video.frames import Video
from tests.conftest import moving_square

MODEL = ["--backbone", "mini-untrained", "--device", "cpu"]
ENCODES = (  # settings of the encodes that are killed, in turn
    ["--tau", "0.1"],
    ["--keep", "0.4", "--bucket", "1"],
    ["--bits", "1.5", "--bucket", "1"],
    ["--keep", "0.5"],
    ["--tau", "0.1", "--mode", "dual-cache"],
)
MOST_DEATHS = 4  # of one encode or run, before it is left alone
FLAT_MB = 32  # that a stream may grow by, once everything that is made once has been made
MOST_FINDINGS = 20


@dataclass(kw_only=True)
class Soak:
    """A soak with one seed: what was done, and what was found."""

    seed: int
    folder: Path
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)

    def run(self, name: str, work: Callable[[Soak], dict[str, Any]]) -> None:
        start = time.perf_counter()
        self.parts[name] = work(self)
        self.parts[name]["seconds"] = round(time.perf_counter() - start, 1)

    def found(self, part: str, case: int, what: str) -> None:
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append({"part": part, "case": case, "seed": self.seed, "what": what[-2000:]})

    def dice(self, part: str, case: int) -> random.Random:
        return random.Random(f"{self.seed}/{part}/{case}")

    def record(self, command: str) -> dict[str, Any]:
        return {
            "commands": [command],
            "commit": commit(),
            "seed": self.seed,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "torch": torch.__version__,
            "parts": self.parts,
            "findings": self.findings,
        }


# --- a command that dies at a chosen call -----------------------------------------------------------------------------


def in_child(words: list[str], log: Path, die_at: int | None = None) -> tuple[int, int]:
    """(exit code, or minus the signal; calls made) of a command in a process of its own, forked off this one."""
    count = log.with_suffix(".calls")
    pid = os.fork()
    if pid == 0:
        code, calls = 99, 0

        def tick(frame: object, event: str, arg: object) -> None:
            nonlocal calls
            calls += 1
            if calls == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            place = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(place, 1)
            os.dup2(place, 2)
            sys.stdout = sys.stderr = os.fdopen(os.dup(place), "w", buffering=1)
            sys.setprofile(tick)
            code = inlay(words)
            sys.setprofile(None)
            count.write_text(str(calls))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code, int(count.read_text()) if code >= 0 and count.exists() else 0


def die_and_resume(
    soak: Soak,
    part: str,
    case: int,
    words: Callable[[Path], list[str]],
    result: Callable[[Path], Any],
    whole: Any,
    calls: int,
) -> Counter[str]:
    """Let one command die up to MOST_DEATHS times, then let it finish: the result must be that of no death at all."""
    dice, out, seen = soak.dice(part, case), soak.folder / f"{part}-{case}", Counter[str]()
    log = soak.folder / f"{part}-{case}.log"
    for _ in range(dice.randint(1, MOST_DEATHS)):
        code, _ = in_child(words(out), log, dice.randrange(1, calls))
        seen["killed" if code == -signal.SIGKILL else "ended before"] += 1
        if code not in (-signal.SIGKILL, 0):
            soak.found(part, case, f"exit code {code} after a kill: {log.read_text()}")
    code, _ = in_child(words(out), log)
    seen["resumed"] += 1
    if code != 0:
        soak.found(part, case, f"exit code {code} on resuming: {log.read_text()}")
    elif result(out) != whole:
        soak.found(part, case, "the result is another than without a kill")
    shutil.rmtree(out, ignore_errors=True)
    return seen


def cases(kills: int, only: int | None) -> Iterator[int]:
    """Numbers of cases, for as long as the caller counts too few kills."""
    yield from range(10 * kills + 10) if only is None else (only,)


def kill_encode(soak: Soak, kills: int, only: int | None = None) -> dict[str, Any]:
    """Encodes of one video under several budgets, each in a folder of its own."""
    clip = write_video(moving_square(150, 24, 32), soak.folder / "clip.mp4", force=True)

    def words_of(settings: list[str]) -> Callable[[Path], list[str]]:
        def words(out: Path) -> list[str]:
            out.mkdir(exist_ok=True)
            force = ["--force"] if (out / "x.inlay").exists() else []
            more = ["--chunk", "9", "--key-every", "1", "--resume", "--quiet"]
            return ["encode", str(clip), str(out / "x.inlay"), *settings, *more, *force, *MODEL]

        return words

    def result(out: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in out.iterdir()}

    wholes = []
    for number, settings in enumerate(ENCODES):
        out = soak.folder / f"whole-{number}"
        code, calls = in_child(words_of(settings)(out), soak.folder / "whole.log")
        if code != 0:
            soak.found("encode", -1, (soak.folder / "whole.log").read_text())
            return {}
        wholes.append((result(out), calls))
    seen = Counter[str]()
    for case in cases(kills, only):
        if seen["killed"] >= kills:
            break
        kind = case % len(ENCODES)
        seen += die_and_resume(soak, "encode", case, words_of(ENCODES[kind]), result, *wholes[kind])
    return {**seen, "calls in one encode": max(calls for _, calls in wholes)}


def kill_train(soak: Soak, kills: int, only: int | None = None) -> dict[str, Any]:
    """Training runs of a few steps with a checkpoint after each."""
    videos = soak.folder / "videos"
    videos.mkdir(exist_ok=True)
    for i in range(4):
        write_video(moving_square(7, 40, 48, seed=i), videos / f"{i}.mp4", force=True)

    def words(out: Path) -> list[str]:
        settings = ["--preset", "smoke", "--steps", "6", "--checkpoint-every", "1", "--tau", "0.05", "0.2"]
        return ["train", "lit", str(videos), "--run", str(out), *settings, "--resume", "--quiet", *MODEL]

    def result(out: Path) -> bytes:
        return (out / "weights.safetensors").read_bytes()

    code, calls = in_child(words(soak.folder / "whole-train"), soak.folder / "whole.log")
    if code != 0:
        soak.found("train", -1, (soak.folder / "whole.log").read_text())
        return {}
    whole, seen = result(soak.folder / "whole-train"), Counter[str]()
    for case in cases(kills, only):
        if seen["killed"] >= kills:
            break
        seen += die_and_resume(soak, "train", case, words, result, whole, calls)
    return {**seen, "calls in one run": calls}


# --- jobs of many processes -------------------------------------------------------------------------------------------


def kill_tokenize(soak: Soak, kills: int, engine: str, only: int | None = None) -> dict[str, Any]:
    """A worker, the driver or the whole job, three times in a row; then the job is let finish."""
    from tests.kill import test_kill as kill

    part, source = f"tokenize {engine}", soak.folder / "source"
    source.mkdir(exist_ok=True)
    for i in range(kill.VIDEOS):
        write_video(moving_square(9, 32, 32 + 16 * (i % 2), seed=i), source / f"v{i:02d}.mp4", force=True)
    (source / "v03.mp4").write_bytes(b"no video")
    job = kill.Job(source=source, out=soak.folder / f"whole-{engine}")
    job.finish()
    whole, seen = kill.files(job.out), Counter[str]()
    for case in cases(kills, only):
        if seen["killed"] >= kills:
            break
        random.seed(f"{soak.seed}/{part}/{case}")  # the helpers throw the module's own dice
        job = kill.Job(source=source, out=soak.folder / f"{engine}-{case}", engine=engine)
        try:
            for _ in range(min(3, kills - seen["killed"])):
                kind = random.choice(list(kill.KILLS))
                kill.strike(job, kind, random.random())
                seen["killed"] += 1
                seen[f"{kind} killed"] += 1
            kill.check(job, whole)
            seen["resumed"] += 1
        except Exception:
            soak.found(part, case, traceback.format_exc())
        shutil.rmtree(job.out, ignore_errors=True)
    return dict(seen)


# --- a stream that does not end ---------------------------------------------------------------------------------------


def resident_mb() -> float:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def stream(soak: Soak, frames: int) -> dict[str, Any]:
    """One long video to a token file and back, held to a rate; what it takes must not grow with its length."""
    tokenizer = Tokenizer.from_pretrained("mini-untrained", device="cpu")
    budget, piece = Budget(keep=0.3, bucket_seconds=2), 66
    resident: dict[str, list[float]] = {"encode": [], "decode": []}

    def pieces() -> Iterator[Video]:
        scene = moving_square(piece, 16, 16)
        for first in range(0, frames, piece):
            dice = np.random.default_rng([soak.seed, first])
            noise = torch.from_numpy(dice.integers(0, 64, (piece, 16, 16, 3), dtype=np.uint8))
            yield Video(frames=(scene.frames // 2 + noise)[: frames - first], fps=scene.fps)
            resident["encode"].append(resident_mb())

    out = soak.folder / "long.inlay"
    encoder = VideoEncoder(tokenizer, EncodeConfig(), budget=budget)
    encode_file(encoder, pieces(), out, force=True)
    decoder, decoded = Decoder(tokenizer), 0
    with TokenReader(out, large=True) as reader:
        for tokens in reader:
            decoded += len(decoder.push(tokens))
            resident["decode"].append(resident_mb())
    if decoded != frames:
        soak.found("stream", 0, f"{frames} frames went in and {decoded} came out")
    assert encoder.report is not None
    if encoder.report.got > encoder.report.asked * (1 + 1e-9):
        soak.found("stream", 0, f"kept {encoder.report.got:.6f}, which is above {encoder.report.asked}")
    growth = {}
    for half, measured in resident.items():
        early = measured[len(measured) // 5]
        growth[half] = round(max(measured[len(measured) // 5 :]) - early, 1)
        if growth[half] > FLAT_MB:
            soak.found("stream", 0, f"{half} grew by {growth[half]} MB from {early:.0f} MB")
    size = out.stat().st_size
    return {
        "frames": frames,
        "bytes": size,
        "kept": encoder.report.got,
        "grown by MB": growth,
        "resident MB": resident_mb(),
    }


# --- all of it --------------------------------------------------------------------------------------------------------


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.hunt.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, help="of encode, of train and of tokenize, each")
    parser.add_argument("--ray-kills", type=int, help="of tokenize on Ray [default: as many]")
    parser.add_argument("--train-kills", type=int, help="of train [default: as many]")
    parser.add_argument("--frames", type=int, default=100_000, help="of the stream")
    parser.add_argument("--requests", type=int, default=200, help="to the page")
    parser.add_argument("--visitors", type=int, default=20, help="who make them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="of encode, train, local, ray, stream and page, with commas between [all]")
    parser.add_argument("--case", type=int, help="with --only: this case alone")
    parser.add_argument("--out", type=Path, help="where the JSON record goes; added to one of the same commit and seed")
    return parser.parse_args(given)


def run(given: list[str] | None = None) -> int:
    options = arguments(given)
    torch.set_num_threads(1)  # forked children begin without a pool of threads
    kills = options.kills

    def several(other: int | None) -> int:
        return kills if other is None else other

    def page(soak: Soak) -> dict[str, Any]:
        from tests.hunt.soak_page import visit

        return visit(soak, options.requests, options.visitors)

    parts: dict[str, tuple[int, Callable[[Soak], dict[str, Any]]]] = {
        "encode": (kills, lambda soak: kill_encode(soak, kills, options.case)),
        "train": (
            several(options.train_kills),
            lambda soak: kill_train(soak, several(options.train_kills), options.case),
        ),
        "local": (kills, lambda soak: kill_tokenize(soak, kills, "local", options.case)),
        "ray": (
            several(options.ray_kills),
            lambda soak: kill_tokenize(soak, several(options.ray_kills), "ray", options.case),
        ),
        "stream": (options.frames, lambda soak: stream(soak, options.frames)),
        "page": (options.requests, page),
    }
    command = f"python -m tests.hunt.soak {' '.join(sys.argv[1:] if given is None else given)}"
    before = json.loads(options.out.read_text()) if options.out is not None and options.out.exists() else {}
    with tempfile.TemporaryDirectory(prefix="inlay-soak-") as folder:
        soak = Soak(seed=options.seed, folder=Path(folder))
        for name, (wanted, work) in parts.items():
            if not wanted or (options.only is not None and name not in options.only.split(",")):
                continue
            soak.run(name, work)
            sys.stderr.write(f"{name}: {json.dumps(soak.parts[name])}\n")
            if options.out is not None:  # after every part: one of them may take a night
                options.out.write_text(json.dumps(joined(before, soak.record(command)), indent=1) + "\n")
    sys.stdout.write(json.dumps(soak.record(command), indent=1) + "\n")
    return 1 if soak.findings else 0


def joined(before: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """With what an earlier soak of the same commit and seed has left."""
    if any(before.get(name) != record[name] for name in ("commit", "seed")):
        return record
    more = {name: before[name] + record[name] for name in ("commands", "findings")}
    return {**record, **more, "parts": before["parts"] | record["parts"]}


if __name__ == "__main__":
    sys.exit(run())
