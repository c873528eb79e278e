# SPDX-License-Identifier: Apache-2.0
"""Videos to a trainer's cache by any backbone, in the genuine format; and decibels where a decoder is at hand."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from inlay.caches.make import LOCK
from inlay.caches.table import FORMATS, find_format
from inlay.cli.main import main
from inlay.scale.store import open_store
from inlay.tokenizer import Tokenizer
from inlay.video import read_video, write_video
from tests.caches import genuine
from tests.caches.test_trainers import structure
from tests.conftest import moving_square
from tests.contracts.tiny_diffusers import saved

NAMES = ("clip_0", "walks/clip_1")


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """Two videos of 23 and 17 frames, captions for neither, text embeddings for both."""
    for number, (name, frames) in enumerate(zip(NAMES, (23, 17), strict=True)):
        path = tmp_path / "videos" / f"{name}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_video(moving_square(frames, 64, 96, seed=number), path)
        beside = tmp_path / "text" / f"{name}.npy"
        beside.parent.mkdir(parents=True, exist_ok=True)
        np.save(beside, genuine.text(number).numpy())
    return tmp_path / "videos"


@pytest.fixture(scope="module")
def wan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("AutoencoderKLWan", tmp_path_factory.mktemp("models"))


def make(videos: Path, format: str, *words: str) -> Path:
    out = videos.parent / format
    text = ["--text", str(videos.parent / "text")]
    assert main(["cache", "make", str(videos), str(out), "--format", format, "-q", *text, *words]) == 0
    return out


@pytest.mark.parametrize("format", ["musubi-wan", "diffsynth", "simpletuner", "fastvideo"])
def test_wan_caches_are_what_the_trainers_write(format: str, videos: Path, wan: Path) -> None:
    """The same names, keys, shapes and dtypes as the genuine ones; the mean, normalised where it should be."""
    out = make(videos, format, "--backbone", str(wan), "--frames", "17")
    form, files = find_format(out)
    assert form.name == format
    clips = [form.open(path).latents(row) for path in files for row in range(len(form.open(path).facts))]
    tokenizer = Tokenizer.from_pretrained(str(wan), device="cpu")
    for name in NAMES:
        video = read_video(videos / f"{name}.mp4", frames=17)
        with torch.inference_mode():
            mean = tokenizer.backbone.model.encode(tokenizer.pixels([video])).latent_dist.mode()[0]
        config = tokenizer.backbone.model.config
        shift, spread = (torch.tensor(t).view(-1, 1, 1, 1) for t in (config.latents_mean, config.latents_std))
        wanted = mean if format == "fastvideo" else (mean - shift) / spread
        assert any(torch.allclose(z.float(), wanted, atol=0.02, rtol=0.01) for z in clips)
    check = {"musubi-wan": _musubi, "diffsynth": _diffsynth, "simpletuner": _simpletuner, "fastvideo": _fastvideo}
    check[format](out, videos.parent / "genuine")


def _musubi(out: Path, real: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file

    genuine.musubi_wan(real, 1)
    path = out / "clip_0_00000-017_0096x0064_wan.safetensors"
    model = real / "clip_0_00000-017_0096x0064_wan.safetensors"
    assert structure(load_file(path)) == structure(load_file(model))
    with safe_open(path, "pt") as one, safe_open(model, "pt") as other:
        assert one.metadata() == other.metadata()
    assert list(load_file(out / "clip_0_wan_te.safetensors")) == list(load_file(real / "clip_0_wan_te.safetensors"))
    assert (out / "clip_1_00000-017_0096x0064_wan.safetensors").is_file(), "flat, whatever folder the video lies in"


def _diffsynth(out: Path, real: Path) -> None:
    files = genuine.diffsynth(real, 1)
    shared, positive, negative = torch.load(out / "0" / "0.pth")
    model = torch.load(files[0])
    assert structure(shared["input_latents"]) == structure(model[0]["input_latents"])
    assert structure(positive) == structure(model[1]) and negative == {}
    assert torch.equal(positive["context"], model[1]["context"])


def _simpletuner(out: Path, real: Path) -> None:
    genuine.simpletuner(real, 2)
    names = sorted(p.name for p in real.rglob("*.pt"))
    assert sorted(p.name for p in out.rglob("*.pt")) == names
    assert (out / "walks" / next(n for n in names if not (out / n).exists())).is_file()
    assert structure(torch.load(out / names[0] if (out / names[0]).exists() else out / "walks" / names[0])) == (
        [16, 5, 8, 12], "torch.bfloat16",
    )  # fmt: skip


def _fastvideo(out: Path, real: Path) -> None:
    import pyarrow.parquet as pq

    path, model = next(out.glob("*.parquet")), genuine.fastvideo(real, 1)[0]
    assert pq.read_schema(path).names == pq.read_schema(model).names
    assert pq.read_schema(path).types == pq.read_schema(model).types
    row, other = pq.read_table(path).to_pylist()[0], pq.read_table(model).to_pylist()[0]
    assert row["vae_latent_shape"] == other["vae_latent_shape"] and row["num_frames"] == 5
    assert row["text_embedding_bytes"] == other["text_embedding_bytes"]


def test_ltx_caches(videos: Path, tmp_path: Path) -> None:
    """Clips of 1 + 8k frames; latent sizes in the dictionary; conditions under the same name."""
    out = make(videos, "ltx", "--backbone", "mini-untrained")
    read = torch.load(out / ".precomputed/latents/walks/clip_1.pt")
    (real,) = genuine.ltx(tmp_path / "genuine", 1)
    assert list(read) == list(torch.load(real))
    assert list(read["latents"].shape[1:]) == [read["num_frames"], read["height"], read["width"]] == [5, 8, 12]
    text = torch.load(out / ".precomputed/conditions/walks/clip_1.pt")
    assert structure(text) == structure(torch.load(tmp_path / "genuine/.precomputed/conditions/walks/clip_0.pt")) or (
        list(text) == ["video_prompt_embeds", "prompt_attention_mask"] and len(text["prompt_attention_mask"]) == 8
    )


def test_making_goes_on_and_refuses_other_settings(videos: Path, capsys) -> None:
    out = make(videos, "simpletuner", "--backbone", "mini-untrained", "--frames", "9")
    files = sorted(out.rglob("*.pt"))
    kept, lost = files[0].stat().st_mtime_ns, files[1].read_bytes()
    files[1].unlink()
    make(videos, "simpletuner", "--backbone", "mini-untrained", "--frames", "9")
    assert files[0].stat().st_mtime_ns == kept
    assert files[1].read_bytes() == lost
    words = ["cache", "make", str(videos), str(out), "--format", "simpletuner", "--backbone", "mini-untrained"]
    assert main([*words, "--text", str(videos.parent / "text"), "--frames", "17", "-q"]) == 2
    assert "other settings (frames)" in capsys.readouterr().err


@pytest.mark.parametrize("format", ["simpletuner", "musubi-hv15"])
def test_text_that_has_no_place_is_not_asked_for(format: str, videos: Path, capsys) -> None:
    (videos.parent / "text/clip_0.npy").unlink()
    words = ["cache", "make", str(videos), str(videos.parent / "out"), "--format", format, "--frames", "9"]
    assert main([*words, "--backbone", "mini-untrained", "--text", str(videos.parent / "text"), "--json"]) == 0
    told = capsys.readouterr()
    assert "--text is not used" in told.err and json.loads(told.out)["clips"] == 2


@pytest.mark.parametrize("format", ["simpletuner", "fastvideo"])
def test_a_video_that_is_another_by_now_is_made_again(format: str, videos: Path) -> None:
    words = ["--backbone", "mini-untrained", "--frames", "9"]
    out = make(videos, format, *words)
    form, files = find_format(out)
    before = [form.open(path).latents(row) for path in files for row in range(len(form.open(path).facts))]
    shutil.copy(videos / "walks/clip_1.mp4", videos / "clip_0.mp4")
    make(videos, format, *words)
    after = [form.open(path).latents(row) for path in files for row in range(len(form.open(path).facts))]
    assert not before[0].equal(before[1]) and after[0].equal(before[1]) and after[1].equal(before[1])


def test_two_runs_do_not_write_at_once(videos: Path, capsys) -> None:
    words = ["--backbone", "mini-untrained", "--frames", "9", "--text", str(videos.parent / "text")]
    out = make(videos, "simpletuner", *words)
    with open_store(str(out)).locked(LOCK):
        assert main(["cache", "make", str(videos), str(out), "--format", "simpletuner", *words, "-q"]) == 2
    assert "another job is writing" in capsys.readouterr().err
    make(videos, "simpletuner", *words)


@pytest.mark.parametrize("format", ["simpletuner", "fastvideo"])
def test_a_video_that_was_mended_is_made_by_the_next_run(format: str, videos: Path, capsys) -> None:
    """Also where it shares a file with others that are there already."""
    good = (videos / "clip_0.mp4").read_bytes()
    (videos / "clip_0.mp4").write_bytes(good[:300])
    words = ["--backbone", "mini-untrained", "--frames", "9"]
    out = make(videos, format, *words)
    stamps = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.suffix in (".pt", ".parquet")}
    make(videos, format, *words)
    assert stamps == {p: p.stat().st_mtime_ns for p in stamps}, "nothing was made anew"
    (videos / "clip_0.mp4").write_bytes(good)
    make(videos, format, *words)
    form, files = find_format(out)
    assert sum(len(form.open(path).facts) for path in files) == 2
    assert (out / ".inlay/quarantine.jsonl").read_text() == ""


@pytest.mark.parametrize("format", ["musubi-wan", "diffsynth", "simpletuner", "ltx", "fastvideo"])
def test_a_trainers_own_cache_is_not_written_over(format: str, videos: Path, capsys) -> None:
    """Its files may have the very names that would be written: 0/1.pth, data_00000.parquet."""
    out = videos.parent / "own"
    genuine.BUILDERS[format](out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    words = ["cache", "make", str(videos), str(out), "--format", format, "--text", str(videos.parent / "text"), "-q"]
    assert main([*words, "--backbone", "mini-untrained", "--frames", "9"]) == 2
    assert "holds latents that this command did not make" in capsys.readouterr().err
    assert before == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_bad_videos_are_named(videos: Path, capsys) -> None:
    (videos / "half.mp4").write_bytes((videos / "clip_0.mp4").read_bytes()[:300])
    write_video(moving_square(9, 60, 90), videos / "odd.mp4")
    words = ["cache", "make", str(videos), str(videos.parent / "out"), "--format", "musubi-wan"]
    assert main([*words, "--backbone", "mini-untrained", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["clips"] == 2
    reasons = {entry["path"]: entry["reason"] for entry in found["refused"]}
    assert sorted(reasons) == ["half.mp4", "odd.mp4"]
    none = [*words[:2], str(videos), str(videos.parent / "none"), *words[4:], "--backbone", "mini-untrained"]
    assert main([*none, "--size", "40x40"]) == 3 and main([*none, "--size", "48x48", "--frames", "9"]) == 0
    assert "90x60" in reasons["odd.mp4"] and "multiples of 16" in reasons["odd.mp4"]
    assert main([*words[:4], "--format", "diffsynth", "--text", str(videos.parent)]) == 2  # OUT has another format


@pytest.mark.parametrize("format", ["simpletuner", "ltx", "diffsynth"])
def test_two_videos_of_one_name_are_refused(format: str, videos: Path, capsys) -> None:
    """Of two that differ in their suffix alone, the second wrote over the first, or got its text."""
    shutil.copy(videos / "walks/clip_1.mp4", videos / "clip_0.mkv")
    words = ["cache", "make", str(videos), str(videos.parent / "out"), "--format", format, "--frames", "9", "-q"]
    assert main([*words, "--backbone", "mini-untrained", "--text", str(videos.parent / "text")]) == 2
    assert "clip_0.mkv and clip_0.mp4 would both be 'clip_0'" in capsys.readouterr().err


@pytest.mark.parametrize("format", ["simpletuner", "ltx"])
def test_paths_of_a_list_do_not_lead_out_of_the_cache(format: str, videos: Path) -> None:
    listed = videos.parent / "lists/some.txt"
    listed.parent.mkdir()
    listed.write_text(f"{videos}/clip_0.mp4\n../videos/walks/clip_1.mp4\n")
    shutil.copy(videos.parent / "text/walks/clip_1.npy", videos.parent / "text")
    before = set(videos.rglob("*"))
    out = videos.parent / "out"
    words = ["cache", "make", str(listed), str(out), "--format", format, "--frames", "9", "-q"]
    assert main([*words, "--backbone", "mini-untrained", "--text", str(videos.parent / "text")]) == 0
    assert set(videos.rglob("*")) == before
    assert len([p for p in out.rglob("*.pt") if "conditions" not in p.parts]) == 2


def test_a_file_is_no_folder_of_a_cache(videos: Path, capsys) -> None:
    words = ["--format", "simpletuner", "--backbone", "mini-untrained", "-q"]
    assert main(["cache", "make", str(videos), str(videos / "clip_0.mp4"), *words]) == 6
    assert "is a file; give the name of a folder" in capsys.readouterr().err


def test_names_with_an_exclamation_mark_stay_as_they_are(videos: Path, tmp_path: Path) -> None:
    (videos / "clip_0.mp4").rename(videos / "wow!.mp4")
    with tarfile.open(tmp_path / "videos.tar", "w") as tar:
        tar.add(videos / "wow!.mp4", "wow!.mp4")
        tar.add(videos / "wow!.mp4", "../out.mp4")
    words = ["--format", "ltx", "--backbone", "mini-untrained", "--frames", "9", "-q"]
    for source, names in ((videos, ["walks/clip_1", "wow!"]), (tmp_path / "videos.tar", ["out", "videos.tar/wow!"])):
        out = tmp_path / f"{source.name}-cache"
        assert main(["cache", "make", str(source), str(out), *words]) == 0
        base = out / ".precomputed/latents"
        assert sorted(str(p.relative_to(base).with_suffix("")) for p in base.rglob("*.pt")) == names


@pytest.mark.parametrize("format", ["musubi-wan", "ltx"])
def test_a_name_too_long_for_the_format_is_refused_alone(format: str, videos: Path, capsys) -> None:
    shutil.copy(videos / "clip_0.mp4", videos / f"{'n' * 230}.mp4")
    words = ["cache", "make", str(videos), str(videos.parent / "out"), "--format", format, "--frames", "9", "--json"]
    assert main([*words, "--backbone", "mini-untrained"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["clips"] == (2 if format == "musubi-wan" else 3)
    assert all("too long" in entry["reason"] for entry in found["refused"])


def test_sizes_that_musubi_tuner_cannot_stack_are_pointed_out(videos: Path, capsys) -> None:
    """It sorts clips by length and the aspect of the source, and stacks what falls together."""
    write_video(moving_square(23, 128, 192), videos / "large.mp4")
    words = ["cache", "make", str(videos), str(videos.parent / "out"), "--format", "musubi-wan", "--frames", "9"]
    assert main([*words, "--backbone", "mini-untrained", "--json"]) == 0
    found = capsys.readouterr()
    assert "clips of 9 frames have latents of 2 sizes (12x8, 24x16)" in found.err
    assert json.loads(found.out)["note"] in found.err
    words[3] += "2"
    assert main([*words, "--backbone", "mini-untrained", "--size", "96x64", "--json"]) == 0
    assert not capsys.readouterr().err


def test_a_name_of_two_lines_is_found_again(videos: Path) -> None:
    (videos / "clip_0.mp4").rename(videos / "two\nlines \u2028.mp4")
    words = ["--backbone", "mini-untrained", "--frames", "9"]
    out = videos.parent / "out"
    for _ in range(2):
        assert main(["cache", "make", str(videos), str(out), "--format", "musubi-wan", "-q", *words]) == 0
    assert len(FORMATS["musubi-wan"].find(out)) == 2
    assert len((out / ".inlay/made.jsonl").read_text().split("\n")) == 3, "nothing was made anew"


def test_latents_that_the_trainer_would_not_take_are_pointed_out(videos: Path, wan: Path, capsys) -> None:
    """Any backbone may write any cache; who asks for a misfit learns of it before the work begins."""
    words = ["cache", "make", str(videos), str(videos.parent / "out"), "--frames", "9", "--json", "--backbone"]
    assert main([*words, str(wan), "--format", "ltx"]) == 0
    found = capsys.readouterr()
    assert "have 16 channels, and this trainer's models take others (ltx 128)" in found.err
    assert json.loads(found.out)["note"] in found.err
    words[3] += "2"
    assert main([*words, str(wan), "--format", "musubi-wan"]) == 0
    found = capsys.readouterr()
    assert not found.err and json.loads(found.out)["note"] is None


def test_videos_without_text_are_refused_where_text_is_needed(videos: Path, capsys) -> None:
    (videos.parent / "text/clip_0.npy").unlink()
    words = ["cache", "make", str(videos), str(videos.parent / "out"), "--format", "diffsynth", "--json"]
    assert main([*words, "--backbone", "mini-untrained", "--text", str(videos.parent / "text")]) == 0
    (refused,) = json.loads(capsys.readouterr().out)["refused"]
    assert refused["path"] == "clip_0.mp4" and "has no text embedding" in refused["reason"]


@pytest.mark.parametrize("format", ["musubi-wan", "fastvideo"])
def test_decibels_where_a_decoder_is_at_hand(format: str, videos: Path, wan: Path, capsys) -> None:
    """Latents that come back nearly as they were decode to nearly the same pixels, raw or normalised."""
    out = make(videos, format, "--backbone", str(wan), "--frames", "17")
    found = {}
    for tau in ("0", "2"):
        words = ["cache", "pack", str(out), str(videos.parent / f"packed{tau}"), "--tau", tau, "--verify", "--json"]
        assert main([*words, "--precision", "fp32", "--backbone", str(wan), "--device", "cpu"]) == 0
        found[tau] = json.loads(capsys.readouterr().out)["verified"]
    assert found["0"]["clips_decoded"] == 2
    assert found["0"]["relative_error"] == 0 and found["0"]["decoded_psnr"] == 100
    assert found["2"]["relative_error"] > 0 and found["2"]["decoded_psnr"] < 100
    place = str(videos.parent / "packed2")
    assert main(["cache", "verify", place, "--backbone", str(wan)]) == 2
    assert "--against" in capsys.readouterr().err
    assert main(["cache", "verify", place, "--against", str(out), "--backbone", "mini"]) == 2
    assert "decodes 48 channels, the cache has 16" in capsys.readouterr().err


def test_every_format_can_be_written_and_read(tmp_path: Path) -> None:
    from inlay.caches.base import MODELS, NewClip

    for name, form in FORMATS.items():
        channels = MODELS[form.models[0]].channels
        z = genuine.latents(0, channels)
        clip = NewClip(
            name="a", z_CTHW=z, raw_CTHW=2 * z, width=96, height=64, frames=17, fps=16.0, text=genuine.text(0)
        )
        path = form.write(tmp_path / name if (tmp_path / name).mkdir() is None else tmp_path, 0, [clip])
        found, files = find_format(tmp_path / name)
        assert (found.name, files) == (name, [path])
        opened = form.open(path)
        assert opened.facts[0].dtype == form.dtype and form.model(channels) == form.models[0]
        assert torch.allclose(opened.latents(0).float(), z if form.normalised else 2 * z, atol=0.05)
