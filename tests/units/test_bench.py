# SPDX-License-Identifier: Apache-2.0
"""`inlay bench`: what is timed, what it is held against, and that plain Python can run it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inlay.cli.main import main
from inlay.errors import ConfigError, UsageError
from inlay.fill import Filler, Lit, LitConfig
from inlay.kernels.switch import at_level
from inlay.research.bench import BenchConfig, bench, compare, read_record, table
from inlay.research.bench.config import STAGES, size_of
from inlay.research.bench.run import add_floors, raised
from inlay.research.bench.stages import Case, tau_for
from inlay.research.bench.timing import Peaks, flops, measured, sheet, timed
from inlay.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def small(tiny_mini) -> Tokenizer:  # type: ignore[no-untyped-def]
    lit = Lit.build(LitConfig(width=64, heads=2, blocks=1)).eval().requires_grad_(False)
    return Tokenizer(tiny_mini, filler=Filler({"lit": lit}))


def test_every_stage_is_timed_on_every_path(small: Tokenizer) -> None:
    config = BenchConfig(
        backbone="mini-untrained", device="cpu", sizes=("16x24",), frames=(5,), batches=(1, 2), repeats=1
    )
    record = bench(config, small)
    assert [(r["batch"], r["path"], r["stage"]) for r in record["rows"]] == [
        (b, p, s) for b in (1, 2) for p in ("eager", "fast") for s in STAGES
    ]
    for r in record["rows"]:
        assert "missing" in r or r["ms"] > 0
        if r["stage"] in ("encode", "lit", "decode"):
            assert r["gflop"] > 0 and r["tflops"] > 0 and 0 < r["floor_ms"] <= r["best_ms"] * 1.000001
    by = {(r["batch"], r["stage"]): r for r in record["rows"] if r["path"] == "eager"}
    assert by[2, "encode"]["gflop"] == pytest.approx(2 * by[1, "encode"]["gflop"])
    json.dumps(record)
    text = table(record)
    assert "(fast paths " in text.splitlines()[0], "their floors are counted from a higher rate"
    assert "floor ms" in text and "16x24" in text and len(text.splitlines()) == 2 + len(record["rows"])


def test_operations_are_those_of_the_network() -> None:
    conv = torch.nn.Conv2d(8, 16, 3, padding=1)
    x = torch.empty(2, 8, 10, 12, device="meta")
    assert flops(conv, lambda net: net(x)) == 2 * 2 * 16 * 8 * 9 * 10 * 12


def test_the_threshold_keeps_the_share_asked_for(small: Tokenizer, tmp_path: Path) -> None:
    z = torch.randn(1, 16, 9, 12, 12).cumsum(2)
    from inlay.masking import MaskConfig, keep_mask, keep_rate_of

    assert keep_rate_of(keep_mask(z, MaskConfig(tau=tau_for(z, 0.4)))) == pytest.approx(0.4, abs=0.05)
    case = Case(small, tmp_path, size=(24, 24), frames=5, batch=1, keep=0.6)
    assert len(case.tokens()) == int(case.keep_BTHW.sum())


def test_the_floor_is_the_slower_of_two_ceilings() -> None:
    peaks = Peaks(flops=1e12, quick=4e12, bytes=1e9, source="x")
    assert peaks.floor_ms(1e9, 1e3) == pytest.approx(1.0)
    assert peaks.floor_ms(1e9, 1e3, quick=True) == pytest.approx(0.25)
    assert peaks.floor_ms(1e6, 5e6) == pytest.approx(5.0)
    assert peaks.over(replace(peaks, flops=2e12, bytes=1e8)) == replace(peaks, flops=2e12)
    found = sheet("NVIDIA H200", torch.bfloat16)
    assert found is not None and (found.flops, found.bytes) == (989e12, 4.8e12)
    assert sheet("some other chip", torch.float32) is None


def test_peaks_of_this_machine_are_those_of_undisturbed_calls() -> None:
    """Beside a thread that keeps a processor busy the quickest of many calls stays what it was, within a factor."""
    alone = measured(torch.device("cpu"), torch.float32)
    assert alone.quick >= 4 * alone.flops > 1e9 and alone.bytes > 1e8
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        beside = measured(torch.device("cpu"), torch.float32)
    finally:
        busy.kill()
        busy.wait()
    assert beside.flops > alone.flops / 4


def test_no_floor_is_above_a_measurement() -> None:
    """Peaks that were measured far too low, as beside other work, are raised by what a stage reached."""
    made = {"size": "256", "frames": 33, "batch": 1}
    rows = [
        made | {"path": "eager", "stage": "decode", "ms": 30.0, "best_ms": 20.0, "gflop": 10.0, "moved_gb": 0.001},
        made | {"path": "fast", "stage": "decode", "ms": 9.0, "best_ms": 8.0, "gflop": 10.0, "moved_gb": 0.001},
        made | {"path": "fast", "stage": "mask", "ms": 2.0, "best_ms": 1.0, "moved_gb": 0.1},
        made | {"path": "fast", "stage": "video", "missing": "no PyAV"},
    ]
    low = Peaks(flops=1e9, quick=4e9, bytes=1e6, source="measured")
    peaks = raised(low, rows)
    add_floors(rows, peaks)
    assert peaks.flops == pytest.approx(10e9 / 0.02) and peaks.quick == pytest.approx(10e9 / 0.008)
    assert peaks.source == "measured, reached by eager decode, reached by fast decode, reached by fast mask"
    for r in rows[:3]:
        assert r["floor_ms"] <= r["best_ms"] * 1.000001 and r["times_floor"] == r["ms"] / r["floor_ms"]
    high = Peaks(flops=1e15, quick=1e15, bytes=1e15, source="measured")
    assert raised(high, rows) == high


def test_a_record_is_shown_beside_an_earlier_one(small: Tokenizer, tmp_path: Path) -> None:
    config = BenchConfig(device="cpu", sizes=("16x24",), frames=(5,), repeats=1, stages=("mask", "gather"))
    before = bench(replace(config, stages=("mask",)), small)
    (tmp_path / "old.json").write_text(json.dumps(before | {"torch": "1.0"}))
    record = bench(config, small)
    compare(record, read_record(tmp_path / "old.json"), "old.json")
    for now, then in zip([r for r in record["rows"] if r["stage"] == "mask"], before["rows"], strict=True):
        assert now["before_ms"] == then["clip_ms"] and now["times_before"] == now["clip_ms"] / then["clip_ms"]
    assert all("before_ms" not in r for r in record["rows"] if r["stage"] == "gather")
    lines = table(record).splitlines()
    assert lines[1].endswith("x before") and lines[-1].startswith("before: old.json, 2 of 4 rows; torch 1.0 then, ")
    assert len(lines) == 3 + len(record["rows"])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": 3}', '{"rows": [{"stage": "mask"}]}', "\x00"])
def test_what_is_no_record_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UsageError, match=r"is no record of inlay bench"):
        read_record(tmp_path / "x.json")
    with pytest.raises(UsageError, match="cannot be read"):
        read_record(tmp_path / "none.json")


def test_seconds_bound_what_is_timed() -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        time.sleep(0.01)

    found = timed(call, torch.device("cpu"), repeats=1000, warmup=1000, seconds=0.0)
    assert len(calls) == 2 and found["ms"] >= 10
    assert timed(call, torch.device("cpu"), repeats=3, warmup=2)["ms"] > 0 and len(calls) == 7
    with pytest.raises(ConfigError, match="seconds are more than 0"):
        BenchConfig(seconds=0)


def test_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("INLAY_FAST", "1")
    with at_level("0"):
        assert os.environ["INLAY_FAST"] == "0"
    assert os.environ["INLAY_FAST"] == "1"


def test_settings_are_checked() -> None:
    assert size_of("720p") == (720, 1280)
    with pytest.raises(UsageError, match=r"unknown size \(a name, or height x width .*'721p'; did you mean"):
        BenchConfig(sizes=("721p",))
    with pytest.raises(UsageError, match="unknown stage"):
        BenchConfig(stages=("encod",))
    with pytest.raises(ConfigError, match="whole numbers from 1"):
        BenchConfig(batches=(0,))
    with pytest.raises(ConfigError, match="keep is a share"):
        BenchConfig(keep=0.0)
    for nothing in ({"sizes": ()}, {"paths": ()}, {"stages": ()}):
        with pytest.raises(ConfigError, match="names nothing to time"):
            BenchConfig(**nothing)


def test_a_path_that_would_not_run_is_not_timed_under_its_name(small: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="compiled on CUDA only"):
        bench(BenchConfig(paths=("fast", "compiled"), sizes=("16x16",)), small)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench.json"
    words = ["bench", "--backbone", "mini-untrained", "--sizes", "16x16", "--frames", "5", "--repeats", "1"]
    words += ["--stages", "mask,gather", "--device", "cpu", "--out", str(out)]
    assert main(words) == 0
    assert "gather" in capsys.readouterr().out
    assert json.loads(out.read_text())["config"]["stages"] == ["mask", "gather"]
    assert main(words) == 2, "a record is not overwritten"
    assert main([*words, "--against", str(out), "--force"]) == 0, "beside the record it replaces"
    assert "4 of 4 rows" in json.loads(out.read_text())["before"] and "x before" in capsys.readouterr().out
    assert main(["bench", "--against", str(tmp_path / "none.json")]) == 2
    assert "none.json: cannot be read" in capsys.readouterr().err
    assert main(["bench", "--batches", "one"]) == 2
    assert "--batches takes whole numbers" in capsys.readouterr().err


def test_plain_python_refuses_what_could_not_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from inlay.research.bench.__main__ import main as plain

    (tmp_path / "there.json").write_text("old")
    for out, words in (("there.json", "exists already"), ("nowhere/new.json", "does not exist")):
        assert plain(["--out", str(tmp_path / out)]) == 2
        assert words in capsys.readouterr().err
    assert plain(["--batches", "1,x"]) == 2
    few = ["--backbone", "mini-untrained", "--sizes", "16x16", "--frames", "5", "--repeats", "1", "--device", "cpu"]
    assert plain([*few, "--paths", "fast", "--stages", "mask,gather", "--batches", "1,2"]) == 0
    assert capsys.readouterr().out.count("gather") == 2


def test_plain_python_needs_no_command_line_packages() -> None:
    code = (
        "import sys\n"
        "for name in ('typer', 'rich', 'av', 'constriction', 'skimage'): sys.modules[name] = None\n"
        "from inlay.research.bench.__main__ import main\n"
        "sys.exit(main(['--backbone', 'mini-untrained', '--sizes', '16x16', '--frames', '5', '--repeats', '1',"
        " '--device', 'cpu', '--stages', 'video', 'mask', 'entropy']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "constriction is not installed" in done.stdout


def test_the_page_says_what_the_records_say() -> None:
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, root / "benchmarks" / "speed_tables.py", "--check"], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
