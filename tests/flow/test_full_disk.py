# SPDX-License-Identifier: Apache-2.0
"""No room left: every command ends with the code for results that cannot be written, and names the place."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from inlay.cli.failures import explain
from inlay.cli.main import main
from inlay.codec import Parts
from inlay.container import part_of
from inlay.errors import OutputError, UsageError
from inlay.export import Part, files
from inlay.video import write_video
from inlay.video.source import Input
from tests.conftest import Run, moving_square

CANNOT_WRITE = OutputError.exit_code
MODEL = ["--backbone", "mini-untrained", "--device", "cpu"]
SHORT = ["--chunk", "9", "--key-every", "0.4", "--tau", "0.1", *MODEL]
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """Files that grow no further, as on a full disk."""
    resource = pytest.importorskip("resource", reason="this system has no limit on the size of a file")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(moving_square(40, 32, 32), tmp_path_factory.mktemp("clips") / "clip.mp4")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- token files ------------------------------------------------------------------------------------------------------


def test_an_encode_without_room_for_a_chunk_leaves_nothing(run: Run, clip: Path, tmp_path: Path) -> None:
    with at_most(1000):
        code, _, err = run("encode", clip, tmp_path / "x.inlay", *SHORT)
    assert code == CANNOT_WRITE, err
    assert f"cannot write {tmp_path / 'x.inlay'}: File too large; nothing was kept" in err and err.count("\n") == 1
    assert names(tmp_path) == []


def test_an_encode_with_room_for_some_keeps_them_and_goes_on(run: Run, clip: Path, tmp_path: Path) -> None:
    assert run("encode", clip, tmp_path / "whole.inlay", *SHORT)[0] == 0
    whole = (tmp_path / "whole.inlay").read_bytes()
    seen: list[object] = []

    for room in (len(whole) * 3 // 4, len(whole) - 1):  # inside a chunk, and inside the index
        out = tmp_path / "x.inlay"
        with at_most(room):
            code, _, err = run("encode", clip, out, *SHORT)
        assert code == CANNOT_WRITE, err
        assert f"what was done is in {out}.part; give --resume to go on" in err and "nothing was kept" not in err
        assert f"cannot write {out}: File too large" in err.splitlines()[-1]
        assert names(tmp_path) == ["whole.inlay", "x.inlay.part", "x.inlay.part.source"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Parts, "saw_tokens", lambda self, tokens: seen.append(tokens))
            assert run("encode", clip, out, *SHORT, "--resume")[0] == 0
        assert out.read_bytes() == whole and seen, "what was done was taken up"
        out.unlink()
        seen.clear()
    assert not part_of(tmp_path / "x.inlay").exists()


# --- temporary files --------------------------------------------------------------------------------------------------


def test_a_budget_of_the_whole_video_names_the_temporary_folder(run: Run, clip: Path, tmp_path: Path) -> None:
    with at_most(1000):
        code, _, err = run("encode", clip, tmp_path / "x.inlay", "--keep", 0.3, *MODEL)
    assert code == CANNOT_WRITE and f"the temporary folder {tempfile.gettempdir()}: cannot be written" in err, err
    assert "TMPDIR" in err and err.count("\n") == 1 and names(tmp_path) == []


class Pipe(io.BytesIO):
    def seekable(self) -> bool:
        return False


def test_a_pipe_that_must_be_put_on_disk_is_not_to_blame() -> None:
    samples_first = b"\0\0\0\x10ftypisom\0\0\0\0" + (1 << 20).to_bytes(4, "big") + b"mdat"
    with at_most(100_000), pytest.raises(OutputError, match="the temporary folder"):
        Input(Pipe(samples_first.ljust(1 << 20, b"\0")))


# --- exports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_an_export_names_its_file(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part(module=torch.nn.Linear(64, 64), inputs={"x": torch.zeros(1, 64)}, output="y")
    if form == "onnx":  # whichever of its packages are here
        monkeypatch.setitem(files.FORMATS, "onnx", lambda part, path: path.write_bytes(bytes(20_000)))
    out = tmp_path / "linear"
    with at_most(10_000), pytest.raises(OutputError, match=f"{out}: cannot be written: File too large"):
        files.write_checked(part, out, form)
    assert names(tmp_path) == []


# --- standard output --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("words", ["info {}", "info {} --json", "decode {} -", "encode --help", "--help", "--version"])
def test_a_full_standard_output_is_named(words: str, tokens: Path) -> None:
    line = [sys.executable, "-m", "inlay", *words.format(tokens).split()]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, env=ONE_THREAD)
    assert done.returncode == CANNOT_WRITE, done.stderr
    assert done.stderr.startswith("inlay: standard output: ") and "No space left" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def tokens(clip: Path) -> Path:
    out = clip.with_suffix(".inlay")
    assert main(["encode", str(clip), str(out), "--tau", "0.1", "--quiet", *MODEL]) == 0
    return out


# --- anything else ----------------------------------------------------------------------------------------------------


def test_an_error_of_the_system_has_the_code_of_its_kind() -> None:
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        assert explain(OSError(number, "no room", "there"), None) == ("there: no room", CANNOT_WRITE)
    message, code = explain(OSError(errno.ENAMETOOLONG, "File name too long", "there"), None)
    assert (message, code) == ("there: the name is too long; give a shorter one", UsageError.exit_code)
    assert explain(OSError(errno.EIO, "input/output error", "there"), None) == ("there: input/output error", 1)
