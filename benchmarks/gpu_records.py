# SPDX-License-Identifier: Apache-2.0
"""Run the benchmarks of a GPU one after the other, so that whatever one has found stays, however the others end.

    python benchmarks/gpu_records.py --out DIR --seconds 560 [--kit KIT] [--only codec-mini wan-eager]
    python benchmarks/gpu_records.py --out DIR --seconds 900 --device cpu --tiny     # a rehearsal at tiny sizes

Each job of the table below is a process of its own, with a limit of its own and never beyond the whole budget; no
other runs beside it. At its limit it is interrupted and a few seconds later ended, with all that it began. A job that
fails does not cost the others. A line is printed when a job ends, a table at the end.

    DIR/FOLDER/...           what a job writes, and its log, JOB.log
    DIR/records.json         the table so far
    DIR.tar.gz               all of it (--pack: elsewhere), renewed while a job runs and after it; of logs the end, of
                             the rest no giants

Videos, clips and wheels are those of the kit (`gpu_kit.py`) where no flag names others. What a job needs and nobody has
given is said; the job is left out. On a GPU a test that would be skipped fails.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from gpu_kit import Opened, open_kit

ROOT = Path(__file__).resolve().parent.parent
LEAST = 12  # seconds below which no job is begun
GRACE = 8  # seconds from the interrupt to the end
RESERVE = GRACE + 6  # seconds kept for that, for the last pack and for the table
MARK = "INLAY_RECORDS_JOB"  # in the environment of a job and of all that it begins
RENEW = 15  # seconds between two packs while a job runs
LOG_END = 100_000  # bytes of a log in the pack
GIANT = 4_000_000  # bytes of a file that is left out of the pack
PROBE = """
import importlib.util, json, platform, torch
lacks = "av cv2 constriction diffusers isal matplotlib pytest torchmetrics triton typer".split()
lacks = [name for name in lacks if importlib.util.find_spec(name) is None]
gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
print(json.dumps({"gpu": gpu, "torch": torch.__version__, "python": platform.python_version(), "lacks": lacks}))
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is run. In its words {file} is what it leaves, {seconds} what it may take; the rest is in `places`."""

    words: str
    limit: int  # seconds
    file: str = ""  # in the job's folder, that of its name unless another is given
    folder: str = ""
    more: str = ""  # words for what is done only where their places are given
    tiny: str = ""  # words at the end of a rehearsal


PYTEST = "-m pytest -v --tb=short -rfEs -p no:cacheprovider -o addopts= -W ignore::pytest.PytestConfigWarning"
PYTEST += " --continue-on-collection-errors"
CODEC = "benchmarks/codec_rate.py --out {file} --device {device}"
CODEC_TINY = "--models tiny --batches 1 --side 32 --repeats -2 --dtype float32 --frames-on host"
WAN = "benchmarks/bench_wan.py --out {file} --device {device} --models wan-2.1 --seconds {seconds}"
WAN += " --compile-seconds {compile_seconds}"
WAN_TINY = "--tiny --batches 1 --frames 9 --side 16 --repeats 1 --warmup 1"
STUDIES = "benchmarks/studies_gpu.py run --data-davis {davis} --data-bench {bench} --metrics {metrics} --out {folder}"
STUDIES += " --device {device} --seconds {seconds}"
STUDIES_TINY = "--limit 2 --side 32 --jobs 1 --backbone mini-untrained --tau 0.1"
BITS_TINY = "--limit 1 --side 32 --backbone mini-untrained --tau 0.1"

JOBS = {  # in the order in which they run
    "tests-gpu": Job(words=f"{PYTEST} -m gpu {{gpu_tests}}", limit=150),
    "tests-kernels": Job(words=f"{PYTEST} -m 'not gpu and not slow' {{kernel_tests}}", limit=150),
    **{
        f"codec-{name}": Job(
            words=f"{CODEC} --models {words}", limit=limit, file=f"codec_{name}.json", tiny=CODEC_TINY
        )
        for name, limit, words in (
            ("mini", 75, "mini --frames-on pinned --profile --repeats 3"),
            ("mini-device", 75, "mini --frames-on device --profile --repeats 3"),
            ("cosmos", 75, "cosmos --batches 1 --repeats 2"),
            ("cosmos-8", 150, "cosmos --batches 8 --repeats 0"),
        )
    },
    "cosmos-profile": Job(
        words="benchmarks/cosmos_profile.py --out {file} --device {device} --seconds {seconds} --jobs"
        " --parts eager shapes --ahead 12",
        limit=120, file="cosmos_profile.json", tiny="--small --repeats 1",
    ),
    "vlm-mask": Job(
        words="benchmarks/vlm_mask.py {wheels} --out {file} --device {device} --channels 2048 --frames 16 32 64"
        " --grid 24 48",
        more="--videos {davis} --clips 4 --video-frames 65",
        limit=75, file="vlm_mask.json",
        tiny="--channels 64 --frames 16 --grid 8 --repeats 1 --clips 1 --video-frames 9",
    ),
    **{
        f"wan-{name}": Job(words=f"{WAN} --forms {forms}", limit=limit, file=f"wan_{name}.json", tiny=WAN_TINY)
        for name, limit, forms in (
            ("eager", 90, "diffusers_eager ours_eager ours_channels_last ours_replayed"),
            ("blocks", 240, "ours_eager ours_compiled_blocks --batches 1"),
            ("compiled", 330, "ours_eager ours_compiled --batches 1"),
        )
    },
    "file-rate": Job(
        words="benchmarks/file_rate.py --out {file} --clips {clips} --device {device}",
        limit=150, file="file_rate.json",
        tiny="--models tiny --dtype float32 --videos 4 --batch 2 --helpers 2 0 --rounds 1 --repeats 0",
    ),
    "train-wan": Job(
        words="benchmarks/train_wan.py --out {file} --device {device} --seconds {seconds}",
        limit=90, file="train_wan.json", tiny="--tiny --cases 32/2 --steps 1",
    ),
    "bits": Job(
        words="-m inlay study bits --data-davis {davis} --data-bench {bench} --metrics {metrics} --out {folder}"
        " --device {device}",
        limit=540, file="records/bits", folder="studies", tiny=BITS_TINY,
    ),
    **{
        name: Job(
            words=f"{STUDIES} {name}", limit=limit, file=f"records/{name}", folder="studies", tiny=STUDIES_TINY
        )
        for name, limit in (("streaming", 90), ("cost", 90), ("backbones", 120), ("flicker", 150))
    },
    "speed": Job(
        words="benchmarks/speed_gpu.py --out {file} --device {device} --seconds {seconds} --forms eager fast"
        " --stages mask lit pipeline growth",
        limit=300, file="speed_gpu.json", tiny="--small --repeats 1",
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Row:
    """How a job ended."""

    job: str
    state: str  # ok, failed, out of time, left out, not begun
    seconds: float = 0
    told: str = ""  # its last line, or why it was not run
    files: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Run:
    """The jobs of one call, in one folder."""

    out: Path
    pack: Path
    jobs: dict[str, Job]
    places: dict[str, Any]
    environment: dict[str, str]
    until: float  # on the clock time.monotonic
    record: dict[str, Any]

    def __iter__(self) -> Iterator[Row]:
        """The rows, each kept before it is given."""
        for name, job in self.jobs.items():
            row = self.one(name, job)
            self.record["rows"].append(asdict(row))
            self.keep()
            yield row

    def keep(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "records.json").write_text(json.dumps(self.record, indent=1) + "\n")
        pack(self.out, self.pack)

    def one(self, name: str, job: Job) -> Row:
        left = self.until - time.monotonic() - RESERVE
        if left < LEAST:
            return Row(job=name, state="not begun", told="the budget is used up")
        seconds, folder = min(job.limit, left), self.out / (job.folder or name)
        words, lacking = self.command(job, folder, seconds)
        if lacking:
            return Row(job=name, state="left out", told=f"not given: {', '.join(f'--{place}' for place in lacking)}")
        folder.mkdir(parents=True, exist_ok=True)
        log, before, begin = folder / f"{name}.log", written(folder), time.monotonic()
        code = self.process(name, words, log, seconds)
        spent = round(time.monotonic() - begin, 1)
        files = tuple(sorted({path for path, _ in written(folder).items() - before.items()}))
        made = not job.file or (folder / job.file).exists()
        state = "out of time" if code is None else "ok" if code == 0 and made else "failed"
        told = (tail(log) or ["it said nothing"])[-1][:200]
        return Row(
            job=name, state=state, seconds=spent, told=told if made else f"left no {job.file}; {told}", files=files
        )

    def command(self, job: Job, folder: Path, seconds: float) -> tuple[list[str], list[str]]:
        """(the words, the places that they lack)."""
        places = self.places | {"folder": folder, "file": folder / job.file}
        places |= {"seconds": max(5, int(seconds) - 15), "compile_seconds": max(5, int(seconds) - 45)}
        words, lacking = filled(job.words, places)
        more, absent = filled(job.more, places)
        tiny, _ = filled(job.tiny if self.places["tiny"] else "", places)
        return [sys.executable, *words, *([] if absent else more), *tiny], lacking

    def process(self, name: str, words: list[str], log: Path, seconds: float) -> int | None:
        """The exit status; none where it ran past its limit. Whatever it began ends with it."""
        until, mark = time.monotonic() + seconds, f"{os.getpid()}.{name}"
        with log.open("wb") as out:
            child = subprocess.Popen(
                words, cwd=ROOT, env=self.environment | {MARK: mark}, stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, process_group=0, preexec_fn=heed_interrupts,
            )  # fmt: skip
            try:
                while (left := until - time.monotonic()) > 0:
                    with suppress(subprocess.TimeoutExpired):
                        return child.wait(timeout=min(left, RENEW))
                    pack(self.out, self.pack)
                return None
            finally:
                end(child, mark)


def filled(text: str, places: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Words with places in place of their names, and the names of places that are not given."""
    lacking = [name for name in re.findall(r"{(\w+)}", text) if places[name] is None]
    lists = {name: place if isinstance(place, list) else [place] for name, place in places.items()}
    return shlex.split(text.format_map({name: shlex.join(map(str, words)) for name, words in lists.items()})), lacking


