# SPDX-License-Identifier: Apache-2.0
"""`inlay bench`: what is timed, what it is held against, and that plain Python can run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from inlay.cli.main import main
from inlay.errors import ConfigError, UsageError
from inlay.fill import Filler, Lit, LitConfig
from inlay.kernels.switch import at_level
from inlay.research.bench import BenchConfig, bench, table
from inlay.research.bench.config import STAGES, size_of
from inlay.research.bench.stages import Case, tau_for
from inlay.research.bench.timing import Peaks, flops, sheet
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
            assert r["gflop"] > 0 and r["tflops"] > 0 and 0 < r["floor_ms"] < r["ms"] * 10
    by = {(r["batch"], r["stage"]): r for r in record["rows"] if r["path"] == "eager"}
    assert by[2, "encode"]["gflop"] == pytest.approx(2 * by[1, "encode"]["gflop"])
    json.dumps(record)
    text = table(record)
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
    peaks = Peaks(flops=1e12, bytes=1e9, source="x")
    assert peaks.floor_ms(1e9, 1e3) == pytest.approx(1.0)
    assert peaks.floor_ms(1e6, 5e6) == pytest.approx(5.0)
    found = sheet("NVIDIA H200", torch.bfloat16)
    assert found is not None and (found.flops, found.bytes) == (989e12, 4.8e12)
    assert sheet("some other chip", torch.float32) is None


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
