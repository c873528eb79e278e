# SPDX-License-Identifier: Apache-2.0
"""The README's commands: those that need only a clip are run in order, the others must at least exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from inlay.cli.main import COMMANDS, GROUPS, main
from tests.guard.tree import ROOT

RUN = {"encode", "decode", "info", "verify", "view", "compare"}
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.S | re.M)
LINES = [line.strip().removeprefix("$ ") for kind, body in BLOCKS if kind != "python" for line in body.splitlines()]
COMMAND_LINES = [shlex.split(line, comments=True) for line in LINES if re.match(r"inlay\s", line)]
MAKE_TARGETS = sorted({t for line in LINES if line.startswith("make ") for t in re.findall(r"^make ([a-z-]+)", line)})


@pytest.mark.parametrize("target", MAKE_TARGETS)
def test_make_targets_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize("words", COMMAND_LINES, ids=" ".join)
def test_commands_exist(words: list[str]) -> None:
    command = words[1]
    assert command in {*COMMANDS, *GROUPS} or command.startswith("--"), f"README speaks of `inlay {command}`"


def test_commands_on_a_clip_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from inlay.backbones import WEIGHTS
    from inlay.video import write_video
    from inlay.video.synthetic import moving_square

    lines = [words for words in COMMAND_LINES if words[1] in RUN]
    if not lines:
        pytest.skip("the README has no such commands yet")
    if not (WEIGHTS / "mini.safetensors").is_file():
        pytest.skip("the README's commands use the shipped weights, and this copy has none")
    monkeypatch.chdir(tmp_path)
    write_video(moving_square(33, 64, 64), "clip.mp4")
    for words in lines:
        assert main(words[1:]) == 0, " ".join(words)


def test_python_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from inlay.backbones import WEIGHTS
    from inlay.video import write_video
    from inlay.video.synthetic import moving_square

    if not (WEIGHTS / "mini.safetensors").is_file():
        pytest.skip("the README's examples use the shipped weights, and this copy has none")
    monkeypatch.chdir(tmp_path)
    write_video(moving_square(33, 64, 64), "clip.mp4")
    (tmp_path / "videos").mkdir()
    for seed in range(2):
        write_video(moving_square(17, 64, 64, seed=seed), tmp_path / "videos" / f"{seed}.mp4")
    names: dict[str, object] = {}
    for code in (body for kind, body in BLOCKS if kind == "python"):
        exec(compile(code, "README.md", "exec"), names)
    assert (tmp_path / "out.mp4").is_file()
    channels = names["tokenizer"].spec.channels  # type: ignore[attr-defined]
    assert names["latents"].shape == (2, channels, 5, 8, 8), "both videos in one batch"  # type: ignore[attr-defined]
