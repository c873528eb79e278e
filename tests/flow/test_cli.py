# SPDX-License-Identifier: Apache-2.0
"""The command line from file to file: what commands print and leave behind, each failure's code and message."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import inlay
from inlay.cli.main import main
from inlay.video import open_video, read_video, write_video
from tests.conftest import moving_square

MODEL = ["--backbone", "mini-untrained", "--device", "cpu"]
INFO_KEYS = {
    "frames", "width", "height", "fps", "backbone", "tau", "cells", "tokens", "keep_rate", "bytes", "bits_per_pixel",
    "chunks", "precision",
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a clip of odd size that spans two chunks, and its token file."""
    folder = tmp_path_factory.mktemp("made")
    write_video(moving_square(37, 41, 51), folder / "clip.mp4")
    write_video(moving_square(5, 41, 51), folder / "short.mp4")
    for name in ("clip.mp4", "short.mp4"):
        assert main(["encode", str(folder / name), "--tau", "0.05", "--quiet", *MODEL]) == 0
    return folder


@pytest.fixture
def clip(made: Path) -> str:
    return str(made / "clip.mp4")


@pytest.fixture
def tokens(made: Path) -> str:
    return str(made / "clip.inlay")


def listing(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


# --- what works -------------------------------------------------------------------------------------------------------


def test_a_folder_of_own_weights_brings_its_backbone_and_its_lit(made: Path, run: Callable, tmp_path: Path) -> None:
    from dataclasses import asdict

    from inlay.backbones import Mini, load_mini, tiny
    from inlay.fill import Lit, LitConfig, save_lit
    from inlay.weightfile import save_weights

    torch.manual_seed(0)
    save_weights(tmp_path / "mini.safetensors", Mini(tiny()).state_dict(), {"config": asdict(tiny())})
    own = load_mini(tmp_path).spec.weight_hash
    lit = Lit.build(LitConfig(width=32, heads=2, blocks=1))
    torch.nn.init.constant_(lit.out_proj.bias, 0.5)  # not hold, which an untrained one would be
    save_lit(tmp_path / "mini.lit.safetensors", lit, {"backbone_hash": own})
    out = tmp_path / "own.inlay"
    words = ["--weights", tmp_path, "--device", "cpu"]
    code, printed, _ = run("encode", made / "clip.mp4", out, "--tau", "0.05", "--json", *words)
    assert code == 0 and inlay.open(out).recipe.weight_hash == own, printed
    films = {}
    for fill in ("lit", "hold"):
        assert run("decode", out, tmp_path / f"{fill}.mkv", "--lossless", "--fill", fill, "--quiet", *words)[0] == 0
        films[fill] = read_video(tmp_path / f"{fill}.mkv").frames
    assert not torch.equal(films["lit"], films["hold"]), "the folder's own LIT was used"
    code, _, said = run("decode", out, tmp_path / "no.mkv")
    assert code == 5 and own in said, said


def test_encode_prints_one_json_object_and_leaves_one_file(run, clip: str, tmp_path: Path) -> None:
    out = tmp_path / "a.inlay"
    code, text, err = run("encode", clip, out, "--tau", 0.05, "--json", *MODEL)
    record = json.loads(text)
    assert (code, err) == (0, "")
    assert record.keys() >= INFO_KEYS | {"elapsed_seconds", "input"}
    assert (record["frames"], record["width"], record["height"], record["chunks"]) == (37, 51, 41, 2)
    assert record["bytes"] == out.stat().st_size
    assert record["bits_per_pixel"] == pytest.approx(8 * record["bytes"] / (37 * 51 * 41))
    assert record["keep_rate"] == pytest.approx(record["tokens"] / record["cells"])
    assert listing(tmp_path) == {"a.inlay"}


def test_info_tells_what_encode_told(run, tokens: str) -> None:
    code, text, _ = run("info", tokens, "--json")
    record = json.loads(text)
    assert code == 0
    assert record.keys() >= INFO_KEYS
    assert (record["backbone"], record["tau"], record["precision"], record["fps"]) == ("mini-untrained", 0.05, "q8", 24)
    code, text, _ = run("info", tokens)
    assert code == 0
    assert f"{record['tokens']:,} tokens" in text


@pytest.mark.parametrize("fill", ["hold", "linear"])
def test_decode_gives_size_length_and_rate_back(run, tokens: str, tmp_path: Path, fill: str) -> None:
    out = tmp_path / "b.mp4"
    code, text, err = run("decode", tokens, out, "--fill", fill, "--json", "--device", "cpu")
    assert (code, err) == (0, "")
    assert json.loads(text)["fill"] == fill
    with open_video(out) as reader:
        assert (reader.width, reader.height, float(reader.fps)) == (51, 41, 24)
        assert sum(map(len, reader.chunks())) == 37
    assert listing(tmp_path) == {"b.mp4"}


def test_default_names_stand_beside_the_input(run, made: Path, tmp_path: Path) -> None:
    copy = tmp_path / "clip.mp4"
    copy.write_bytes((made / "short.mp4").read_bytes())
    assert run("encode", copy, "--tau", 0.05, *MODEL)[0] == 0
    assert run("decode", tmp_path / "clip.inlay")[0] == 0
    assert run("view", copy, "--tau", 0.05, *MODEL)[0] == 0
    assert listing(tmp_path) == {"clip.mp4", "clip.inlay", "clip.decoded.mp4", "clip.view.mp4"}


def test_lossless_decode_equals_the_library(run, tokens: str, tmp_path: Path) -> None:
    from inlay.tokenizer import Tokenizer

    assert run("decode", tokens, tmp_path / "x.mp4", "--lossless", "--fill", "hold", "--device", "cpu")[0] == 0
    direct = Tokenizer.from_pretrained("mini-untrained", device="cpu").decode(inlay.open(tokens), fill="hold")
    assert read_video(tmp_path / "x.mp4").frames.equal(direct.frames)


def test_verify_passes_good_files_and_names_bad_ones(run, tokens: str, tmp_path: Path) -> None:
    assert run("verify", tokens)[:2] == (0, f"{tokens}  ok\n")
    assert json.loads(run("verify", tokens, "--json")[1]) == {"file": tokens, "ok": True, "problems": []}
    data = bytearray(Path(tokens).read_bytes())
    data[len(data) // 2] ^= 4
    bad = tmp_path / "bad.inlay"
    bad.write_bytes(data)
    code, text, _ = run("verify", tokens, bad, tmp_path / "none.inlay", "--json")
    records = [json.loads(line) for line in text.splitlines()]
    assert code == 4
    assert [record["ok"] for record in records] == [True, False, False]
    assert records[2]["problems"] == ["no such file"]


def test_compare_measures_and_knows_itself(run, clip: str) -> None:
    code, text, err = run("compare", clip, clip, "--json")
    record = json.loads(text)
    assert (code, err) == (0, "")
    assert record["psnr"] == 100
    assert record["ssim"] == pytest.approx(1)


def test_view_film_has_three_panels_and_a_curve(run, made: Path, tmp_path: Path) -> None:
    film, curve = tmp_path / "film.mp4", tmp_path / "curve.png"
    code, text, _ = run("view", made / "short.mp4", film, "--curve", curve, "--tau", 0.05, "--json", *MODEL)
    assert code == 0
    assert 0 < json.loads(text)["keep_rate"] <= 1
    video = read_video(film)
    assert len(video) == 5
    assert video.width > 2 * video.height  # three panels of 51x41 side by side, the curve beneath
    assert curve.read_bytes().startswith(b"\x89PNG")
    assert listing(tmp_path) == {"film.mp4", "curve.png"}


def test_view_writes_animations_and_a_sheet_by_suffix(run, made: Path, tmp_path: Path) -> None:
    clip = made / "short.mp4"
    assert run("view", clip, tmp_path / "film.webp", "--tau", 0.05, *MODEL)[0] == 0
    head = (tmp_path / "film.webp").read_bytes()[:64]
    assert head[:4] == b"RIFF" and head[8:12] == b"WEBP" and b"ANIM" in head
    assert run("view", clip, tmp_path / "film.avif", "--tau", 0.05, *MODEL)[0] == 0
    assert (tmp_path / "film.avif").read_bytes()[4:12] == b"ftypavis"
    words = ("--tau", 0.02, "--tau", 0.5, "--tau", 0.1, "--json", *MODEL)
    code, text, _ = run("view", clip, tmp_path / "sheet.png", *words)
    rates = json.loads(text)["sheet_keep_rates"]
    assert (
        code == 0
        and list(rates) == ["0.02", "0.1", "0.5"]
        and sorted(rates.values(), reverse=True) == [*rates.values()]
    )
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")
    assert run("view", clip, tmp_path / "both.mp4", "--sheet", tmp_path / "both.png", "--tau", 0.1, *MODEL)[0] == 0
    assert listing(tmp_path) == {"film.webp", "film.avif", "sheet.png", "both.mp4", "both.png"}


def test_view_of_tokens_has_two_panels_and_three_with_the_original(run, made: Path, tmp_path: Path) -> None:
    tokens, clip = made / "short.inlay", made / "short.mp4"
    assert run("view", tokens, tmp_path / "two.mp4")[0] == 0
    assert run("view", tokens, tmp_path / "three.mp4", "--original", clip)[0] == 0
    two, three = read_video(tmp_path / "two.mp4"), read_video(tmp_path / "three.mp4")
    assert len(two) == len(three) == 5
    assert 1.4 < three.width / two.width < 1.6


def test_doctor_names_versions_device_and_weights(run) -> None:
    code, text, err = run("doctor", "--json")
    record = json.loads(text)
    assert (code, err) == (0, "")
    assert record["packages"]["torch"]
    assert {"measure", "scale", "train"} <= record["extras"].keys()
    assert record["device"]["default"] in {"cpu", "cuda", "mps"}
    assert "weights" in run("doctor")[1]


def test_demo_makes_its_five_files_and_a_table(run, clip: str, tmp_path: Path) -> None:
    words = ["demo", "--video", clip, "--out", tmp_path / "demo", "--size", "keep", "--frames", 5, "--tau", 0.05]
    code, text, _ = run(*words, *MODEL, "--json")
    record = json.loads(text)
    assert code == 0
    assert listing(tmp_path / "demo") == {
        "clip.mp4", "clip.inlay", "clip.decoded.mp4", "side-by-side.mp4", "curve.png"
    }  # fmt: skip
    assert record["frames"] == 5
    assert {"psnr", "ssim", "keep_rate", "bits_per_pixel"} <= record.keys()
    assert {"encode", "decode", "film"} <= record["stage_seconds"].keys()
    assert run(*words, *MODEL)[0] == 2  # a second time without --force
    code, text, _ = run(*words, *MODEL, "--force")
    assert code == 0
    assert "PSNR" in text


def test_the_clip_made_by_code_can_be_cut_short_too(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inlay.video.synthetic.demo_clip", lambda: moving_square(9, 32, 32))
    code, text, _ = run("demo", "--out", tmp_path / "demo", "--frames", 5, "--tau", 0.05, *MODEL, "--json")
    assert code == 0 and json.loads(text)["frames"] == 5


def test_the_clip_made_by_code_has_the_size_that_was_asked_for(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inlay.video.synthetic.demo_clip", lambda: moving_square(5, 32, 32))
    code, text, _ = run("demo", "--out", tmp_path / "demo", "--size", "24x16", "--tau", 0.05, *MODEL, "--json")
    record = json.loads(text)
    assert code == 0 and (record["width"], record["height"], record["fps"]) == (24, 16, 24)


# --- what is refused: code, one line on stderr, nothing left behind ---------------------------------------------------

REFUSED = [
    (["encode", "none.mp4"], 3, "no such file"),
    (["encode", "."], 2, "inlay tokenize . OUT (--out-dir)"),
    (["encode", "text.mp4", "out.inlay"], 3, "text.mp4"),
    (["encode", "empty.mp4", "out.inlay"], 3, "is empty (0 bytes); give a video"),
    (["encode", "clip.inlay", "out.inlay"], 3, "is a token file; make a video of it first with: inlay decode"),
    (["encode", "clip.mp4", "no/such/out.inlay"], 6, "does not exist"),
    (["encode", "clip.mp4", "-"], 2, "cannot be a stream"),
    (["encode", "-"], 2, "needs the name of an output"),
    (["encode", "clip.mp4", "clip.mp4", "--force"], 2, "also the input"),
    (["encode", "clip.mp4", "out.inlay", "--criterion", "latent-l3"], 2, "did you mean 'latent-l"),
    (["encode", "clip.mp4", "out.inlay", "--reference", "first"], 2, "last-kept"),
    (["encode", "clip.mp4", "out.inlay", "--precision", "fp8"], 2, "choices: fp32"),
    (["encode", "clip.mp4", "out.inlay", "--fill", "magic"], 2, "choices: hold"),
    (["encode", "clip.mp4", "out.inlay", "--dtype", "float8"], 2, "choices: float32"),
    (["encode", "clip.mp4", "out.inlay", "--device", "abacus"], 2, "abacus"),
    (["encode", "clip.mp4", "out.inlay", "--size", "huge"], 2, "huge"),
    (["encode", "clip.mp4", "out.inlay", "--tau", "-1"], 2, "tau"),
    (["encode", "clip.mp4", "out.inlay", "--tau", "nan"], 2, "tau"),
    (["encode", "clip.mp4", "out.inlay", "--tau", "much"], 2, "--tau"),
    (["encode", "clip.mp4", "out.inlay", "--backbone", "minni"], 2, "did you mean 'mini'"),
    (["encode", "clip.mp4", "out.inlay", "--weights", "none.safetensors"], 5, "no weights at"),
    (
        ["encode", "clip.mp4", "out.inlay", "--tau", "1", "--backbone", "mini-untrained", "--fill", "lit"],
        5,
        "no weights",
    ),
    (["encode", "clip.mp4", "out.inlay", "--backbone", "mini-untrained"], 2, "--tau"),
    (["encode", "clip.mp4", "out.inlay", "--wrong"], 2, "--wrong"),
    (["encode"], 2, "VIDEO"),
    (["decode", "none.inlay"], 4, "no such file"),
    (["decode", "-", "out.mp4"], 2, "not read from standard input"),
    (["decode", "clip.mp4", "out.mp4"], 4, "clip.mp4"),
    (["decode", "text.mp4", "out.mp4"], 4, "text.mp4"),
    (["decode", "cut.inlay", "out.mp4"], 4, "--keep-going"),
    (["decode", "clip.inlay", "out.txt"], 2, ".txt"),
    (["decode", "clip.inlay", "out.mp4", "--crf", "77"], 2, "77"),
    (["decode", "clip.inlay", "out.mp4", "--fill", "lit"], 5, "no weights"),
    (["info", "none.inlay"], 4, "no such file"),
    (["info", "clip.mp4"], 4, "clip.mp4"),
    (["compare", "clip.mp4", "none.mp4"], 3, "no such file"),
    (["compare", "clip.mp4", "clip.mp4", "--metrics", "psnr,beauty"], 2, "beauty"),
    (["compare", "clip.mp4", "clip.mp4", "--metrics", "fvd"], 2, "sets of videos"),
    (["compare", "clip.mp4", "clip.mp4", "--metrics", ","], 2, "empty"),
    (["compare", "clip.mp4", "other.mp4"], 2, "size"),
    (["view", "clip.mp4", "out.mp4", "--curve", "out.jpg"], 2, ".png"),
    (["view", "clip.mp4", "out.mp4", "--original", "clip.mp4"], 2, "its own original"),
    (["view", "none.inlay"], 4, "no such file"),
    (["view", "clip.mp4", "out.mp4", "--tau", "1", "--tau", "2"], 2, "a film has one tau"),
    (["view", "clip.mp4", "out.mp4", "--sheet", "out.jpg"], 2, ".png"),
    (["view", "clip.mp4", "out.gif"], 2, "ends in .mp4, .m4v, .mov, .mkv, .avif, .webp, .png; got '.gif'"),
    (["view", "clip.mp4", "out.png", "--sheet", "two.png"], 2, "without a film"),
    (["view", "clip.mp4", "out.png", "--tau", "1", "--tau", "-2"], 2, "-2"),
    (["view", "clip.inlay", "out.png"], 2, "one mask"),
    (["demo", "--video", "none.mp4", "--out", "d"], 3, "no such file"),
    (["fetch", "everything"], 2, "unknown weights"),
    (["fetch", "metrics", "--folder", "nowhere"], 5, "no such folder"),
    (["verify"], 2, "TOKENS"),
    (["endcode"], 2, "endcode"),
]


@pytest.fixture(scope="module")
def bench(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good and bad inputs in one folder."""
    folder = tmp_path_factory.mktemp("bench")
    for name in ("clip.mp4", "clip.inlay"):
        (folder / name).write_bytes((made / name).read_bytes())
    whole = (made / "clip.inlay").read_bytes()
    (folder / "cut.inlay").write_bytes(whole[:-300])  # into the last chunk
    (folder / "text.mp4").write_text("not a video at all\n" * 40)
    (folder / "empty.mp4").write_bytes(b"")
    write_video(moving_square(3, 32, 32), folder / "other.mp4")
    return folder


@pytest.mark.parametrize(("words", "code", "says"), REFUSED, ids=[" ".join(w) for w, _, _ in REFUSED])
def test_refusals(run, bench: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int, says: str) -> None:
    monkeypatch.chdir(bench)
    before = listing(bench)
    got, out, err = run(*words)
    assert got == code, err
    assert out == ""
    assert err.startswith("inlay: ")
    assert err.count("\n") == 1, "an error is one line"
    assert says in err
    assert listing(bench) == before


def test_nothing_is_overwritten_without_force(run, bench: Path, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("out.inlay", "out.mp4", "out.png"):
        Path(name).write_text("mine")
    clip, tokens = bench / "clip.mp4", bench / "clip.inlay"
    for words in (["encode", clip, "out.inlay"], ["decode", tokens, "out.mp4"], ["view", clip, "out.mp4"],
                  ["view", clip, "new.mp4", "--curve", "out.png"]):  # fmt: skip
        code, _, err = run(*words)
        assert code == 2
        assert "--force" in err
    assert {p.read_text() for p in tmp_path.iterdir()} == {"mine"}
    assert run("encode", clip, "out.inlay", "--tau", 0.05, "--force", *MODEL)[0] == 0
    assert run("info", "out.inlay")[0] == 0


def test_a_cut_file_gives_its_intact_part(run, bench: Path, tmp_path: Path) -> None:
    code, out, err = run("decode", bench / "cut.inlay", tmp_path / "part.mp4", "--keep-going", "--json")
    assert code == 0, err
    assert json.loads(out)["problems"]
    assert len(read_video(tmp_path / "part.mp4")) == 33


def test_paths_are_checked_before_anything_is_loaded(run, clip: str, tmp_path: Path) -> None:
    (tmp_path / "x.inlay").write_text("mine")
    code, _, err = run("encode", clip, tmp_path / "x.inlay", "--backbone", "no-such-backbone")
    assert code == 2
    assert "--force" in err


def test_missing_weights_are_code_5(run, clip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inlay.backbones.mini.WEIGHTS", tmp_path)
    code, _, err = run("encode", clip, tmp_path / "x.inlay", "--tau", 0.3)
    assert code == 5
    assert "no weights at" in err


def test_missing_extra_is_code_5(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, _, err = run(
        "export", tmp_path, "--size", "16x16", "--frames", 1, "--parts", "mask", "--backbone", "mini-untrained"
    )
    assert code == 5
    assert "pip install 'onnx>=" in err and "# the extra export" in err
    assert listing(tmp_path) == set()


# --- trouble from outside ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [KeyboardInterrupt, RuntimeError])
def test_trouble_half_way_leaves_a_sound_part(run, clip: str, tmp_path: Path, monkeypatch, trouble) -> None:
    from inlay.codec import Parts

    calls = []

    def second_chunk_fails(self, tokens):
        calls.append(1)
        if len(calls) > 1:
            raise trouble("half way\nand more")

    monkeypatch.setattr(Parts, "saw_tokens", second_chunk_fails)
    code, _, err = run("encode", clip, tmp_path / "x.inlay", "--tau", 0.05, *MODEL)
    note, message = err.splitlines()
    assert "--resume" in note
    if trouble is KeyboardInterrupt:
        assert (code, message) == (130, "inlay: interrupted")
    else:
        assert code == 1
        assert "--debug" in message
    assert listing(tmp_path) == {"x.inlay.part", "x.inlay.part.source"}
    assert run("verify", tmp_path / "x.inlay.part")[0] == 0


def test_debug_shows_the_traceback_at_any_place(run, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["--debug", "info", "none.inlay"], ["info", "none.inlay", "--debug"]):
        code, _, err = run(*words)
        assert code == 4
        assert "Traceback" in err
        assert err.splitlines()[-1].startswith("inlay: ")
    assert "Traceback" not in run("info", "none.inlay")[2]
    monkeypatch.setenv("INLAY_DEBUG", "1")
    assert "Traceback" in run("info", "none.inlay")[2]


INLAY = [sys.executable, "-m", "inlay"]
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}


def test_a_pipe_in_and_a_pipe_out(clip: str, tokens: str, tmp_path: Path) -> None:
    out = tmp_path / "piped.inlay"
    with open(clip, "rb") as stdin:  # noqa: PTH123 (a handle for the child)
        words = [*INLAY, "encode", "-", str(out), "--tau", "0.05", "--json", *MODEL]
        done = subprocess.run(words, stdin=stdin, capture_output=True, env=ONE_THREAD)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    assert json.loads(done.stdout)["frames"] == 37
    words = [*INLAY, "decode", tokens, "-", "--fill", "hold"]
    done = subprocess.run(words, capture_output=True, env=ONE_THREAD)
    assert done.returncode == 0, done.stderr.decode()
    (tmp_path / "piped.mp4").write_bytes(done.stdout)
    assert len(read_video(tmp_path / "piped.mp4")) == 37


def test_a_pipe_whose_rate_turns_out_to_vary(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = torch.cat([torch.arange(34), 33 + torch.tensor([2.0, 5.0, 6.5])]).double() / 24  # even for one chunk
    write_video(replace(moving_square(37, 16, 16), seconds=seconds), tmp_path / "vary.mkv")
    receive, send = os.pipe()

    def feed() -> None:
        with os.fdopen(send, "wb") as pipe:
            pipe.write((tmp_path / "vary.mkv").read_bytes())

    feeder = threading.Thread(target=feed)
    feeder.start()
    with os.fdopen(receive, "rb") as pipe:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=pipe, isatty=lambda: False))
        code, _, err = run("encode", "-", tmp_path / "x.inlay", "--tau", 0.05, *MODEL)
    feeder.join()
    assert code == 0, err
    got = inlay.open(tmp_path / "x.inlay").seconds
    assert got is not None
    assert torch.allclose(got, seconds, atol=2e-3)


def test_a_reader_that_leaves_is_no_traceback() -> None:
    child = subprocess.Popen([*INLAY, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ONE_THREAD)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    error = child.stderr.read()
    child.stderr.close()
    assert child.wait() in (0, 141)
    assert b"Traceback" not in error and b"BrokenPipe" not in error
