# SPDX-License-Identifier: Apache-2.0
"""Names that are too long, empty, in two lines, of no encoding or of two results; and streams that are shut."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inlay.cli.main import main
from inlay.errors import OutputError, TokenFileError, UsageError, VideoError
from inlay.files import part_beside, too_long
from inlay.video import read_video, write_video
from tests.conftest import Run, moving_square

MODEL = ["--backbone", "mini-untrained", "--device", "cpu"]
NO_MODEL = ["--backbone", "no-such-backbone"]  # would end with code 2 and this name, if it were looked for
HOLD = ["--fill", "hold", "--device", "cpu"]
INLAY = [sys.executable, "-m", "inlay"]
TOO_LONG = "a" * 300

posix = pytest.mark.skipif(sys.platform == "win32", reason="names and descriptors of other systems")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(moving_square(5, 32, 32), tmp_path_factory.mktemp("clips") / "clip.mp4")


@pytest.fixture(scope="module")
def tokens(clip: Path) -> Path:
    out = clip.with_suffix(".inlay")
    assert main(["encode", str(clip), str(out), "--tau", "0.1", "--quiet", *MODEL]) == 0
    return out


def child(*words: object, shell: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own; `shell` says what a shell does to its streams."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    line = ["sh", "-c", f'exec "$@" {shell}', "sh", *INLAY, *map(str, words)]
    return subprocess.run(line, capture_output=True, env=env, stdin=subprocess.DEVNULL)


# --- length -----------------------------------------------------------------------------------------------------------


@posix
def test_a_legal_name_is_written_however_long(run: Run, clip: Path, tokens: Path, tmp_path: Path) -> None:
    long = tmp_path / ("b" * 251 + ".mp4")
    code, _, err = run("decode", tokens, long, *HOLD)
    assert code == 0 and len(read_video(long)) == 5, err
    token_file = tmp_path / ("c" * 237 + ".inlay")  # and what an interruption would leave beside it
    code, _, err = run("encode", clip, token_file, "--tau", "1", *MODEL)
    assert code == 0 and token_file.is_file(), err
    for name in ("x" * 255, "ü" * 127):
        part = part_beside(tmp_path / name)
        assert not too_long(part) and part.name.startswith(f".{name[:50]}") and part.name.endswith(".part")


@posix
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["encode", "LONG.mp4"], VideoError),
        (["encode", "LONG.mp4", "x.inlay"], VideoError),
        (["encode", "LONG.mp4", "--out-dir", "out"], VideoError),
        (["view", "LONG.mp4"], VideoError),
        (["compare", "CLIP", "LONG.mp4"], VideoError),
        (["decode", "LONG.inlay"], TokenFileError),
        (["info", "LONG.inlay"], TokenFileError),
        (["encode", "CLIP", "LONG.inlay"], OutputError),
        (["encode", "CLIP", "c" * 238 + ".inlay"], OutputError),
        (["encode", "CLIP", "--out-dir", TOO_LONG], OutputError),
        (["encode", "CLIP", "x.inlay", "--curve", "LONG.png"], OutputError),
        (["decode", "TOKENS", "LONG.mp4"], OutputError),
        (["decode", "TOKENS", "--out-dir", TOO_LONG], OutputError),
        (["view", "CLIP", "LONG.mp4"], OutputError),
        (["demo", "--out", TOO_LONG], OutputError),
        (["export", TOO_LONG], OutputError),
        (["bench", "--out", "LONG.json"], OutputError),
        (["calibrate", "CLIP", "--out", "LONG.json"], OutputError),
    ],
    ids=lambda value: " ".join(value).replace(TOO_LONG, "LONG")[:60] if isinstance(value, list) else "",
)
def test_a_name_that_is_too_long_is_refused_before_weights_are_looked_for(
    run: Run, clip: Path, tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    words: list[str], error: type[Exception],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    places = {"CLIP": str(clip), "TOKENS": str(tokens)}
    given = [places.get(word, word.replace("LONG", TOO_LONG)) for word in words]
    with_model = words[0] in ("encode", "decode", "view", "demo", "bench", "calibrate")
    code, _, err = run(*given, *(NO_MODEL if with_model else []))
    assert code == error.exit_code, err  # type: ignore[attr-defined]
    assert "the name is too long" in err and "give a shorter one" in err and err.count("\n") == 1
    assert ".part" not in err and not [p for p in tmp_path.iterdir() if p.name != "out"]


@posix
def test_one_of_many_that_is_too_long_does_not_stop_the_others(run: Run, clip: Path, tmp_path: Path) -> None:
    shutil.copy(clip, tmp_path / ("d" * 250 + ".mp4"))
    shutil.copy(clip, tmp_path / "e.mp4")
    for resume in ([], ["--resume"]):
        code, out, err = run("encode", tmp_path, "--out-dir", tmp_path / "out", "--tau", "1", *MODEL, *resume)
        assert code == OutputError.exit_code and "the name is too long" in err and "1 of 2 done" in err
        assert "e.inlay" in out
        if not resume:
            (tmp_path / "out" / "e.inlay").unlink()


# --- empty, or in two lines -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["encode", ""], ["encode", "", "x.inlay"], ["decode", ""], ["decode", "", "x.mp4"],
                                   ["view", ""], ["info", ""], ["compare", "", "x.mp4"]], ids=str)  # fmt: skip
def test_an_empty_name_is_called_so(run: Run, words: list[str]) -> None:
    code, _, err = run(*words)
    assert code == UsageError.exit_code and "the name of the input is empty" in err


@pytest.mark.parametrize("command", ["encode", "decode", "view"])
def test_an_empty_name_of_a_result_is_called_so(run: Run, clip: Path, tokens: Path, command: str) -> None:
    before = sorted(clip.parent.iterdir())
    code, _, err = run(command, tokens if command == "decode" else clip, "")
    assert code == OutputError.exit_code and "the name of the output is empty" in err
    assert sorted(clip.parent.iterdir()) == before


@posix
def test_a_name_in_two_lines_is_told_in_one(run: Run, tokens: Path, tmp_path: Path) -> None:
    code, _, err = run("encode", tmp_path / "new\nnot.mp4")
    assert code == VideoError.exit_code and r"new\nnot.mp4: no such file" in err and err.count("\n") == 1
    shutil.copy(tokens, tmp_path / "a\x1b[31m\n.inlay")
    code, out, err = run("info", tmp_path, tmp_path / "no\n.inlay")
    assert code == TokenFileError.exit_code and out.count("\n") == 1 and r"a\x1b[31m\n.inlay" in out
    assert err.count("no\\n.inlay") == 1 and "\x1b" not in out
    assert run("info", tmp_path / "a\x1b[31m\n.inlay")[1].splitlines()[1].startswith("video")


# --- no encoding ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are text")
def test_a_name_of_no_encoding_is_shown_escaped(tokens: Path, clip: Path, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"\xff\xfe.inlay")
    shutil.copy(tokens, odd)
    shutil.copy(tokens, tmp_path / "z.inlay")
    done = child("info", tmp_path, PYTHONIOENCODING="utf-8:strict")
    assert done.returncode == 0, done.stderr
    assert rb"\udcff\udcfe.inlay" in done.stdout and b"z.inlay" in done.stdout and b"2 of 2 done" in done.stderr
    done = child("info", "no →.inlay", PYTHONIOENCODING="ascii")
    assert done.returncode == TokenFileError.exit_code and rb"no \u2192.inlay: no such file" in done.stderr
    shutil.copy(clip, odd.with_suffix(".mp4"))
    words = ["encode", odd.with_suffix(".mp4"), "--force", "--tau", "1", *MODEL]
    done = child(*words, PYTHONIOENCODING="ascii:strict")
    assert done.returncode == 0 and done.stderr == b""


# --- streams that are shut --------------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize(
    ("words", "shell", "code", "says"),
    [
        ("info TOKENS", ">&-", 0, b""),
        ("info TOKENS", "2>&-", 0, b""),
        ("info TOKENS", "<&- >&- 2>&-", 0, b""),
        ("info no.inlay", "2>&-", 4, b""),
        ("encode - x.inlay", "<&-", 3, b"inlay: standard input: is empty (0 bytes); give a video\n"),
        ("--help", ">&-", 0, b""),
    ],
)
def test_a_stream_that_is_shut_is_as_good_as_one_that_nobody_reads(
    words: str, shell: str, code: int, says: bytes, tokens: Path, tmp_path: Path
) -> None:
    given = words.replace("TOKENS", str(tokens)).replace("x.inlay", str(tmp_path / "x.inlay")).split()
    done = child(*given, shell=shell)
    assert (done.returncode, done.stderr) == (code, says)


# --- two results, and settings that say nothing -----------------------------------------------------------------------


def test_two_results_of_one_name_are_refused(
    run: Run, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for sheet in ("s.png", "./s.png", str(tmp_path / "s.png")):
        for force in ([], ["--force"]):
            code, _, err = run("view", clip, "f.mp4", "--curve", "s.png", "--sheet", sheet, *force, *NO_MODEL)
            assert code == UsageError.exit_code and "two results would have one name" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "given",
    ["--tau 0.3", "--criterion latent-l2", "--reference previous", "--mode clips", "--size 32", "--tau 1 --mode clips"],
)
def test_a_token_file_is_shown_as_it_was_made(run: Run, tokens: Path, tmp_path: Path, given: str) -> None:
    code, _, err = run("view", tokens, tmp_path / "v.mp4", *given.split())
    assert code == UsageError.exit_code and "a token file" in err, err
    assert all(flag in err for flag in given.split() if flag.startswith("--")) and not list(tmp_path.iterdir())


def test_a_file_in_place_of_a_packed_cache(run: Run, clip: Path, tmp_path: Path) -> None:
    for words in (["verify", clip], ["unpack", clip, tmp_path / "out"]):
        code, _, err = run("cache", *words)
        assert code == UsageError.exit_code and "give the folder that inlay cache pack wrote" in err
