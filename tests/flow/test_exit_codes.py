# SPDX-License-Identifier: Apache-2.0
"""Exit codes: one table, the same in the docs, and every command keeps to it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from inlay import errors
from inlay.cli.main import COMMANDS, GROUPS, main
from inlay.errors import EXIT_CODES, InlayError, Terminated
from inlay.video import write_video
from tests.conftest import ROOT, moving_square

INLAY = [sys.executable, "-m", "inlay"]
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
GROUPED = {f"train {name}" for name in ("lit", "backbone", "together")}

CASES: dict[str, dict[str, int]] = {  # command -> what follows it -> exit code
    "encode": {
        "no.mp4": 3, "text.mp4": 3, "clip.mp4 no/x.inlay": 6, "clip.mp4 x.mp4": 2, "clip.mp4 clip.inlay": 2,
        "clip.mp4 x.inlay --weights no": 5, "clip.mp4 x.inlay --tau -1": 2,
    },
    "decode": {
        "no.inlay": 4, "bad.inlay": 4, "clip.mp4": 4, "clip.inlay no/x.mp4": 6, "clip.inlay x.txt": 2,
        "clip.inlay x.mp4 --weights no": 5, "clip.inlay x.mp4 --fill hold --device cpu": 0,
    },
    "info": {"no.inlay": 4, "bad.inlay": 4, "clip.inlay": 0},
    "verify": {"no.inlay": 4, "bad.inlay": 4, "clip.inlay bad.inlay": 4, "clip.inlay": 0},
    "view": {
        "no.mp4": 3, "text.mp4": 3, "no.inlay": 4, "bad.inlay": 4, "clip.mp4 no/x.mp4": 6,
        "clip.mp4 v.mp4 --weights no": 5,
    },
    "demo": {"--video no.mp4 --out d": 3, "--video text.mp4 --out d": 3, "--out clip.mp4": 6},
    "serve": {"--port 99999": 2, "--weights no --port 0": 5},
    "tokenize": {"no out": 2, "text.mp4 out": 3, "clip.mp4 clip.mp4": 6, "clip.mp4 out2 --weights no": 5},
    "export": {"clip.mp4": 6, "d --backbone nosuch": 2},
    "backbones": {"": 0, "more": 2},
    "fetch": {"nosuch": 2},
    "doctor": {"": 0, "more": 2},
    "calibrate": {"no": 2, "clip.mp4 --out no/p.json": 6, "clip.mp4 --weights no": 5},
    "compare": {"no.mp4 clip.mp4": 3, "clip.mp4 text.mp4": 3, "clip.mp4 clip.mp4 --device cpu": 0},
    "eval": {"no": 2, "text.mp4 --device cpu": 3, "clip.mp4 --weights no": 5},
    "study": {"nosuch --out s": 2, "fills": 2},
    "bench": {"--backbone nosuch": 2, "--sizes abc": 2},
    "train lit": {"no": 2, "no --run r": 2},
    "train backbone": {"no": 2, "no --run r": 2},
    "train together": {"no": 2, "no --run r": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clip, its tokens, and what only look like one."""
    place = tmp_path_factory.mktemp("codes")
    write_video(moving_square(9, 24, 32), place / "clip.mp4")
    words = ["--tau", "1", "--backbone", "mini-untrained", "--device", "cpu", "--quiet"]
    assert main(["encode", str(place / "clip.mp4"), *words]) == 0
    (place / "text.mp4").write_text("not a video")
    (place / "bad.inlay").write_text("not tokens")
    return place


def test_the_table_names_every_code_and_the_docs_have_the_same() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, InlayError)]
    assert {kind.exit_code for kind in [*kinds, Terminated]} <= set(EXIT_CODES)
    text = (ROOT / "docs" / "app.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.*) \|$", text, re.M)
    assert {int(code): meaning for code, meaning in rows} == EXIT_CODES


def test_every_command_is_among_the_cases() -> None:
    assert set(CASES) == (set(COMMANDS) - set(GROUPS)) | GROUPED
    assert {1, 130, 137, 141, 143}.isdisjoint(code for codes in CASES.values() for code in codes.values())
    assert {0, 2, 3, 4, 5, 6} == {code for codes in CASES.values() for code in codes.values()}


@pytest.mark.parametrize("command", CASES)
def test_a_wrong_flag_is_2_and_help_is_0(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--no-such-flag"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main([*command.split(), "--help"]) == 0


@pytest.mark.parametrize(("command", "words"), [(c, w) for c, words in CASES.items() for w in words])
def test_every_command_keeps_to_the_table(
    command: str, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    code = main([*command.split(), *words.split()])
    printed = capsys.readouterr()
    assert code == CASES[command][words], printed.err
    if code and command != "verify":  # which prints what it found as its result
        assert printed.err.strip().splitlines()[-1].startswith("inlay: ")


def test_a_defect_of_ours_is_1_and_memory_that_ran_out_137(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for error, code in (
        (ZeroDivisionError("x"), 1),
        (MemoryError(), 137),
        (RuntimeError("can't allocate memory"), 137),
    ):

        def fail(*_: object, raised: Exception = error) -> None:
            raise raised

        monkeypatch.setattr("inlay.cli.main._invoke", fail)
        assert main(["doctor"]) == code
        assert capsys.readouterr().err.startswith("inlay: ")
        assert main(["train", "lit"]) == code
        assert ("(--accumulate" in capsys.readouterr().err) == (code == 137), "a training has other ways to take less"


@pytest.mark.skipif(sys.platform == "win32", reason="signals and pipes of other systems")
class TestSignals:
    @pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
    def test_interrupted_and_terminated(self, name: str, code: int) -> None:
        words = "import os, signal, sys\nfrom inlay.cli import main as module\n"
        words += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background ignores it
        words += f"module._invoke = lambda args: os.kill(os.getpid(), signal.{name}) or signal.pause()\n"
        words += "sys.exit(module.main())\n"
        done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, env=ONE_THREAD)
        assert done.returncode == code, done.stderr
        assert hasattr(signal, name)

    def test_a_reader_that_leaves_a_decode_is_141(self, folder: Path) -> None:
        """As `inlay decode clip.inlay - | head -c 100` does."""
        words = [*INLAY, "decode", "clip.inlay", "-", "--fill", "hold", "--device", "cpu", "--quiet"]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ONE_THREAD, cwd=folder)
        assert child.stdout is not None and child.stderr is not None
        child.stdout.close()
        error = child.stderr.read()
        child.stderr.close()
        assert (child.wait(), error) == (141, b"")
