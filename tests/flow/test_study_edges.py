# SPDX-License-Identifier: Apache-2.0
"""Studies and evaluations at their edges: short videos, names given twice, damaged files, metrics without a value."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from inlay.cli.main import main
from inlay.errors import ConfigError, UsageError, VideoError
from inlay.measure import MeasureConfig
from inlay.research.studies.catalogue import read_sections, run_study, write_page
from inlay.research.studies.datasets import ClipSpec, open_data
from inlay.research.studies.evaluate import Bench
from inlay.research.studies.records import Reading, Record, Store
from inlay.research.studies.sections import missing_notes
from inlay.research.studies.workspace import Workspace
from inlay.tokenizer import Tokenizer
from tests.conftest import moving_square

MODEL = ("--backbone", "mini-untrained", "--device", "cpu", "--tau", "0.3", "--frames", "5", "--side", "32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three arrays of twelve frames."""
    place = tmp_path_factory.mktemp("davis")
    for i, name in enumerate(("dog", "goat", "bear")):
        np.save(place / f"davis17_{name}.npy", moving_square(12, 32, 32, seed=i, speed=1 + i).frames.numpy())
    return place


def workspace(tiny_mini, folder: Path, out: Path, frames: int = 5, metrics: tuple[str, ...] = ("psnr",)) -> Workspace:
    data = open_data(folder, name="davis", spec=ClipSpec(frames=frames, size=32))
    bench = Bench(Tokenizer(tiny_mini), tau=0.3, measure=MeasureConfig())
    return Workspace(bench=bench, store=Store(out), data={"davis": data}, metrics=metrics)


def evaluated(capsys: pytest.CaptureFixture[str], *words: object) -> dict:
    assert main([str(w) for w in ("eval", *MODEL, *words, "--json", "--quiet")]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_rule_named_twice_counts_its_clips_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once, twice = (
        evaluated(capsys, folder, "--rule", rules, "--metrics", metrics)["rules"]
        for rules, metrics in (("hold", "psnr"), ("hold,hold", "psnr,psnr"))
    )
    assert once == twice and once["hold"]["scores"]["psnr"]["videos"] == 3


def test_tokens_and_bits_stand_beside_the_keep_rate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, stored = (
        evaluated(capsys, folder, "--rule", "full", "--metrics", "psnr", "--precision", p)["rules"]["full"]
        for p in ("none", "fp16")
    )
    cells = 2 * 4 * 4  # two slots of a grid of 4x4, 16 channels of 16 bits, and a bit of mask each
    assert plain["clips"]["dog"]["tokens"] == cells
    assert plain["bits_per_pixel"] == pytest.approx(cells * (16 * 16 + 1) / (5 * 32 * 32))
    assert stored["bits_per_pixel"] != plain["bits_per_pixel"]


def test_a_distance_of_sets_says_why_one_clip_has_none() -> None:
    reading = Reading(values={"psnr": 30.0}, features="AAAA", unavailable={"vmaf": "gone"})
    record = Record(study="eval", data="davis", clip="dog", setting={}, model={}, key="", reading=reading)
    assert missing_notes([record], ["psnr"]) == [], "of what was not asked for, nothing is said"
    assert missing_notes([record], ["psnr", "fvd"]) == [
        "fvd has no value on davis: it compares sets of at least 2 clips, and 1 has a reading."
    ]


def test_videos_that_a_list_names_in_vain_are_counted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "some.txt").write_text(f"{folder}/davis17_dog.npy\ngone.mp4\n")
    words = ("eval", tmp_path / "some.txt", *MODEL, "--rule", "full", "--metrics", "psnr")
    assert main([str(w) for w in words]) == 0
    assert "1 clip (list, all); 1 named but not there" in capsys.readouterr().out


