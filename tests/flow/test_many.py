# SPDX-License-Identifier: Apache-2.0
"""Several inputs for one command: folders, patterns, names that meet, and one that fails among others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inlay.cli.main import main
from inlay.video import read_video, write_video
from tests.conftest import Run, moving_square

MODEL = ["--backbone", "mini-untrained", "--device", "cpu"]
TAU = ["--tau", "0.05", *MODEL]
HOLD = ["--fill", "hold", "--device", "cpu"]


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three videos in a tree, one file that is none, and one that is no business of ours."""
    place = tmp_path_factory.mktemp("many") / "videos"
    (place / "deep").mkdir(parents=True)
    for seed, name in enumerate(("a.mp4", "b.mkv", "deep/a.mp4")):
        write_video(moving_square(5, 24, 32, seed=seed), place / name)
    (place / "broken.mp4").write_text("not a video")
    (place / "notes.txt").write_text("nor this")
    return place


@pytest.fixture(scope="module")
def tokens(videos: Path) -> Path:
    place = videos.parent / "tokens"
    assert main(["encode", str(videos), "--out-dir", str(place), *TAU, "--quiet"]) == 3  # one of them is no video
    return place


def files(place: Path) -> set[str]:
    return {str(p.relative_to(place)) for p in place.rglob("*") if p.is_file()}


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_folder_becomes_a_tree_of_token_files_and_one_failure_loses_no_other(
    run: Run, videos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "out"
    code, text, err = run("encode", videos, "--out-dir", out, *TAU)
    assert code == 3 and files(out) == {"a.inlay", "b.inlay", "deep/a.inlay"}
    assert "broken.mp4" in err and "3 of 4 done, 1 failed" in err
    assert text.count("% kept") == 3 and len(text.splitlines()) == 3


def test_the_bytes_are_those_of_single_encodes(run: Run, videos: Path, tokens: Path, tmp_path: Path) -> None:
    for name in ("a", "deep/a"):
        assert run("encode", videos / f"{name}.mp4", tmp_path / "x.inlay", "--force", *TAU)[0] == 0
        assert (tokens / f"{name}.inlay").read_bytes() == (tmp_path / "x.inlay").read_bytes()


def test_json_lines_tell_results_and_failures(run: Run, videos: Path, tmp_path: Path) -> None:
    code, text, _ = run("encode", videos, "--out-dir", tmp_path, *TAU, "--json")
    found = {Path(record["input"]).relative_to(videos).as_posix(): record for record in lines(text)}
    assert code == 3 and list(found) == ["a.mp4", "b.mkv", "broken.mp4", "deep/a.mp4"]
    assert found["broken.mp4"].keys() == {"input", "error", "exit_code"} and found["broken.mp4"]["exit_code"] == 3
    assert found["b.mkv"]["bytes"] == (tmp_path / "b.inlay").stat().st_size


def test_one_input_is_one_object_in_a_folder_too(run: Run, videos: Path, tmp_path: Path) -> None:
    code, text, _ = run("encode", videos / "a.mp4", "--out-dir", tmp_path / "x", *TAU, "--json")
    assert code == 0 and json.loads(text)["file"] == str(tmp_path / "x" / "a.inlay")


def test_patterns_are_ours_where_the_shell_leaves_them(
    run: Run, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(videos.parent)
    assert run("encode", "videos/[ab].m*", "--out-dir", tmp_path, *TAU)[0] == 0
    assert files(tmp_path) == {"a.inlay", "b.inlay"}
    code, _, err = run("encode", "videos/*.avi", "--out-dir", tmp_path, *TAU)
    assert code == 3 and "videos/*.avi: no file has such a name" in err


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(run: Run, videos: Path, tmp_path: Path) -> None:
    odd = tmp_path / "take [1].mp4"
    odd.write_bytes((videos / "a.mp4").read_bytes())
    assert run("encode", odd, *TAU)[0] == 0 and (tmp_path / "take [1].inlay").is_file()


def test_names_that_meet_are_refused_before_anything_is_done(run: Run, videos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, _, err = run("encode", videos / "a.mp4", videos / "deep/a.mp4", "--out-dir", out, *TAU)
    assert code == 2 and "would both become" in err and not out.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["encode", "{}"], "or make a data set of it: inlay tokenize"),
        (["encode", "{}/*.mp4"], "is a pattern; say where the results go"),
        (["encode", "{}/a.mp4", "{}/b.mkv"], "several inputs need a folder"),
        (["encode", "{}/a.mp4", "{}/b.mkv", "x.inlay"], "several inputs need a folder"),
        (["decode", "{}"], "is a folder; say where the results go"),
        (["encode", "-", "--out-dir", "x"], "standard input has no name"),
        (["encode", "{}", "--out-dir", "x", "--curve", "c.png"], "a curve is drawn of one video"),
        (["compare", "{}", "{}/a.mp4"], "give two videos, or two folders"),
        (["info", "--quiet", "--verbose", "x.inlay"], "choose one (--quiet, --verbose)"),
    ],
)
def test_what_cannot_be_meant(
    run: Run, videos: Path, tmp_path: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(*(word.format(videos) for word in words))
    assert code == 2 and said in err and not files(tmp_path), err
    assert words[0] not in ("encode", "decode") or "--out-dir" in err or "--curve" in err


def test_a_file_in_the_place_of_the_folder(run: Run, videos: Path, tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    code, _, err = run("encode", videos, "--out-dir", tmp_path / "x", *TAU)
    assert code == 6 and "is a file; give the name of a folder" in err


def test_a_wrong_flag_stops_all_at_once(run: Run, videos: Path, tmp_path: Path) -> None:
    code, text, err = run("encode", videos, "--out-dir", tmp_path / "x", "--tau", "-1", *MODEL)
    assert code == 2 and not text and err.count("\n") == 1 and not (tmp_path / "x").exists()


def test_a_second_run_goes_on_with_resume(run: Run, videos: Path, tmp_path: Path) -> None:
    assert run("encode", videos / "b.mkv", "--out-dir", tmp_path, *TAU)[0] == 0
    before = (tmp_path / "b.inlay").stat().st_mtime_ns
    words = ["encode", videos / "a.mp4", videos / "b.mkv", "--out-dir", tmp_path, *TAU, "--json"]
    code, text, _ = run(*words, "--resume")
    assert code == 0 and [record.get("skipped", False) for record in lines(text)] == [False, True]
    assert (tmp_path / "b.inlay").stat().st_mtime_ns == before
    code, text, _ = run(*words)
    assert code == 2 and all("exists already" in record["error"] for record in lines(text))


def test_decode_gives_the_tree_back_and_compare_finds_the_pairs(
    run: Run, videos: Path, tokens: Path, tmp_path: Path
) -> None:
    out = tmp_path / "decoded"
    assert run("decode", tokens, "--out-dir", out, *HOLD)[0] == 0
    assert files(out) == {"a.decoded.mp4", "b.decoded.mp4", "deep/a.decoded.mp4"}
    assert len(read_video(out / "deep" / "a.decoded.mp4")) == 5
    code, text, err = run("compare", videos, out, "--json")
    found = {Path(r["reference"]).name: r for r in lines(text) if "reference" in r}
    assert code == 3 and "broken.mp4: no video of" in err  # it has no partner
    assert set(found) == {"a.mp4", "b.mkv"} and all(record["psnr"] > 5 for record in found.values())
    (out / "left.mp4").write_bytes((out / "a.decoded.mp4").read_bytes())
    code, text, err = run("compare", videos / "[ab].m*", out / "*.mp4", "--metrics", "psnr")
    assert code == 0 and "left out: left" in err and text.splitlines()[-1].startswith("mean of 2: psnr ")


def test_info_and_verify_of_a_folder(run: Run, tokens: Path, tmp_path: Path) -> None:
    code, text, _ = run("info", tokens, "--json")
    assert code == 0 and [record["frames"] for record in lines(text)] == [5, 5, 5]
    assert run("verify", tokens)[0] == 0
    bad = tmp_path / "bad.inlay"
    bad.write_bytes((tokens / "a.inlay").read_bytes()[:60])
    code, text, _ = run("info", bad, tokens / "a.inlay")
    assert code == 4 and "5 frames 32x24" in text
    assert run("verify", tmp_path / "*.inlay")[0] == 4
    code, _, err = run("info", tmp_path / "none")
    assert code == 4 and "no such file" in err


def test_debug_shows_where_one_of_many_failed(run: Run, tokens: Path, tmp_path: Path) -> None:
    words = ["info", tokens / "a.inlay", tmp_path / "no.inlay"]
    assert "Traceback" not in run(*words)[2]
    code, text, err = run(*words, "--debug")
    assert code == 4 and "5 frames" in text and "Traceback" in err and "\ninlay: 1 of 2 done, 1 failed" in err


def test_names_made_from_other_names_are_ones_that_windows_takes() -> None:
    from inlay.cli.many import videos
    from inlay.files import portable_name

    assert [item.name for item in videos(["rtsp://camera:554"]).items] == ["camera-554"]
    assert portable_name("my.module:Class") == "my.module-Class"
    assert portable_name('a<b>"c|d?e*f\\g/h. ') == "a-b-c-d-e-f-g-h" and portable_name("...") == "unnamed"


def test_untrusted_files_are_decoded_one_by_one(run: Run, tokens: Path, tmp_path: Path) -> None:
    code, _, err = run("decode", tokens, "--out-dir", tmp_path, "--untrusted")
    assert code == 2 and "one by one" in err


def test_an_interruption_ends_all(run: Run, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("inlay.cli.commands.encode.encode_video", interrupt)
    code, text, err = run("encode", videos, "--out-dir", tmp_path / "x", *TAU)
    assert code == 130 and not text and err == "inlay: interrupted\n"
