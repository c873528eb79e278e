# SPDX-License-Identifier: Apache-2.0
"""Measuring commands as people run them: odd clips, absent weights, a kill half way, profiles, weights to trust."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from inlay.cli.main import main
from inlay.research.studies.datasets import ORIGINS, ClipSpec, open_data
from tests.conftest import moving_square, still

SMALL = ["--backbone", "mini-untrained", "--side", "32", "--frames", "9", "--device", "cpu"]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of many sizes, lengths, names and forms; some cannot be used."""
    root = tmp_path_factory.mktemp("odd") / "my clips"
    (root / "sub dir").mkdir(parents=True)
    moving_square(12, 50, 91).save(root / "50x91, odd.mp4")
    moving_square(9, 66, 34, seed=1).save(root / "sub dir" / "héllo (1).mkv", lossless=True)
    moving_square(20, 40, 120, seed=2).save(root / "sub dir" / "x@2.avi.mp4")
    still(10, 32, 48, seed=3).save(root / "still.mp4")
    moving_square(5, 32, 32).save(root / "short.mp4")
    np.save(root / "array.npy", moving_square(11, 32, 32, seed=4).frames.numpy())
    np.save(root / "wide.npy", moving_square(11, 32, 40).frames.numpy())
    np.save(root / "floats.npy", np.zeros((9, 32, 32, 3)))
    (root / "broken.mp4").write_bytes(bytes(4000))
    (root / "empty.mkv").touch()
    (root / "notes.txt").write_text("no video")
    return root


USED = {"50x91, odd", "array", "still", "sub dir/héllo (1)", "sub dir/x@2.avi"}
LEFT_OUT = {"short", "wide", "floats", "broken", "empty"}