def heed_interrupts() -> None:
    """A shell that starts us in the background has them ignored, and a job would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def end(child: subprocess.Popen[bytes], mark: str) -> None:
    """Interrupted first, so that it can close what it has open; then ended, and all that it began with it."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=GRACE)
    for _ in range(10):  # one may begin another meanwhile, and a GPU lets go slowly
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(child.pid, signal.SIGKILL)
            child.wait(timeout=1)
        if not (others := marked(mark)):
            return
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def marked(mark: str) -> list[int]:
    """Processes that have inherited a mark, those with a group of their own too."""
    found, wanted = [], f"{MARK}={mark}".encode()
    for place in Path("/proc").iterdir():
        with suppress(OSError):  # ended meanwhile, or not ours
            if place.name.isdigit() and wanted in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
    return found


def files_in(folder: Path) -> Iterator[Path]:
    """What lies in a folder whose files come and go meanwhile."""
    for place, _, names in os.walk(folder):
        yield from (path for name in sorted(names) if (path := Path(place) / name).is_file())


def written(folder: Path) -> dict[str, tuple[int, float]]:
    """Of files but logs (size, time): another pair when one is written again."""
    found = {}
    for path in files_in(folder):
        with suppress(FileNotFoundError):
            if path.suffix != ".log":
                found[str(path.relative_to(folder))] = (path.stat().st_size, path.stat().st_mtime)
    return found


