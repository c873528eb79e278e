# SPDX-License-Identifier: Apache-2.0
"""The study of bits: token files and codecs' streams on the same frames, resumed, and with parts of it missing."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from inlay.cli.main import main
from inlay.codec import SizedVideo
from inlay.codec.quality import mean_psnr
from inlay.container import as_stored, to_bytes
from inlay.errors import MissingError, VideoError
from inlay.masking import Profile
from inlay.measure import MeasureConfig
from inlay.research.studies import bits as study
from inlay.research.studies.bits_tables import OURS, Point
from inlay.research.studies.catalogue import run_study
from inlay.research.studies.codecs import CODECS, Codec, recode, yuv_frames
from inlay.research.studies.datasets import ClipSpec, open_data
from inlay.research.studies.evaluate import Bench
from inlay.research.studies.records import Record, Store
from inlay.research.studies.sections import Section
from inlay.research.studies.workspace import Workspace
from inlay.tokenizer import Tokenizer
from inlay.types import SCALES
from inlay.video.frames import Video
from tests.conftest import moving_square

SPEC = ClipSpec(frames=9, size=128)  # of smaller frames x264 makes a few bytes more or less each time
BUDGETS = (0.005, 0.8, 1.6)  # the first is less than any token file of so small a clip takes
CRFS = (24, 36, 48)
CODEC_NAMES = tuple(CODECS)


@pytest.fixture(autouse=True)
def few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "BUDGETS", BUDGETS)
    for name, codec in CODECS.items():
        monkeypatch.setitem(CODECS, name, replace(codec, crfs=CRFS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two videos, as arrays; both bear names of the val split."""
    place = tmp_path_factory.mktemp("davis")
    for i, name in enumerate(("dog", "goat")):
        clip = moving_square(9, 128, 128, seed=i, speed=1 + 2 * i).frames
        grain = torch.randint(0, 20, clip.shape, generator=torch.Generator().manual_seed(i), dtype=torch.uint8)
        np.save(place / f"davis17_{name}.npy", (clip.clamp_max(235) + grain).numpy())
    return place


@pytest.fixture(scope="module")
def tokenizer(tiny_mini) -> Tokenizer:
    spec = tiny_mini.spec
    profile = Profile(
        backbone=spec.name, weight_hash=spec.weight_hash, tau=0.1, gains=(20.0,) * spec.channels, step=4.0,
        dial_taus=(0.0, 0.1, 0.2), dial_steps=(1.0, 4.0, 16.0), dial_bits=(2.0, 1.0, 0.5), dial_psnr=(30.0, 25.0, 20.0),
    )  # fmt: skip
    return Tokenizer(tiny_mini, profile=profile)


def workspace(tokenizer: Tokenizer, folder: Path, out: Path) -> Workspace:
    data = open_data(folder, name="davis", spec=SPEC)
    bench = Bench(tokenizer, measure=MeasureConfig())
    return Workspace(bench=bench, store=Store(out), data={"davis": data}, metrics=("psnr", "ssim"))


@pytest.fixture
def ran(tokenizer: Tokenizer, folder: Path, tmp_path: Path) -> tuple[Section, Path]:
    return run_study(workspace(tokenizer, folder, tmp_path), "bits"), tmp_path


def records(out: Path, system: str) -> list[Record]:
    return [r for r in Store(out).all("bits") if r.setting["system"] == system]


def load(folder: Path, clip: str) -> Video:
    return Video(frames=torch.from_numpy(np.load(folder / f"davis17_{clip}.npy")))


def test_bits_of_ours_are_those_of_the_file_that_encode_writes(
    ran: tuple[Section, Path], tokenizer: Tokenizer, folder: Path
) -> None:
    found = [r for r in records(ran[1], OURS) if r.reading.values]
    assert len(found) == 2 * 2
    for record in found:
        video = load(folder, record.clip)
        tokens = tokenizer.encode(video, bits=record.setting["bits"])
        pixels = len(video) * video.width * video.height
        assert record.bits_per_pixel == 8 * len(to_bytes(tokens)) / pixels <= record.setting["bits"]
        scale = float(SCALES[tokens.recipe.scale])
        assert record.chosen == {"tau": tokens.recipe.tau, "step": tokens.recipe.step, "scale": scale}
        decoded = tokenizer.decode(as_stored(tokens))
        assert record.reading.values["psnr"] == pytest.approx(mean_psnr([video], [decoded]))


