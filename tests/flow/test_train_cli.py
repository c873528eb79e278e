# SPDX-License-Identifier: Apache-2.0
"""The commands of `inlay train`, from videos on disk to weights that load."""

from __future__ import annotations

import json
import re
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import typer
from torch import Tensor

from inlay.backbones import WEIGHTS
from inlay.cli.commands.train import app
from inlay.errors import OutputError, UsageError, VideoError
from inlay.train.config import option_fields
from inlay.train.data import Batch
from inlay.train.loop import Training
from tests.conftest import moving_square


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from inlay.video import write_video

    place = tmp_path_factory.mktemp("videos")
    for i in range(4):
        write_video(moving_square(7, 40, 48, seed=i), place / f"{i}.mp4")
    write_video(moving_square(3, 40, 48), place / "short.mp4")
    (place / "broken.mp4").write_bytes(b"no video")
    return place


def invoke(*args: str | Path) -> None:
    app([str(a) for a in args], standalone_mode=False)


QUICK = ("--preset", "smoke", "--steps", "2", "--device", "cpu")


def test_lit_from_a_folder_to_weights(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from inlay.fill import load_lit

    run = tmp_path / "run"
    invoke("lit", folder, "--run", run, *QUICK, "--backbone", "mini-untrained", "--tau", "0.05", "0.2", "--no-flip")
    shown = capsys.readouterr()
    assert "dB at step" in shown.out
    assert "1 of 4 videos are left out: shorter than 5 frames" in shown.err
    assert "1 of the videos cannot be used" in shown.err
    assert "2 steps of 2 clips of 5x32x32 from 3 videos, on cpu" in shown.err, "said before a first step of minutes"
    first, last = (line for line in shown.err.splitlines() if " rate " in line)
    assert re.search(r"step 1/2 .* s a step, .* s left$", first) and last.endswith(" s a step"), shown.err
    record = json.loads((run / "config.json").read_text())["config"]
    assert (record["tau"], record["clips"]["flip"], record["steps"]) == ([0.05, 0.2], False, 2)
    data = json.loads((run / "data.json").read_text())
    assert (len(data["train"]), len(data["validate"]), data["too_short"]) == (4, 1, 1)
    assert any("broken.mp4" in problem for problem in data["problems"])
    assert load_lit(run / "weights.safetensors").config.width == 64


def test_an_interrupted_run_says_which_step_is_saved(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Training.take_step

    def interrupted(self: Training, batch: Batch, rate: float) -> dict[str, Tensor]:
        signal.raise_signal(signal.SIGINT)
        return step(self, batch, rate)

    monkeypatch.setattr(Training, "take_step", interrupted)
    with suppress(KeyboardInterrupt, typer.Abort):  # as typer makes of it
        invoke("lit", folder, "--run", tmp_path / "run", *QUICK, "--backbone", "mini-untrained")
    assert "step 1 is saved; the same command with --resume goes on" in capsys.readouterr().err
    assert json.loads((tmp_path / "run" / "checkpoints" / "last.json").read_text())["step"] == 1


def test_a_video_that_breaks_off_does_not_stop_a_run(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from inlay.video import write_video

    place = tmp_path / "videos"
    shutil.copytree(folder, place)
    write_video(moving_square(30, 40, 48, seed=3), place / "long.mp4", lossless=True)
    data = bytearray((place / "long.mp4").read_bytes())
    data[len(data) // 2 : len(data) - 2000] = bytes(len(data) - 2000 - len(data) // 2)  # only reading finds it out
    (place / "long.mp4").write_bytes(data)
    run = tmp_path / "run"
    invoke("lit", place, "--run", run, *QUICK, "--backbone", "mini-untrained", "--batch", "4")
    assert capsys.readouterr().err.count("long.mp4") == 1
    problems = json.loads((run / "data.json").read_text())["problems"]
    assert any("long.mp4" in line and "the next video" in line for line in problems)


def test_both_are_trained_at_once(folder: Path, tmp_path: Path) -> None:
    from inlay.fill import load_lit
    from inlay.weightfile import load_weights

    run = tmp_path / "run"
    invoke("together", folder, "--run", run, *QUICK)
    assert load_lit(run / "lit.safetensors").backbone_hash == load_weights(run / "weights.safetensors").hash
    again = ("--from", run / "weights.safetensors", "--from-lit", run / "lit.safetensors")
    invoke("together", folder, "--run", tmp_path / "again", *QUICK, *again)


def test_what_ships_goes_on_learning(folder: Path, tmp_path: Path) -> None:
    few = ("--steps", "1", "--batch", "1", "--size", "32", "--frames", "5", "--validate-clips", "1", "--device", "cpu")
    starts = ("--from", WEIGHTS / "mini.safetensors", "--from-lit", WEIGHTS / "mini.lit.safetensors")
    invoke("together", folder, "--run", tmp_path / "run", *few, *starts)  # the preset's own shapes, as it ships
    networks = json.loads((tmp_path / "run" / "config.json").read_text())["networks"]
    assert networks["backbone"]["channels"] == networks["lit"]["channels"] == 48


def test_backbone_says_json_and_goes_on(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    start = ("backbone", folder, "--run", run, *QUICK, "--json")
    invoke(*start, "--stop-after", "0.0001")
    assert json.loads(capsys.readouterr().out)["finished"] is False
    with pytest.raises(UsageError, match="--resume"):
        invoke(*start)
    invoke(*start, "--resume")
    record = json.loads(capsys.readouterr().out)
    assert (record["finished"], record["step"]) == (True, 2)
    assert Path(record["weights"]).is_file()


def test_what_cannot_work_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        invoke("lit", tmp_path / "none", "--run", tmp_path / "run")
    with pytest.raises(VideoError, match="no videos"):
        invoke("backbone", tmp_path, "--run", tmp_path / "run", *QUICK)
    with pytest.raises(UsageError, match="unknown preset 'plux'; did you mean 'plus'"):
        invoke("lit", tmp_path, "--run", tmp_path / "run", "--preset", "plux")
    assert not (tmp_path / "run").exists()
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="is a file; give the name of a folder"):
        invoke("lit", tmp_path, "--run", tmp_path / "file")


def test_one_video_is_enough(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video = folder / "1.mp4"
    invoke("backbone", video, "--run", tmp_path / "run", *QUICK, "--steps", "1", "--batch", "1")
    assert "1 step of 1 clip of 5x32x32 from 1 video, on cpu" in capsys.readouterr().err
    assert str(video.resolve()) in (tmp_path / "run" / "data.json").read_text()


def test_every_setting_is_a_flag_that_explains_itself() -> None:
    group = typer.main.get_command(app)
    settings = {"--" + f.name.replace("_", "-") for _, f in option_fields()}
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        flags = {flag for p in command.params for flag in p.opts}
        wanted = {"--" + f.name.replace("_", "-") for _, f in option_fields(name)}
        assert settings & flags == wanted, "those that the task looks at, and no other"
        assert all(getattr(p, "help", None) for p in command.params if p.name != "help")