def end_of(log: Path) -> bytes:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_END))
        return file.read()


def tail(log: Path) -> list[str]:
    """The last lines of a log that say something."""
    lines = end_of(log).decode(errors="replace").replace("\r", "\n").splitlines()
    return [line.rstrip() for line in lines if line.strip()]


def pack(out: Path, target: Path) -> None:
    """All of a folder as one file, put there whole; files as they are now, since some may be written meanwhile."""
    part = target.with_name(f"{target.name}.part")
    with tarfile.open(part, "w:gz", compresslevel=4) as tar:
        for path in files_in(out):
            with suppress(FileNotFoundError):
                log = path.suffix == ".log"
                if not log and path.stat().st_size > GIANT:
                    continue
                info, data = tarfile.TarInfo(str(path.relative_to(out))), end_of(path) if log else path.read_bytes()
                info.size, info.mtime = len(data), int(path.stat().st_mtime)
                tar.addfile(info, io.BytesIO(data))
    part.replace(target)


# --- what is said -----------------------------------------------------------------------------------------------------


def told(row: Row, out: Path, job: Job) -> str:
    """A line of a job; of one that did not end well the last lines of its log too."""
    files = ", ".join(row.files[:3]) + (f" and {len(row.files) - 3} more" if len(row.files) > 3 else "")
    lines = [f"{row.job}: {row.state} in {row.seconds:.0f} s; {files or 'no files'}; {row.told}"]
    log = out / (job.folder or row.job) / f"{row.job}.log"
    if row.state in ("failed", "out of time") and log.is_file():
        lines += [f"    {line[:160]}" for line in tail(log)[-6:]]
    return "\n".join(lines)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'job':<18} {'seconds':>7}  how it ended"]
    for row in rows:
        how = row["state"] if row["state"] == "ok" else f"{row['state']}: {row['told'][:90]}"
        lines.append(f"{row['job']:<18} {row['seconds']:>7.1f}  {how}")
    return "\n".join(lines)


