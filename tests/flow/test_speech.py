# SPDX-License-Identifier: Apache-2.0
"""What every command takes: --threads, -v, -q; progress on a terminal; completion; the version; settings in a file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from inlay.cli.main import main
from inlay.origin import commit
from inlay.train.presets import LIT_PRESETS
from inlay.train.settings import read_settings, settings_text
from inlay.video import write_video
from tests.conftest import moving_square

MODEL = ["--backbone", "mini-untrained", "--device", "cpu"]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("speech") / "clip.mp4"
    write_video(moving_square(5, 24, 32), path)
    return path


def test_threads_are_set_for_the_command_and_then_as_before(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = torch.get_num_threads()
    words = ["encode", str(clip), str(tmp_path / "x.inlay"), "--tau", "1", *MODEL]
    assert main([*words, "--threads", str(before + 2), "-v"]) == 0
    assert f"{before + 2} CPU threads" in capsys.readouterr().err
    assert torch.get_num_threads() == before
    for wrong in ("0", "100000"):
        assert main(["info", "x.inlay", "--threads", wrong]) == 2
        assert "(--threads)" in capsys.readouterr().err


def test_the_threads_of_tokenize_are_those_of_each_process() -> None:
    from inlay.errors import ConfigError
    from inlay.scale import RunConfig
    from inlay.scale.workers import cores, threads_for

    assert threads_for(RunConfig(workers=2, threads=3), "cpu") == 3
    assert threads_for(RunConfig(workers=1), "cpu") == cores()
    with pytest.raises(ConfigError, match="a number from 1 on"):
        RunConfig(threads=0)


def test_verbose_says_what_was_loaded_and_what_it_cost_on_stderr(
    clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["encode", str(clip), "--tau", "1", *MODEL]
    assert main([*words, str(tmp_path / "a.inlay"), "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main([*words, str(tmp_path / "b.inlay"), "-v", "--json"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("{") and re.search(r"loaded mini-untrained \w+ in [\d.]+ s \(cpu, float32", err)
    assert re.search(r"encode took [\d.]+ s and at most [\d,]+ MB", err)
    assert main([*words, str(tmp_path / "c.inlay")]) == 0
    assert capsys.readouterr().err == "", "it ends with the command"


def test_the_version_has_its_commit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    shown = capsys.readouterr().out
    assert re.fullmatch(r"inlay \d+\.\d+\.\d+( \([0-9a-f]{12}\+?\))?\n", shown)
    assert commit()[:12] in shown


@pytest.mark.skipif(sys.platform == "win32", reason="terminals of other systems")
def test_progress_on_a_terminal_has_frames_a_second_and_the_time_left(tmp_path: Path) -> None:
    import pty  # which Windows has not

    code = (
        "import time\n"
        "from inlay.cli.screen import Screen\n"
        "with Screen(about='2 of 3, clip.mp4: ').progress('encoding', 40) as advance:\n"
        "    for _ in range(4):\n"
        "        time.sleep(0.15)\n"
        "        advance(8)\n"
    )
    mother, child = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen([sys.executable, "-c", code], stderr=child, stdout=child, env=environment) as process:
        os.close(child)
        shown = b""
        while True:
            try:
                piece = os.read(mother, 4096)
            except OSError:  # how the end of a terminal looks on Linux
                break
            if not piece:
                break
            shown += piece
    os.close(mother)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert process.returncode == 0 and "2 of 3, clip.mp4: encoding (frames)" in text
    assert re.search(r"\d+\.\d frames/s", text) and re.search(r"left 0:00:\d\d", text) and "32/40" in text
    assert re.search(r" 8/40 \d+\.\d frames/s 0:00:00 left 0:00:0\d", text), "from the first chunk on"


@pytest.mark.parametrize(
    ("words", "wanted"),
    [("inlay enc", "encode"), ("inlay encode --out", "--out-dir"), ("inlay decode --fill lin", "linear")],
)
def test_the_shell_is_told_what_may_follow(words: str, wanted: str) -> None:
    asked = {"_INLAY_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = subprocess.run([sys.executable, "-m", "inlay"], capture_output=True, text=True, env=os.environ | asked)
    assert wanted in done.stdout.split(), done.stderr


class TestSettings:
    def test_a_preset_comes_back_from_its_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for name, preset in LIT_PRESETS.items():
            assert main(["train", "lit", "--show-preset", name]) == 0
            (tmp_path / "x.toml").write_text(capsys.readouterr().out)
            assert LIT_PRESETS["smoke"]().with_options(**read_settings(tmp_path / "x.toml")) == preset()
        assert main(["train", "lit", "--show-preset", "smok"]) == 2
        assert "did you mean 'smoke'" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("steps = ", "not a TOML file"),
            ("step = 3", "did you mean 'steps'"),
            ("[clips]\nlr = 0.1", "unknown setting of [clips]"),
            ("steps = 'many'", "steps wants int; got 'many'"),
            ("steps = true", "steps wants int; got True"),
            ("tau = 0.3", "tau wants a list"),
            ("tau = [0.3, 0.2]", "tau is a range"),
            ("clips = 3", "unknown setting"),
        ],
    )
    def test_what_a_file_may_not_say(
        self, text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "x.toml").write_text(text)
        words = ["train", "lit", str(tmp_path), "--run", str(tmp_path / "r"), "--config", str(tmp_path / "x.toml")]
        assert main(words) == 2
        assert said in capsys.readouterr().err and not (tmp_path / "r").exists()

    def test_flags_go_before_the_file_and_the_file_before_the_preset(self, tmp_path: Path) -> None:
        from inlay.cli.commands.train import TrainJob

        (tmp_path / "x.toml").write_text("steps = 7\nbatch = 6\n[optim]\nlr = 1\n")
        job = TrainJob(data=".", run="r", config=str(tmp_path / "x.toml"))
        got = job.settings("smoke", LIT_PRESETS, {"steps": 9})
        assert (got.steps, got.batch, got.optim.lr, got.clips.size) == (9, 6, 1, 32)
        assert settings_text(got).startswith("steps = 9  #")
