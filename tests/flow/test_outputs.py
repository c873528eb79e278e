# SPDX-License-Identifier: Apache-2.0
"""Only regular files with a fitting name are written, and what cannot be written is told before weights are loaded."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inlay.cli.main import main
from inlay.errors import OutputError
from inlay.files import atomic, made_folder, write_atomic
from inlay.video import write_video
from tests.conftest import Run, moving_square

CANNOT_WRITE = OutputError.exit_code
MODEL = ["--backbone", "mini-untrained", "--device", "cpu"]
NO_MODEL = ["--backbone", "no-such-backbone"]  # would end with code 2 and this name, if it were looked for


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(moving_square(9, 32, 32), tmp_path_factory.mktemp("clips") / "clip.mp4")


@pytest.fixture(scope="module")
def tokens(clip: Path) -> Path:
    out = clip.with_suffix(".inlay")
    assert main(["encode", str(clip), str(out), "--tau", "0.1", "--quiet", *MODEL]) == 0
    return out


@pytest.fixture(params=["device", "named pipe", "socket", "link to nothing", "folder"])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], tuple[Path, str]]]:
    """What is no file, under the name of one."""
    held: list[socket.socket] = []

    def make(name: str) -> tuple[Path, str]:
        path = tmp_path / name
        if request.param == "device":
            try:
                os.mknod(path, 0o20666, os.makedev(1, 3))  # the null device under another name
            except PermissionError:
                path.symlink_to("/dev/null")
        elif request.param == "named pipe":
            os.mkfifo(path)
        elif request.param == "socket":
            held.append(socket.socket(socket.AF_UNIX))
            here = Path.cwd()
            os.chdir(tmp_path)  # the name of a socket is short
            held[0].bind(name)
            os.chdir(here)
        elif request.param == "folder":
            path.mkdir()
        else:
            path.symlink_to(tmp_path / "nothing")
        return path, request.param

    yield make
    for one in held:
        one.close()


def kinds(folder: Path) -> dict[str, int]:
    return {path.name: path.lstat().st_mode for path in folder.iterdir()}


@pytest.mark.parametrize("command", ["encode", "decode", "view", "view --curve", "calibrate", "bench"])
def test_what_is_no_file_is_never_replaced(
    run: Run, clip: Path, tokens: Path, tmp_path: Path, odd: Callable[[str], tuple[Path, str]], command: str
) -> None:
    words: dict[str, tuple[str, Callable[[Path], list[object]]]] = {
        "encode": ("x.inlay", lambda path: ["encode", clip, path]),
        "decode": ("x.mp4", lambda path: ["decode", tokens, path]),
        "view": ("x.webp", lambda path: ["view", clip, path]),
        "view --curve": ("x.png", lambda path: ["view", clip, tmp_path / "film.mp4", "--curve", path]),
        "calibrate": ("x.json", lambda path: ["calibrate", clip, "--out", path]),
        "bench": ("x.json", lambda path: ["bench", "--out", path]),
    }
    name, line = words[command]
    path, kind = odd(name)
    before = kinds(tmp_path)
    code, _, err = run(*line(path), "--force", *NO_MODEL)
    assert code == CANNOT_WRITE, err
    assert kind in err and err.count("\n") == 1
    assert kinds(tmp_path) == before


def test_devices_themselves_stay(run: Run, clip: Path) -> None:
    before = os.lstat("/dev/null")
    code, _, err = run("encode", clip, "/dev/null", "--force", *MODEL, "--tau", 1)
    assert code == 2 and ".inlay" in err, "the suffix does not fit"
    with pytest.raises(OutputError, match="a device"), atomic("/dev/null") as part:
        part.write_bytes(b"x")
    after = os.lstat("/dev/null")
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)
    assert not [p for p in Path("/dev").iterdir() if p.name.endswith(".part")]


def test_nothing_is_written_through_a_linked_part(run: Run, clip: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    (tmp_path / "x.inlay.part").symlink_to(mine)
    for more in ([], ["--force"], ["--resume"]):
        code, _, err = run("encode", clip, tmp_path / "x.inlay", *more, *NO_MODEL)
        assert code == CANNOT_WRITE and "a link" in err, err
    assert mine.read_text() == "mine"


def test_tokens_are_not_written_under_a_videos_name(run: Run, clip: Path, tmp_path: Path) -> None:
    for name in ("b.mp4", "b", "b.inlay.txt"):
        code, _, err = run("encode", clip, tmp_path / name, *NO_MODEL)
        assert code == 2 and ".inlay" in err, err
    assert run("bench", "--out", tmp_path / "record.mp4", *NO_MODEL)[0] == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["encode", "decode", "view", "calibrate", "bench"])
def test_a_folder_that_is_not_there_has_one_code(run: Run, clip: Path, tokens: Path, tmp_path: Path, command) -> None:
    gone = tmp_path / "no" / "such"
    words = {
        "encode": ["encode", clip, gone / "x.inlay"],
        "decode": ["decode", tokens, gone / "x.mp4"],
        "view": ["view", clip, gone / "x.mp4"],
        "calibrate": ["calibrate", clip, "--out", gone / "x.json"],
        "bench": ["bench", "--out", gone / "x.json"],
    }[command]
    code, _, err = run(*words, *NO_MODEL)
    assert code == CANNOT_WRITE and "does not exist; make it first" in err


def test_a_full_disk_has_the_same_code(run: Run, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While writing: the token file, the video, the picture."""
    import inlay.container.writer as writer

    def full(*args: object, **more: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer.TokenWriter, "_write", full)
    code, _, err = run("encode", clip, tmp_path / "x.inlay", "--tau", 0.1, *MODEL)
    assert code == CANNOT_WRITE and "No space left" in err
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OutputError, match="No space left"):
        write_atomic(tmp_path / "x.png", b"x")
    assert not list(tmp_path.glob("x.inlay*"))


@pytest.mark.parametrize(
    "words",
    [
        ["demo", "--size", "abc"],
        ["demo", "--tau", "nan"],
        ["demo", *NO_MODEL],
        ["demo", "--fill", "lit", "--backbone", "mini-untrained"],
        ["export", "--size", "abc"],
        ["export", *NO_MODEL],
        ["export", "--parts", "lit", "--backbone", "mini-untrained"],
        ["study", "main", *NO_MODEL, "--frames", "9"],
        ["study", "main", "--backbone", "mini-untrained", "--frames", "9", "--side", "32", "--metrics", "psnr"],
        ["eval", "--backbone", "mini-untrained", "--frames", "9", "--side", "32", "--metrics", "psnr"],
    ],
    ids=" ".join,
)
def test_what_fails_leaves_no_folder(run: Run, clip: Path, tmp_path: Path, words: list[str]) -> None:
    out = tmp_path / "new" / "folder"
    if words[0] == "export":
        line = ["export", out, *words[1:]]
    elif words[0] == "eval":
        line = ["eval", clip, "--out", out, *words[1:]]
    else:
        line = [*words, "--out", out, *(["--data-davis", clip] if words[0] == "study" else [])]
    code, _, err = run(*line)
    assert code in (2, 5), err
    assert not (tmp_path / "new").exists()


def test_a_folder_with_results_stays(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), made_folder(tmp_path / "a" / "b", notes=("read.json",)) as folder:
        (folder / "read.json").write_text("{}")
        (folder / "record.json").write_text("{}")
        raise KeyboardInterrupt
    assert (tmp_path / "a" / "b" / "read.json").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(KeyboardInterrupt), made_folder(tmp_path / "mine"):
        raise KeyboardInterrupt
    assert (tmp_path / "mine").is_dir(), "it was there before"