# --- what is given ----------------------------------------------------------------------------------------------------


def environment_of(opened: Opened | None, device: str) -> dict[str, str]:
    """The library first, then the kit; compiled code is kept, so that a second call need not wait for it again."""
    found = dict(os.environ) if opened is None else opened.environment
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), found.get("PYTHONPATH", "")]))
    cache = ROOT / ".cache"
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"), "TRITON_CACHE_DIR": str(cache / "triton")}
    required = {"INLAY_REQUIRE_GPU": "1"} if device == "cuda" else {}
    return {**caches, **found, **required, "PYTHONUNBUFFERED": "1"}


def places_of(a: argparse.Namespace, opened: Opened | None) -> dict[str, Any]:
    """What the words of the table name; none where nobody has given it."""

    def place(given: Path | None, inside: str) -> Path | None:
        return given.absolute() if given else opened.place(inside) if opened else None

    return {
        "device": a.device,
        "tiny": a.tiny,
        "metrics": "psnr" if a.tiny else a.metrics,
        "clips": place(a.clips, "clips"),
        "davis": place(a.davis, "videos/davis"),
        "bench": place(a.bench, "videos/bench"),
        "wheels": place(a.wheels, "wheels"),
        "gpu_tests": files_with("mark.gpu"),
        "kernel_tests": files_with("needs_triton"),
    }


def files_with(mark: str) -> list[str]:
    """Files of tests that hold a mark."""
    found = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(path.relative_to(ROOT)) for path in found if mark in path.read_text("utf-8")]


def probed(environment: dict[str, str], device: str) -> dict[str, Any]:
    """The machine in a few words, or the end where it has no such device."""
    done = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"no torch here: {(done.stderr.strip().splitlines() or [''])[-1]}")
    machine: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if device == "cuda" and not machine["gpu"]:
        raise SystemExit("this measures a GPU, and there is none; rehearse with --device cpu --tiny")
    return machine | {"cores": len(os.sched_getaffinity(0))}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pack", type=Path, help="instead of DIR.tar.gz")
    parser.add_argument("--seconds", type=float, required=True, help="for all jobs together")
    parser.add_argument("--only", nargs="+", choices=list(JOBS), default=list(JOBS), metavar="JOB",
                        help=f"in the order of the table: {', '.join(JOBS)}")  # fmt: skip
    parser.add_argument("--kit", type=Path, help="a folder of gpu_kit.py")
    parser.add_argument("--clips", type=Path, help="of .ivf or .npy, all of one size")
    parser.add_argument("--davis", type=Path, help="videos of DAVIS")
    parser.add_argument("--bench", type=Path, help="videos of bench")
    parser.add_argument("--wheels", type=Path, help="a folder with the wheel of vllm")
    parser.add_argument("--metrics", default="psnr,lpips", help="of the studies; LPIPS needs its weights")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="a rehearsal: every command, at tiny sizes")
    a = parser.parse_args()
    a.out = a.out.absolute()
    a.pack = a.pack or a.out.with_name(f"{a.out.name}.tar.gz")
    return a


def stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    a = parse()
    begin = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGINT):  # the latter too: it may be ignored, and jobs would inherit that
        signal.signal(number, stop)
    opened = open_kit(a.kit.absolute()) if a.kit else None
    environment = environment_of(opened, a.device)
    machine = probed(environment, a.device)
    print(json.dumps(machine), flush=True)
    run = Run(
        out=a.out,
        pack=a.pack,
        jobs={name: job for name, job in JOBS.items() if name in a.only},
        places=places_of(a, opened),
        environment=environment,
        until=begin + a.seconds,
        record={"command": shlex.join(sys.argv), "machine": machine, "rows": []},
    )
    try:
        for row in run:
            print(f"{time.monotonic() - begin:6.1f} s  {told(row, a.out, JOBS[row.job])}", flush=True)
    except KeyboardInterrupt:
        print("stopped; what was found is kept", flush=True)
        run.keep()
    print(table(run.record["rows"]), flush=True)
    return int(any(row["state"] != "ok" for row in run.record["rows"]))


if __name__ == "__main__":
    sys.exit(main())