def test_a_name_that_is_no_text_or_very_long_does_not_stop_a_report(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = (folder / "davis17_dog.npy").read_bytes()
    deep = tmp_path / "data" / ("d" * 150) / ("e" * 150)
    deep.mkdir(parents=True)
    (deep / "clip.npy").write_bytes(clip)
    try:
        (tmp_path / "data" / os.fsdecode(b"\xff.npy")).write_bytes(clip)
    except OSError:
        pytest.skip("this disk takes no names that are not UTF-8")
    page = tmp_path / "page.html"
    found = evaluated(
        capsys, tmp_path / "data", "--rule", "full", "--metrics", "psnr", "--out", tmp_path / "out", "--report", page
    )
    assert "\\udcff" in found["rules"]["full"]["clips"] and "\\udcff" in page.read_text()


def test_results_that_lie_among_the_videos_are_not_taken_for_videos(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dog.npy").write_bytes((folder / "davis17_dog.npy").read_bytes())
    words = (tmp_path, "--frames", 1, "--rule", "full", "--metrics", "psnr", "--out", tmp_path / "out")
    evaluated(capsys, *words, "--report", tmp_path / "page.html")
    assert list((tmp_path / "out" / "films").iterdir())
    assert evaluated(capsys, *words)["data"]["clips"] == ["dog"]


def test_streaming_takes_chunks_that_the_backbone_takes(tiny_mini, folder: Path, tmp_path: Path) -> None:
    section = run_study(workspace(tiny_mini, folder, tmp_path, frames=6), "streaming")
    assert "Videos of 10 frames, encoded in chunks of 5" in section.text[0]
    section = run_study(workspace(tiny_mini, folder, tmp_path, frames=12), "streaming")
    assert "Videos of 10 frames, encoded in chunks of 5" in section.text[0], "no video has two chunks of 9 frames"
    np.save(tmp_path / "short.npy", moving_square(9, 32, 32).frames.numpy())
    with pytest.raises(VideoError, match="streaming takes videos of 10 frames at least, and none of 1 is"):
        run_study(workspace(tiny_mini, tmp_path, tmp_path, frames=9), "streaming")


@pytest.mark.parametrize("study", ["streaming", "sweep", "fill-sweep"])
def test_a_metric_without_weights_is_named_though_the_records_are_older(
    study: str, tiny_mini, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_study(workspace(tiny_mini, folder, tmp_path), study)
    monkeypatch.setattr("inlay.measure.weights.weight_folders", lambda: [tmp_path / "none"])
    section = run_study(workspace(tiny_mini, folder, tmp_path, metrics=("psnr", "lpips")), study)
    assert "lpips was not measured" in " ".join(section.text) and "inlay fetch metrics" in " ".join(section.text)


def test_flicker_says_its_own_conventions(tiny_mini, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    section = run_study(workspace(tiny_mini, folder, tmp_path), "flicker")
    assert any(line.startswith("flicker-static: ") for line in section.setup["conventions"])


def test_a_damaged_section_or_profile_is_made_again(tiny_mini, folder: Path, tmp_path: Path) -> None:
    before = run_study(workspace(tiny_mini, folder, tmp_path), "backbones")
    (profile,) = (tmp_path / "records" / "backbones").iterdir()
    profile.write_text('{"no": "profile"}')
    (tmp_path / "sections" / "main.json").write_text('{"name": "main"}')
    with pytest.raises(UsageError, match=r"main\.json: is damaged; run inlay study main again"):
        write_page(Store(tmp_path), tmp_path / "page.md")
    after = run_study(workspace(tiny_mini, folder, tmp_path), "backbones")
    assert after.tables == before.tables and [s.name for s in read_sections(Store(tmp_path))] == ["backbones"]


def test_a_page_that_somebody_else_wrote_is_left_alone(tiny_mini, folder: Path, tmp_path: Path) -> None:
    run_study(workspace(tiny_mini, folder, tmp_path), "backbones")
    page = tmp_path / "page.md"
    page.write_text("my own notes")
    with pytest.raises(UsageError, match="is no page of results; give another name"):
        write_page(Store(tmp_path), page)
    with pytest.raises(UsageError, match="is no page of results"):
        write_page(Store(tmp_path), tmp_path)
    assert page.read_text() == "my own notes"
    page.unlink()
    for _ in range(2):  # its own is written anew
        assert "# Results" in write_page(Store(tmp_path), page).read_text()


def test_a_threshold_that_is_none_is_refused_before_a_clip_is_read(tiny_mini) -> None:
    for tau in (-1.0, float("nan")):
        with pytest.raises(ConfigError, match="tau is a distance"):
            Bench(Tokenizer(tiny_mini), tau=tau)
