# SPDX-License-Identifier: Apache-2.0
"""The examples of every help text run as they are written, in order, in one folder with clips made by code."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from inlay.cli.examples import EXAMPLES
from inlay.cli.main import main
from inlay.video import write_video
from inlay.video.synthetic import moving_square

ORDER = list(EXAMPLES)  # later ones read what earlier ones wrote
NEEDS = {"serve": ("gradio", "web"), "tokenize": ("pyarrow", "scale"), "cache": ("safetensors", "")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples speak of: clip.mp4 and videos/."""
    place = tmp_path_factory.mktemp("examples")
    (place / "videos").mkdir()
    write_video(moving_square(33, 64, 64), place / "clip.mp4")
    for seed, name in enumerate(("one", "two", "three")):
        write_video(moving_square(33, 64, 64, side=16 + 4 * seed), place / "videos" / f"{name}.mp4")
    (place / "bin").mkdir()
    command = place / "bin" / "inlay"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m inlay "$@"\n')
    command.chmod(0o755)
    return place


@pytest.fixture
def shell(folder: Path) -> dict[str, str]:
    """An environment in which `inlay` is this one, and nothing is fetched."""
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HOME": str(folder)}


@pytest.mark.slow
@pytest.mark.parametrize("command", ORDER)
def test_examples_run_as_written(
    command: str, folder: Path, shell: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package, extra = NEEDS.get(command, ("inlay", ""))
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed; the extra {extra} brings it")
    monkeypatch.chdir(folder)
    for line in EXAMPLES[command]:
        if command == "serve":
            _serve(line, folder, shell)
        elif "# downloads" in line:  # where there is no network it must say so, in one line
            done = subprocess.run(line, shell=True, cwd=folder, env=shell, capture_output=True, text=True, timeout=280)
            assert done.returncode == 0 or (done.returncode == 5 and "\ninlay: " in f"\n{done.stderr}"), done.stderr
        elif "|" in line or ">" in line.partition("#")[0]:
            done = subprocess.run(line, shell=True, cwd=folder, env=shell, capture_output=True, text=True, timeout=280)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
        else:
            assert main(shlex.split(line, comments=True)[1:]) == 0, line


def _serve(line: str, folder: Path, shell: dict[str, str]) -> None:
    """The page answers until it is interrupted."""
    with subprocess.Popen(
        f"exec {line}", shell=True, cwd=folder, env=shell, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        said = child.stdout.readline()
        child.send_signal(signal.SIGINT)
        child.wait(60)
    assert "7861" in said, said


def test_the_first_examples_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick ones, in this process: every day."""
    monkeypatch.chdir(folder)
    (folder / "clip.inlay").unlink(missing_ok=True)
    for line in (EXAMPLES["encode"][0], *EXAMPLES["info"][:1], *EXAMPLES["verify"][:1], *EXAMPLES["doctor"]):
        assert main(shlex.split(line, comments=True)[1:]) == 0, line
    (folder / "clip.inlay").unlink()