def test_a_budget_that_cannot_be_granted_is_named_and_costs_nothing_else(ran: tuple[Section, Path]) -> None:
    section, out = ran
    failed = [r for r in records(out, OURS) if not r.reading.values]
    assert {r.setting["bits"] for r in failed} == {BUDGETS[0]} and len(failed) == 2
    assert "psnr is missing for 2 records: 0.005 bits a pixel cannot be granted." in section.text
    assert "davis: no point at ours, --bits 0.005 for dog, goat." in section.text
    points, equal, clips, *_ = section.tables
    assert [row[0].text for row in equal.rows] == ["0.005", "0.8", "1.6", "mean over budgets"]
    assert equal.rows[0][3].text == "-" and (equal.rows[1][3].value or 0) > 0
    assert len(points.rows) == 2 + 3 * len(CRFS) + 3, "ours, three codecs, the published points"
    assert {row[0].text for row in clips.rows} == {"dog", "goat", "mean"}


def test_times_the_bits_come_from_the_records(ran: tuple[Section, Path]) -> None:
    """Untrained latents are below every curve here, so that each value is a bound, said to be one and listed."""
    section, out = ran
    equal, beside = section.tables[1], section.tables[3]
    worst = {r.clip: r for r in records(out, "x264") if r.setting["crf"] == CRFS[-1]}
    ours = {r.clip: r for r in records(out, OURS) if r.setting["bits"] == BUDGETS[1]}
    assert all(ours[c].reading.values["psnr"] < worst[c].reading.values["psnr"] for c in worst)
    times = [ours[c].bits_per_pixel / worst[c].bits_per_pixel for c in worst]
    assert equal.rows[1][3].value == pytest.approx(sum(times) / 2) and equal.rows[1][3].text.startswith("≥ ")
    assert len(beside.rows) == 2 * 2 * 3
    (finding,) = section.findings
    assert finding.holds is False and "4 points are bounds (at least)" in finding.detail


def test_more_bits_give_a_better_picture_with_every_codec(ran: tuple[Section, Path]) -> None:
    for name in CODEC_NAMES:
        for clip in ("dog", "goat"):
            found = sorted((r.setting["crf"], r) for r in records(ran[1], name) if r.clip == clip)
            sizes, quality = zip(*((r.bits_per_pixel, r.reading.values["psnr"]) for _, r in found), strict=True)
            assert sizes[0] > sizes[1] > sizes[2] > 0 and quality[0] > quality[1] > quality[2] > 20
            assert all(r.model["encoder"] in r.setting["command"] for _, r in found)


