# SPDX-License-Identifier: Apache-2.0
"""What runs the benchmarks on a GPU machine, and the kit that it opens there: real processes, nothing of a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from inlay.video import write_video
from tests.conftest import ROOT, moving_square, scripts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it ends what a job began by what /proc says")
BENCHMARKS = ROOT / "benchmarks"
PARENT = """
import json, pathlib, subprocess, sys, time
sleep = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"]
children = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]
pathlib.Path(sys.argv[1]).write_text(json.dumps([child.pid for child in children]))
print("half of it", flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    with scripts(BENCHMARKS, "gpu_kit", "gpu_records") as found:
        yield found


@pytest.fixture
def records(modules: dict[str, ModuleType]) -> ModuleType:
    return modules["gpu_records"]


def call(script: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / script), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


# --- the jobs ---------------------------------------------------------------------------------------------------------


def rows_of(records: ModuleType, out: Path, jobs: dict[str, Any], seconds: float = 60, **places: Any) -> dict[str, Any]:
    run = records.Run(
        out=out,
        pack=out.with_name("rec.tar.gz"),
        jobs=jobs,
        places={"tiny": False, **places},
        environment=dict(os.environ),
        until=time.monotonic() + seconds,
        record={"rows": []},
    )
    rows = {row.job: row for row in run}
    assert [row["job"] for row in json.loads((out / "records.json").read_text())["rows"]] == list(jobs)
    return rows


def packed(pack: Path) -> dict[str, bytes]:
    """Names and bytes of all its files, read to the end."""
    with tarfile.open(pack) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def test_a_job_that_fails_does_not_cost_the_others(records: ModuleType, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text("import sys; open(sys.argv[1], 'w').write('{}'); print('written'); sys.exit(int(sys.argv[2]))")
    jobs = {
        "fails": records.Job(words=f"{script} {{file}} 3", limit=20, file="a.json"),
        "writes nothing": records.Job(words="-c pass", limit=20, file="b.json"),
        "works": records.Job(words=f"{script} {{file}} 0", limit=20, file="c.json"),
    }
    rows = rows_of(records, tmp_path / "rec", jobs)
    assert {name: row.state for name, row in rows.items()} == {
        "fails": "failed",
        "writes nothing": "failed",
        "works": "ok",
    }
    assert (rows["fails"].told, rows["works"].files) == ("written", ("c.json",))
    assert rows["writes nothing"].told == "left no b.json; it said nothing"
    assert {"fails/a.json", "fails/fails.log", "works/c.json", "records.json"} <= set(packed(tmp_path / "rec.tar.gz"))


def test_at_its_limit_a_job_is_ended_with_all_that_it_began(
    records: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    monkeypatch.setattr(records, "RENEW", 0.4)
    jobs = {"long": records.Job(words=f"{tmp_path / 'parent.py'} {{file}}", limit=2, file="pids.json")}
    begin = time.monotonic()
    row = rows_of(records, tmp_path / "rec", jobs)["long"]
    assert row.state == "out of time"
    assert 2 <= time.monotonic() - begin < 8
    assert row.files == ("pids.json",)
    inside = packed(tmp_path / "rec.tar.gz")
    assert inside["long/long.log"].startswith(b"half of it")
    pids = json.loads(inside["long/pids.json"])
    assert len(pids) == 2
    for pid in pids:
        state = Path(f"/proc/{pid}/stat")
        assert not state.exists() or " Z " in state.read_text(), "it still runs"


def test_the_pack_is_renewed_while_a_job_runs(
    records: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job waits for a pack that holds its first half; files that come and go meanwhile do not matter."""
    script, pack = tmp_path / "job.py", tmp_path / "rec.tar.gz"
    script.write_text(
        "import pathlib, shutil, sys, tarfile, time\n"
        "here, pack = map(pathlib.Path, sys.argv[1:])\n"
        "(here / 'half').write_bytes(b'1' * 100)\n"
        "(here / 'giant').write_bytes(bytes(5_000_000))\n"
        "def names():\n"
        "    with tarfile.open(pack) as tar: return tar.getnames()\n"
        "while not (pack.exists() and 'job/half' in names()):\n"
        "    (here / 'brief' / 'deep').mkdir(parents=True)\n"
        "    (here / 'brief' / 'deep' / 'file').touch()\n"
        "    shutil.rmtree(here / 'brief')\n"
        "(here / 'half').write_bytes(b'2' * 200)\n"
    )
    monkeypatch.setattr(records, "RENEW", 0.2)
    rows = rows_of(records, tmp_path / "rec", {"job": records.Job(words=f"{script} {{folder}} {pack}", limit=20)})
    assert rows["job"].state == "ok", rows
    assert set(packed(pack)) == {"job/half", "job/job.log", "records.json"}
    assert packed(pack)["job/half"] == b"2" * 200
    assert not pack.with_name("rec.tar.gz.part").exists()


def test_of_a_long_log_the_end_is_packed(records: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("print('x' * 300_000); print('the end')")
    rows = rows_of(records, tmp_path / "rec", {"job": records.Job(words=str(tmp_path / "job.py"), limit=20)})
    log = packed(tmp_path / "rec.tar.gz")["job/job.log"]
    assert (rows["job"].told, len(log), log[-8:]) == ("the end", 100_000, b"the end\n")


def test_no_job_is_begun_when_the_budget_is_used_up(records: ModuleType, tmp_path: Path) -> None:
    row = rows_of(records, tmp_path / "rec", {"late": records.Job(words="-c pass", limit=1)}, seconds=20)["late"]
    assert (row.state, row.told) == ("not begun", "the budget is used up")
    assert not (tmp_path / "rec" / "late").exists()


def test_words_of_places_that_are_given(records: ModuleType, tmp_path: Path) -> None:
    job = records.Job(words="-c 'import sys; print(sys.argv[1:])' {many} {seconds}", more="--bench {bench}", limit=40)
    given = rows_of(records, tmp_path / "rec", {"job": job}, many=["a b", "c"], bench=tmp_path)["job"]
    assert given.told == str(["a b", "c", "25", "--bench", str(tmp_path)])
    absent = rows_of(records, tmp_path / "rec", {"job": job}, many=[], bench=None)["job"]
    assert absent.told == str(["25"])


def test_what_nobody_has_given_is_said(tmp_path: Path) -> None:
    """The whole command; what has a place is not begun either, since the budget is small."""
    words = ("--device", "cpu", "--tiny", "--only", "vlm-mask", "file-rate", "bits", "streaming", "--seconds", "50")
    done = call("gpu_records.py", "--out", tmp_path / "rec", "--pack", tmp_path / "all.tar.gz", *words)
    assert done.returncode == 1, done.stderr
    rows = json.loads(packed(tmp_path / "all.tar.gz")["records.json"])["rows"]
    assert {row["job"]: (row["state"], row["told"]) for row in rows} == {
        "vlm-mask": ("left out", "not given: --wheels"),
        "file-rate": ("left out", "not given: --clips"),
        "bits": ("left out", "not given: --davis, --bench"),
        "streaming": ("left out", "not given: --davis, --bench"),
    }
    assert "left out: not given: --clips" in done.stdout


def test_every_job_has_the_places_it_names(records: ModuleType, modules: dict[str, ModuleType]) -> None:
    a = type("A", (), {"device": "cpu", "tiny": True, "clips": None, "davis": None, "bench": None, "wheels": None})
    places = records.places_of(a, None)
    places |= dict.fromkeys(("file", "folder", "seconds", "compile_seconds"), 1)
    for job in records.JOBS.values():
        for text in (job.words, job.more, job.tiny):
            assert set(records.filled(text, places)[1]) <= {"clips", "davis", "bench", "wheels"}
        script = job.words.split()[0]
        assert script == "-m" or (ROOT / script).is_file()


# --- the kit ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No packages, a program that is here, weights and clips made by code, in several parts."""
    place = tmp_path_factory.mktemp("kit")
    (place / "videos").mkdir()
    for name, frames in (("long", 9), ("short", 4)):
        write_video(moving_square(frames, 64, 64), place / "videos" / f"{name}.mp4")
    (place / "net.safetensors").write_bytes(os.urandom(30_000))
    words: list[object] = ["--packages", "--programs", "true", "--weights", place / "net.safetensors"]
    words += ["--part", "0.01", "--clips", place / "videos", "--clip-size", "64", "--clip-frames", "8"]
    done = call("gpu_kit.py", place / "kit", *words, "--videos", f"bench={place / 'videos'}", "--video-frames", "5")
    assert done.returncode == 0, done.stderr
    return place / "kit"


@pytest.fixture
def kit(gathered: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(gathered, tmp_path / "kit"))


def test_a_kit_in_parts_is_opened_once(kit: Path, modules: dict[str, ModuleType]) -> None:
    from inlay.video import read_video

    parts = sorted(kit.glob("kit.0*"))
    assert len(parts) > 3
    assert max(part.stat().st_size for part in parts) <= 0.01 * 2**20
    done = call("gpu_kit.py", kit, "--open")
    assert "program true: ok" in done.stdout, done.stderr
    opened = modules["gpu_kit"].open_kit(kit)
    assert opened.environment["INLAY_WEIGHTS"] == str(kit / "open" / "weights")
    assert opened.environment["PATH"].startswith(str(kit / "open" / "programs"))
    assert [path.name for path in opened.place("clips").iterdir()] == ["long.ivf"], "the other one is too short"
    assert opened.place("videos/davis") is None
    lengths = {path.stem: len(read_video(path)) for path in opened.place("videos/bench").iterdir()}
    assert lengths == {"long": 5, "short": 4}
    (kit / "open" / "weights" / "mine").touch()
    modules["gpu_kit"].open_kit(kit)
    assert (kit / "open" / "weights" / "mine").exists(), "what is open is not unpacked again"


def test_a_part_that_is_missing_or_changed_is_named(kit: Path) -> None:
    data = (kit / "kit.001").read_bytes()
    (kit / "kit.001").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    changed = call("gpu_kit.py", kit, "--open")
    assert changed.stderr == f"{kit / 'kit.001'}: not the bytes that were gathered; bring it again\n"
    (kit / "kit.001").unlink()
    parts = len(list(kit.glob("kit.0*"))) + 1
    missing = call("gpu_kit.py", kit, "--open")
    assert missing.stderr == f"{kit}: 1 of {parts} parts are not here: kit.001\n"
    assert (missing.returncode, (kit / "open").exists()) == (1, False)
    elsewhere = call("gpu_records.py", "--kit", kit.parent, "--out", kit.parent / "rec", "--seconds", "60")
    assert elsewhere.stderr == f"{kit.parent}: no kit.json here; a kit is a folder that gpu_kit.py has filled\n"


def test_packages_are_used_where_the_machine_lacks_them(tmp_path: Path, modules: dict[str, ModuleType]) -> None:
    """numpy is here; the kit's would break whatever reads it. `lacking` is not."""
    opened = modules["gpu_kit"].open_kit(
        kit_with(tmp_path, {"numpy": "raise ImportError('of the kit')", "lacking": ""})
    )
    assert opened.packages == ("lacking",)
    code = "import lacking, numpy; print(numpy.__version__, lacking.__file__)"
    done = subprocess.run([sys.executable, "-c", code], env=opened.environment, capture_output=True, text=True)
    version, place = done.stdout.split()
    assert version[0].isdigit()
    assert place.startswith(str(tmp_path))


def test_all_packages_of_the_kit_are_tried_where_those_here_do_not_do(
    tmp_path: Path, modules: dict[str, ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    newer = {"numpy": "newer = 1", "lacking": "from numpy import newer"}
    assert modules["gpu_kit"].open_kit(kit_with(tmp_path / "a", newer)).packages == ("numpy", "lacking")
    assert "import lacking: ok" in capsys.readouterr().out
    broken = {"numpy": "", "lacking": "raise ImportError('no such thing')"}
    assert modules["gpu_kit"].open_kit(kit_with(tmp_path / "b", broken)).packages == ("lacking",)
    assert "import lacking: ImportError: no such thing" in capsys.readouterr().out


def kit_with(place: Path, packages: dict[str, str]) -> Path:
    """A kit with packages of one module each."""
    import hashlib

    for name, code in packages.items():
        (place / "inside" / "packages" / name).mkdir(parents=True)
        (place / "inside" / "packages" / name / f"{name}.py").write_text(code)
    with tarfile.open(place / "kit.000", "w:xz") as tar:
        tar.add(place / "inside", arcname=".")
    parts = [{"name": "kit.000", "sha256": hashlib.sha256((place / "kit.000").read_bytes()).hexdigest()}]
    contents = {"asked": list(packages), "packages": [{"name": name, "version": "1"} for name in packages]}
    (place / "kit.json").write_text(json.dumps(contents | {"parts": parts}))
    return place


def test_a_kit_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net").write_bytes(os.urandom(30_000))
    done = call("gpu_kit.py", tmp_path / "kit", "--packages", "--weights", tmp_path / "net", "--most", "0.01")
    assert done.stderr == "the kit would have 0.03 MiB; --most allows 0.01\n"
    assert not (tmp_path / "kit").exists()
    absent = call("gpu_kit.py", tmp_path / "kit", "--packages", "--videos", f"bench={tmp_path / 'none'}")
    assert f"'{tmp_path / 'none'}' is not here" in absent.stderr


@pytest.mark.slow
def test_packages_of_the_index(tmp_path: Path, modules: dict[str, ModuleType]) -> None:
    probe = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", tmp_path / "probe", "shellingham"],
        capture_output=True,
    )
    if probe.returncode:
        pytest.skip("no package index here")
    done = call("gpu_kit.py", tmp_path / "kit", "--packages", "importlib_metadata", "--there")
    assert done.returncode == 0, done.stderr
    opened = modules["gpu_kit"].open_kit(tmp_path / "kit")
    names = {package["name"] for package in json.loads((tmp_path / "kit" / "kit.json").read_text())["packages"]}
    assert names >= {"importlib-metadata", "zipp"}, "what it needs comes along"
    assert {path.name for path in (opened.folder / "packages").iterdir()} == names