def run_json(capsys: pytest.CaptureFixture[str], *words: object) -> dict:
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_calibrate_then_encode_then_eval_on_odd_clips(
    odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "mine.json"
    found = run_json(capsys, "calibrate", odd, *SMALL, "--out", profile)
    assert {line.split(":")[0] for line in found["data"]["left_out"]} == LEFT_OUT
    assert set(found["data"]["clips"]) == USED and found["clips"] == 5
    clip = odd / "50x91, odd.mp4"
    words = ["encode", clip, tmp_path / "a.inlay", "--backbone", "mini-untrained", "--device", "cpu"]
    assert main([*map(str, words)]) == 2
    assert "there is no default tau" in capsys.readouterr().err
    encoded = run_json(capsys, *words, "--profile", profile)
    assert encoded["tau"] == pytest.approx(found["tau"], rel=1e-6)
    rules = run_json(capsys, "eval", odd, *SMALL, "--profile", profile, "--rule", "ours,full", "--metrics", "psnr,ssim")
    assert set(rules["rules"]["ours"]["clips"]) == USED
    assert rules["rules"]["ours"]["keep_rate"] < rules["rules"]["full"]["keep_rate"] == 1


def test_a_step_is_calibrated_encoded_shown_and_decoded(
    odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, clip, out = tmp_path / "mine.json", odd / "50x91, odd.mp4", tmp_path / "a.inlay"
    found = run_json(capsys, "calibrate", odd, *SMALL, "--out", profile, "--step", "normal")
    assert len(found["gains"]) == 16 and min(found["gains"]) > 0 and found["step"] == 2.0
    words = ["encode", clip, out, "--backbone", "mini-untrained", "--device", "cpu", "--force"]
    plain = run_json(capsys, *words, "--profile", profile, "--step", "deviation")
    assert (plain["step"], plain["steps"], plain["version"]) == (None, None, "1.0")
    made = run_json(capsys, *words, "--profile", profile)
    assert made["version"] == "1.1" and made["step"] == 2.0 and len(made["steps"]) == 16
    assert [s * g for s, g in zip(made["steps"], found["gains"], strict=True)] == pytest.approx([2.0] * 16, rel=2**-8)
    coarse = run_json(capsys, *words, "--profile", profile, "--step", "8")
    assert coarse["value_bytes"] < made["value_bytes"]
    assert main(["info", str(out)]) == 0
    assert "q8 step 8 (" in capsys.readouterr().out
    assert run_json(capsys, "verify", out)["ok"]
    assert main(["decode", str(out), str(tmp_path / "b.mp4"), "--fill", "hold", "--device", "cpu", "-q"]) == 0
    cached = run_json(capsys, *words, "--profile", profile, "--cache", "--step", "1.5")
    assert (cached["keep_rate"], cached["tau"], cached["precision"], cached["step"]) == (1.0, 0.0, "q8-quick", 1.5)
    own = run_json(capsys, *words, "--profile", profile, "--cache")
    assert own["step"] == found["cache_step"] > 0
    for wrong, said in [
        (["--cache", "--keep", "0.5"], "it goes with no keep (--cache, --keep)"),
        (["--cache", "--precision", "fp16"], "it goes with no precision (--cache, --precision)"),
        (["--step", "fines"], "a step is one of lossless-ish, fine"),
        (["--step", "0"], "(--step)"),
        (["--step", "fine", "--precision", "fp16"], "(--step, --precision)"),
    ]:
        assert main([*map(str, words), "--profile", str(profile), *wrong]) == 2
        assert said in capsys.readouterr().err
    assert main([*map(str, words), "--tau", "0.3", "--step", "fine"]) == 2
    assert "no gains of mini-untrained" in capsys.readouterr().err
    assert main([*map(str, words), "--cache"]) == 2
    assert "has no step for caches; calibrate it again" in capsys.readouterr().err


def test_a_profile_of_other_weights_or_none_is_refused(
    odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "mine.json"
    run_json(capsys, "calibrate", odd, *SMALL, "--limit", "1", "--out", profile)
    raw = json.loads(profile.read_text())
    words = ["encode", str(odd / "still.mp4"), str(tmp_path / "a.inlay"), "--backbone", "mini-untrained"]
    for text, code, said in [
        (json.dumps(raw | {"weight_hash": "0123"}), 2, "with weights 0123, not of mini-untrained"),
        ("{}", 2, "is not a profile"),
        (None, 5, "no profile at"),
    ]:
        profile.unlink() if text is None else profile.write_text(text)
        assert main([*words, "--profile", str(profile)]) == code
        assert said in capsys.readouterr().err
    assert not (tmp_path / "a.inlay").exists()


@pytest.mark.parametrize("command", ["eval", "study main --out run --data-bench", "calibrate"])
def test_pickles_need_trust_and_load_with_it(
    command: str, odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from inlay.backbones.taef2 import Taef2

    monkeypatch.chdir(tmp_path)
    network = Taef2()
    for half in ("encoder", "decoder"):
        torch.save(getattr(network, half).state_dict(), tmp_path / f"taef2_{half}.pth")
    tau = [] if command == "calibrate" else ["--tau", "0.5", "--metrics", "psnr"]
    words = [*command.split(), str(odd), "--backbone", "taef2", "--weights", str(tmp_path), *SMALL[2:], "--limit", "1"]
    words[words.index("--frames") + 1] = "3"
    assert main([*words, *tau]) == 2
    assert re.search(r"is a pickle.*--trust", capsys.readouterr().err)
    assert main([*words, *tau, "--trust", "--quiet"]) == 0


@pytest.mark.parametrize("command", ["eval", "study main --out run --data-bench"])
def test_absent_weights_of_metrics_are_named_and_the_others_reported(
    command: str, odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("inlay.measure.weights.weight_folders", lambda: [tmp_path / "none"])
    words = [*command.split(), str(odd), *SMALL, "--tau", "0.3", "--limit", "2", "--metrics", "psnr,lpips,fvd,kvd"]
    if command == "eval":
        found = run_json(capsys, *words)["rules"]["ours"]
        assert set(found["scores"]) == {"psnr"}
        assert all("inlay fetch metrics" in found["missing"][name] for name in ("lpips", "fvd", "kvd"))
        assert main(words) == 0
        assert "inlay fetch metrics" in capsys.readouterr().out
    else:
        assert main(words) == 0
        table = (tmp_path / "run" / "tables" / "main.md").read_text()
        assert "inlay fetch metrics" in table and re.search(r"\| ours \| [\d.]+ %.*\| - \| - \| - \|", table)
        assert "inlay fetch metrics" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
def test_a_study_killed_by_the_system_and_resumed_gives_the_same_tables(odd: Path, tmp_path: Path) -> None:
    """SIGKILL in the middle, twice; then the same command runs through."""
    words = [sys.executable, "-m", "inlay", "study", "main", "--data-davis", str(odd), *SMALL, "--tau", "0.3"]
    words += ["--metrics", "psnr,ssim", "--quiet", "--out"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    assert subprocess.run([*words, str(whole)], env=environment, timeout=300).returncode == 0
    made = 0
    for _ in range(2):
        child = subprocess.Popen([*words, str(torn)], env=environment)
        end = time.monotonic() + 120
        while child.poll() is None and len(records(torn)) < made + 9 and time.monotonic() < end:
            time.sleep(0.002)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL, "it ended before it could be killed"
        made = len(records(torn))
        assert 0 < made < len(records(whole)) and not (torn / "tables").exists()
    before = {path: path.stat().st_mtime_ns for path in records(torn)}
    assert subprocess.run([*words, str(torn)], env=environment, timeout=300).returncode == 0
    assert (torn / "tables" / "main.md").read_bytes() == (whole / "tables" / "main.md").read_bytes()
    assert all(path.stat().st_mtime_ns == then for path, then in before.items()), "what was done was not done again"
    assert [p.name for p in records(torn)] == [p.name for p in records(whole)]


def test_videos_that_are_all_too_short_name_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moving_square(9, 64, 64).save(tmp_path / "short.mkv", lossless=True)
    assert main(["eval", str(tmp_path), *SMALL, "--tau", "0.3", "--frames", "33"]) == 3
    assert capsys.readouterr().err.rstrip().endswith("short: 9 frames, a clip needs 33 (--frames)")
    (tmp_path / "words.mkv").write_text("no video")
    assert main(["eval", str(tmp_path), *SMALL, "--tau", "0.3", "--frames", "33"]) == 3
    assert "(--frames)" not in capsys.readouterr().err, "that would not mend it"


@pytest.fixture
def torn(tmp_path: Path) -> Path:
    """Two whole videos, and one whose file breaks off though its header promises all frames."""
    place = tmp_path / "torn"
    place.mkdir()
    for i, name in enumerate(("one", "two", "three")):
        moving_square(18, 64, 64, seed=i).save(place / f"{name}.mkv", lossless=True)
    whole = (place / "three.mkv").read_bytes()
    (place / "three.mkv").write_bytes(whole[: len(whole) * 2 // 5])
    return place


def test_a_clip_that_breaks_off_is_left_out_of_all_and_named(
    torn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", str(torn), *SMALL, "--frames", "17", "--tau", "0.3", "--rule", "ours,full", "--metrics", "psnr"]
    assert main([*words, "--json"]) == 0
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert all(set(rule["clips"]) == {"one", "two"} for rule in record["rules"].values())
    assert len(record["data"]["left_out"]) == 1 and record["data"]["left_out"][0].startswith("three: ")
    assert "left out: " in shown.err and "three" in shown.err
    assert main(words) == 0 and "2 clips (folder, all); 1 left out" in capsys.readouterr().out
    assert main(["calibrate", str(torn), *SMALL, "--frames", "17", "--out", str(tmp_path / "p.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["clips"] == 2
    study = ["study", "main", "--data-davis", str(torn), *SMALL, "--frames", "17", "--tau", "0.3", "--metrics", "psnr"]
    assert main([*study, "--out", str(tmp_path / "o")]) == 0
    assert "(2 clips)" in (tmp_path / "o" / "tables" / "main.md").read_text()
    for name in ("one", "two"):
        (torn / f"{name}.mkv").unlink()
    capsys.readouterr()
    assert main(words) == 3
    assert "three" in capsys.readouterr().err


def records(out: Path) -> list[Path]:
    return sorted((out / "records" / "main").glob("[!.]*.json"))


def test_arrays_that_stand_in_for_videos_have_the_videos_names_in_records(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    (tmp_path / "arrays").mkdir()
    video = moving_square(9, 32, 32)
    video.save(tmp_path / "videos" / "davis17_dog.mkv", lossless=True)
    np.save(tmp_path / "arrays" / "davis17_dog.npy", video.frames.numpy())
    spec = ClipSpec(frames=9, size=32)
    stated = {"davis17_dog": (tmp_path / "videos" / "davis17_dog.mkv").stat().st_size}
    there = open_data(tmp_path / "videos", spec=spec)
    (tmp_path / "arrays" / ORIGINS).write_text(json.dumps(stated))
    here = open_data(tmp_path / "arrays", spec=spec)
    assert here.clips[0].identity == there.clips[0].identity and here.digest == there.digest
    assert torch.equal(here.clips[0].load().frames, there.clips[0].load().frames)


HIDE = (  # as sitecustomize, so that it holds in every process
    "import sys\n"
    "for name in 'av typer click constriction rich skimage cv2 diffusers matplotlib scipy huggingface_hub'.split():\n"
    "    sys.modules[name] = None\n"
)


@pytest.mark.slow
def test_studies_run_on_a_bare_machine_and_go_on_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The script for GPU machines without most packages, by two processes; the command finds the records."""
    script = Path(__file__).parents[2] / "benchmarks" / "studies_gpu.py"
    for folder in ("videos", "arrays"):
        (tmp_path / folder).mkdir()
    stated = {}
    for i, name in enumerate(("davis17_dog", "davis17_goat")):
        video = moving_square(18, 32, 32, seed=i, speed=1 + i)
        file = tmp_path / "videos" / f"{name}.mkv"
        video.save(file, lossless=True)
        np.save(tmp_path / "arrays" / f"{name}.npy", video.frames.numpy())
        stated[name] = file.stat().st_size
    (tmp_path / "arrays" / ORIGINS).write_text(json.dumps(stated))
    words = [str(script), "run", "main", "ablation", "cost", "--data-davis", str(tmp_path / "arrays"), "--tau", "0.3"]
    words += ["--out", str(tmp_path / "there"), "--metrics", "psnr", *SMALL, "--pack", str(tmp_path / "p.tgz")]
    words += ["--jobs", "2"]
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(HIDE)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path / "hidden")}
    for more, said in ((["--seconds", "0"], "stopped after"), ([], "done: main, ablation, main-matched, cost")):
        command = [sys.executable, *words, *more]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 and said in done.stdout and "FAILED" not in done.stdout, done.stdout + done.stderr
    here = tmp_path / "here"
    with tarfile.open(tmp_path / "p.tgz") as tar:
        tar.extractall(here, filter="data")
    study = ["study", "all", "--data-davis", str(tmp_path / "videos"), "--tau", "0.3", "--metrics", "psnr", *SMALL]
    torch.set_num_threads(threads := torch.get_num_threads() + 1)  # so that this counts as another machine
    try:
        assert main([*study, "--out", str(here)]) == 0
    finally:
        torch.set_num_threads(threads - 1)
    told = capsys.readouterr().err
    assert "main: davis" not in told and "ablation: davis" not in told
    assert "cost: ours: dog" in told and "flicker: davis" in told
    cost = (here / "tables" / "cost.md").read_text()
    assert cost.count("**Cost on 2 clips of davis: cpu") == 2
    alone = ["study", "main", *study[2:], "--out", str(tmp_path / "alone")]
    assert main(alone) == 0
    rows = [(place / "tables" / "main.md").read_text() for place in (here, tmp_path / "alone")]
    assert len(mine := re.findall(r"^\| ours.*", rows[0], re.M)) == 5
    assert mine == re.findall(r"^\| ours.*", rows[1], re.M), "two processes, or one: the same table"