def test_a_second_run_computes_nothing_and_tells_the_same(
    ran: tuple[Section, Path], tokenizer: Tokenizer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section, out = ran
    before = (out / "tables" / "bits.md").read_bytes()
    monkeypatch.setattr(SizedVideo, "of", lambda *_, **__: pytest.fail("a clip was encoded again"))
    monkeypatch.setattr(study, "recode", lambda *_: pytest.fail("a codec ran again"))
    assert run_study(workspace(tokenizer, folder, out), "bits").tables == section.tables
    assert (out / "tables" / "bits.md").read_bytes() == before


def test_all_budgets_share_one_pass_of_the_backbone(
    tokenizer: Tokenizer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, calls = SizedVideo.of, []
    monkeypatch.setattr(SizedVideo, "of", lambda *args, **more: calls.append(1) or of(*args, **more))
    run_study(workspace(tokenizer, folder, tmp_path), "bits")
    assert len(calls) == 2, "one for each clip"


def test_pieces_of_a_set_make_the_same_tables_as_the_whole(
    ran: tuple[Section, Path], tokenizer: Tokenizer, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two machines, a clip each; their records in one folder."""
    together = tmp_path_factory.mktemp("together")
    for i in range(2):
        work = workspace(tokenizer, folder, tmp_path_factory.mktemp("piece"))
        work.data["davis"] = replace(work.data["davis"], clips=work.data["davis"].clips[i : i + 1])
        run_study(work, "bits")
        shutil.copytree(work.store.root / "records", together / "records", dirs_exist_ok=True)
    assert run_study(workspace(tokenizer, folder, together), "bits").tables == ran[0].tables


def test_an_encoder_that_is_not_there_is_left_out_with_the_reason(
    tokenizer: Tokenizer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CODECS, "svt-av1", replace(CODECS["svt-av1"], encoder="libnothing"))
    section = run_study(workspace(tokenizer, folder, tmp_path), "bits")
    (line,) = (line for line in section.text if "left out" in line)
    assert line.startswith("SVT-AV1 preset 6 is left out: PyAV ") and "without libnothing; run: pip" in line
    assert not any("SVT" in column for column in section.tables[1].columns)
    with pytest.raises(MissingError, match="libnothing"):
        CODECS["svt-av1"].check()


def test_without_the_library_there_are_no_bd_rates_but_all_else(
    tokenizer: Tokenizer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bjontegaard", None)
    section = run_study(workspace(tokenizer, folder, tmp_path), "bits")
    assert any(line.startswith("No BD-rates: bjontegaard is not installed; run: pip") for line in section.text)
    assert not any("BD-rate" in column for column in section.tables[2].columns) and len(section.tables[2].rows) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="threads have a policy that can be asked for on Linux only")
@pytest.mark.parametrize("codec", CODECS.values(), ids=list(CODECS))
def test_an_encoder_leaves_the_thread_its_priority(codec: Codec) -> None:
    before = os.sched_getscheduler(0), os.sched_getparam(0).sched_priority
    recode(moving_square(3, 64, 64), codec, 40)
    assert (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority) == before


def test_a_codec_refuses_odd_sizes_in_one_line() -> None:
    with pytest.raises(VideoError, match="x264 medium: 4:2:0 has no odd sizes, and frames are 33x32"):
        recode(moving_square(3, 32, 33), CODECS["x264"], 30)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODEC_NAMES)
def test_the_command_of_a_record_makes_the_same_stream_with_the_program(codec: Codec, tmp_path: Path) -> None:
    """Another build of FFmpeg may have another version of the encoder: sizes agree to a few percent."""
    program = _program()
    listing = subprocess.run([program, "-hide_banner", "-encoders"], capture_output=True, text=True, check=True).stdout
    if f" {codec.encoder} " not in listing:
        pytest.skip(f"{Path(program).name} was built without {codec.encoder}")
    video = Video(frames=moving_square(17, 128, 128, speed=3).frames)
    planes = [np.ascontiguousarray(frame.to_ndarray()).tobytes() for frame in yuv_frames(video)]
    (tmp_path / "clip.yuv").write_bytes(b"".join(planes))
    command = shlex.split(codec.command(32, "128x128"))
    subprocess.run([program, *command[1:]], cwd=tmp_path, capture_output=True, check=True)
    size = (tmp_path / f"clip.{codec.format}").stat().st_size
    assert size == pytest.approx(recode(video, codec, 32)[1], rel=0.05)


def _program() -> str:
    if found := shutil.which("ffmpeg"):
        return found
    package = pytest.importorskip("imageio_ffmpeg", reason="no ffmpeg on the path, and no imageio-ffmpeg")
    return str(package.get_ffmpeg_exe())


def test_by_the_command_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["study", "bits", "--data-bench", folder, "--out", tmp_path, "--backbone", "mini-untrained", "--tau", "0.1"]
    words += ["--frames", "9", "--side", "128", "--metrics", "psnr", "--device", "cpu", "--json", "--quiet"]
    assert main([str(w) for w in words]) == 0
    section = json.loads(capsys.readouterr().out)["sections"]["bits"]
    assert "-crf CRF" in section["setup"]["encoders"]["x265 medium"]
    assert any("granted by tau alone" in line for line in section["text"]), "this model has no profile"
    assert (tmp_path / "figures" / "bits.png").is_file() and (tmp_path / "report.html").is_file()
    assert Point(system=OURS, at=0.8).label in (tmp_path / "tables" / "bits.md").read_text()
