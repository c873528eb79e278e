# SPDX-License-Identifier: Apache-2.0
"""A whole job: what lies in OUT, that it goes on, what it refuses, and what it does with videos that are none."""

from __future__ import annotations

import csv
import errno
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from inlay.container import TokenReader
from inlay.errors import ConfigError, OutputError, UsageError, VideoError
from inlay.scale import RunConfig, TokenizeConfig, tokenize
from inlay.scale import job as jobs
from inlay.scale.layout import DatasetRecord, LatentMoments, VideoRecord, manifest_lines
from inlay.scale.plan import ShardPlan
from inlay.scale.sources import SourceItem
from inlay.scale.store import open_store
from inlay.scale.worker import HOPELESS, Attempts, Task, Worker
from inlay.video import write_video
from inlay.video.frames import Video
from tests.conftest import moving_square
from tests.units.media import gradient, make

TINY = {"backbone": "mini-untrained", "tau": 0.1}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The workers of the local engine, in this process: what they do is tested here, processes in tests/kill."""

    def run(task, shards, run, progress):  # type: ignore[no-untyped-def]
        worker = Worker(task)
        for shard in shards:
            worker.run(shard, progress)

    threads = torch.get_num_threads()
    monkeypatch.setitem(jobs.ENGINES, "local", lambda *settings: nullcontext(run))
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six small videos of two sizes and three lengths."""
    root = tmp_path_factory.mktemp("clips")
    for i in range(6):
        clip = moving_square(5 + 4 * (i % 3), 32, 48 if i % 2 else 32, seed=i)
        write_video(clip, root / f"clip{i}.mp4")
    return root


def start(source: Path | str, out: Path | str, *, workers: int = 2, **options):  # type: ignore[no-untyped-def]
    return tokenize(str(source), str(out), TokenizeConfig(**TINY | options), RunConfig(workers=workers))


def files(out: Path) -> dict[str, bytes]:
    """All that a run leaves and that must not depend on how it went."""
    times = {"report.json", "report.md", "lock"}
    return {
        str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file() and p.name not in times
    }


def manifest(out: Path) -> list[VideoRecord]:
    return list(manifest_lines((out / "manifest.jsonl").read_text(encoding="utf-8")))


@pytest.mark.usefixtures("here")
class TestResult:
    def test_manifest_points_at_each_token_file(self, clips: Path, tmp_path: Path) -> None:
        start(clips, tmp_path / "out", shard_videos=4)
        videos = manifest(tmp_path / "out")
        assert [v.source for v in videos] == [f"clip{i}.mp4" for i in range(6)]
        assert len({v.shard for v in videos}) == 2
        for video in videos:
            data = (tmp_path / "out" / video.shard).read_bytes()[video.offset : video.offset + video.bytes]
            with TokenReader(io.BytesIO(data)) as reader:
                assert reader.info.frames == video.frames
                assert sum(len(chunk) for chunk in reader) == video.tokens

    def test_a_tar_is_a_webdataset(self, clips: Path, tmp_path: Path) -> None:
        start(clips, tmp_path / "out", shard_videos=6)
        with tarfile.open(tmp_path / "out/shards/shard-00000.tar") as tar:
            names = tar.getnames()
            beside = json.load(tar.extractfile("00000002.json"))  # type: ignore[arg-type]
        assert names == [f"{i:08d}.{kind}" for i in range(6) for kind in ("inlay", "json")]
        assert beside["source"] == "clip2.mp4" and "offset" not in beside

    def test_parquet_holds_the_same_token_files(self, clips: Path, tmp_path: Path) -> None:
        parquet = pytest.importorskip("pyarrow.parquet")
        start(clips, tmp_path / "tar", shard_videos=6)
        start(clips, tmp_path / "parquet", shard_videos=6, format="parquet")
        rows = parquet.read_table(tmp_path / "parquet/shards/shard-00000.parquet").to_pylist()
        with tarfile.open(tmp_path / "tar/shards/shard-00000.tar") as tar:
            for video, row in zip(manifest(tmp_path / "parquet"), rows, strict=True):
                assert rows[video.offset]["inlay"] == tar.extractfile(f"{row['key']}.inlay").read()  # type: ignore[union-attr]
                assert (row["source"], row["frames"]) == (video.source, video.frames)

    def test_latent_mean_and_std_are_those_of_all_cells(self, clips: Path, tmp_path: Path) -> None:
        start(clips, tmp_path / "out")
        tokenizer = TokenizeConfig(**TINY).load("cpu")
        cells = []
        for path in sorted(clips.iterdir()):
            from inlay.video import read_video

            z = tokenizer.encode_pixels(tokenizer.pixels([read_video(path)]))
            cells.append(z[0].flatten(1))
        z_CN = torch.cat(cells, dim=1).double()
        dataset = DatasetRecord.parse((tmp_path / "out/dataset.json").read_text())
        assert dataset.latent_count == z_CN.shape[1]
        torch.testing.assert_close(torch.tensor(dataset.latent_mean), z_CN.mean(1).float(), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(
            torch.tensor(dataset.latent_std), z_CN.std(1, correction=0).float(), atol=1e-5, rtol=1e-4
        )

    def test_captions_come_along(self, clips: Path, tmp_path: Path) -> None:
        caption = "eine Möwe\u2028am Meer\x85"  # two ends of lines, as Unicode counts them
        (tmp_path / "t.csv").write_text(f"path,caption\n{clips}/clip3.mp4,{caption}\n")
        start(tmp_path / "t.csv", tmp_path / "out")
        assert [v.caption for v in manifest(tmp_path / "out")] == [caption]

    def test_tars_and_addresses_give_the_same_tokens(self, clips: Path, tmp_path: Path) -> None:
        with tarfile.open(tmp_path / "v.tar", "w") as tar:
            for path in sorted(clips.iterdir()):
                tar.add(path, path.name)
        start(clips, tmp_path / "a")
        start(tmp_path / "v.tar", tmp_path / "b")
        start(f"tar://::{tmp_path}/v.tar", tmp_path / "c")
        whole = [(v.sha256, v.tokens, v.bytes) for v in manifest(tmp_path / "a")]
        assert whole == [(v.sha256, v.tokens, v.bytes) for v in manifest(tmp_path / "b")]
        assert whole == [(v.sha256, v.tokens, v.bytes) for v in manifest(tmp_path / "c")]

    def test_out_may_be_an_address(self, clips: Path, tmp_path: Path) -> None:
        fsspec = pytest.importorskip("fsspec")
        start(clips, tmp_path / "out")
        start(clips, "memory://somewhere/out")
        fs = fsspec.filesystem("memory")
        for name, data in files(tmp_path / "out").items():
            assert fs.cat_file(f"/somewhere/out/{name}") == data, name
        outcome = start(clips, "memory://somewhere/out")
        assert outcome.videos_before == 6


@pytest.mark.usefixtures("here")
class TestSame:
    def test_tokens_are_those_of_the_command_line(self, clips: Path, tmp_path: Path) -> None:
        from inlay.cli.main import main

        long = Video(frames=torch.cat([moving_square(21, 32, 32, seed=s).frames for s in (1, 9)]))  # with a scene cut
        write_video(long, tmp_path / "long.mp4")
        (tmp_path / "l.txt").write_text(f"{tmp_path}/long.mp4\n{clips}/clip1.mp4\n")
        for number, options in enumerate(({"tau": 0.1}, {"tau": None, "keep": 0.6, "precision": "fp16"})):
            out = tmp_path / f"out{number}"
            start(tmp_path / "l.txt", out, **options)
            flags = [f"--{k}={v}" for k, v in options.items() if v is not None]
            for video in manifest(out):
                torch.set_num_threads(json.loads((out / "job/plan.json").read_text())["threads"])
                one = tmp_path / f"{number}{video.key}.inlay"
                assert main(["encode", video.source, str(one), "--backbone", "mini-untrained", "-q", *flags]) == 0
                data = (out / video.shard).read_bytes()[video.offset : video.offset + video.bytes]
                assert data == one.read_bytes()

    def test_the_result_is_a_line_when_printed(self, clips: Path, tmp_path: Path) -> None:
        done = start(clips, tmp_path / "out")
        assert str(done).startswith(f"TokenizeResult({tmp_path}/out: 6 videos by mini-untrained, ")
        assert len(str(done)) < 150 + len(str(tmp_path)), "nor the mean of each channel"

    def test_again_changes_nothing(self, clips: Path, tmp_path: Path) -> None:
        start(clips, tmp_path / "out")
        before = files(tmp_path / "out")
        stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "out/shards").iterdir()}
        outcome = start(clips, tmp_path / "out", workers=1)
        assert (outcome.videos_before, outcome.videos_now) == (6, 0)
        assert files(tmp_path / "out") == before
        assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out/shards").iterdir()} == stamps
        assert "nothing was left to tokenise" in (tmp_path / "out/report.md").read_text(encoding="utf-8")

    @pytest.mark.parametrize(
        "lost", ["shards/shard-00001.tar", "job/shard-00002.json", "dataset.json", "manifest.jsonl"]
    )
    def test_whatever_is_lost_is_made_again(self, clips: Path, tmp_path: Path, lost: str) -> None:
        start(clips, tmp_path / "out")
        before = files(tmp_path / "out")
        (tmp_path / "out" / lost).unlink()
        (tmp_path / "out/shards/shard-00001.tar.0123.part").write_bytes(b"half")
        start(clips, tmp_path / "out")
        assert files(tmp_path / "out") == before

    def test_a_shard_cut_short_is_made_again(self, clips: Path, tmp_path: Path) -> None:
        start(clips, tmp_path / "out")
        before = files(tmp_path / "out")
        with (tmp_path / "out/shards/shard-00000.tar").open("r+b") as file:
            file.truncate(700)
        start(clips, tmp_path / "out")
        assert files(tmp_path / "out") == before


@pytest.mark.usefixtures("here")
class TestRefused:
    def test_other_settings(self, clips: Path, tmp_path: Path) -> None:
        start(clips, tmp_path / "out")
        with pytest.raises(UsageError, match=r"tau was 0.1 and is 0.2"):
            start(clips, tmp_path / "out", tau=0.2)

    def test_other_sources(self, clips: Path, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.mkdir()
        for name in ("clip0.mp4", "clip1.mp4"):
            (source / name).write_bytes((clips / name).read_bytes())
        start(source, tmp_path / "out")
        before = files(tmp_path / "out")
        (source / "clip1.mp4").rename(source / "clip2.mp4")
        with pytest.raises(UsageError, match=r"1 new \(clip2.mp4\), 1 gone \(clip1.mp4\)"):
            start(source, tmp_path / "out")
        (source / "clip2.mp4").rename(source / "clip1.mp4")
        (source / "clip0.mp4").write_bytes((clips / "clip3.mp4").read_bytes())
        with pytest.raises(UsageError, match=r"1 changed \(clip0.mp4\)"):
            start(source, tmp_path / "out")
        assert files(tmp_path / "out") == before

    def test_a_folder_of_something_else(self, clips: Path, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").touch()
        with pytest.raises(UsageError, match="is not empty"):
            start(clips, tmp_path)

    def test_two_jobs_in_one_place(self, clips: Path, tmp_path: Path) -> None:
        start(clips, tmp_path / "out")
        with open_store(str(tmp_path / "out")).locked(), pytest.raises(UsageError, match="another job is writing"):
            start(clips, tmp_path / "out")

    def test_nothing_but_rubbish(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        (tmp_path / "in/a.mp4").write_bytes(b"no video")
        with pytest.raises(VideoError, match="none of the 1 videos could be tokenised"):
            start(tmp_path / "in", tmp_path / "out")
        assert (tmp_path / "out/quarantine.csv").is_file()


@pytest.mark.usefixtures("here")
def test_a_folder_with_everything_in_it(clips: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    good = (clips / "clip4.mp4").read_bytes()
    (source / "good.mp4").write_bytes(good)
    (source / "same again.mp4").write_bytes(good)
    (source / "видео 🎞.mp4").write_bytes(good)
    (source / "linked.mp4").symlink_to(source / "good.mp4")
    (source / "broken link.mp4").symlink_to(source / "nothing.mp4")
    (source / "empty.mp4").touch()
    (source / "cut.mp4").write_bytes(good[: len(good) // 2])
    (source / "text.mp4").write_text("I am no video\n")
    (source / "playlist.mp4").write_text("ffconcat version 1.0\nfile 'good.mp4'\n")
    (source / "stream.mp4").write_text("#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:1,\ngood.mp4\n#EXT-X-ENDLIST\n")
    write_video(moving_square(2, 640, 1000), source / "huge.mp4")
    outcome = start(source, tmp_path / "out")
    made = [v.source for v in manifest(tmp_path / "out")]
    assert made == ["good.mp4", "huge.mp4", "linked.mp4", "same again.mp4", "видео 🎞.mp4"]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out/quarantine.csv").read_text(encoding="utf-8"))))
    reasons = {Path(row["path"]).name: row["reason"] for row in rows}
    assert list(reasons) == ["broken link.mp4", "cut.mp4", "empty.mp4", "playlist.mp4", "stream.mp4", "text.mp4"]
    assert "lists are not followed" in reasons["playlist.mp4"] and all(reasons.values())
    assert not any(name in reason for name, reason in reasons.items())  # it stands beside the reason
    assert outcome.repeated == 3
    (source / "nothing.mp4").write_bytes(good)
    page = (tmp_path / "out/report.md").read_text(encoding="utf-8")
    assert f"`inlay tokenize {tmp_path}/out/quarantine.csv OTHER_OUT`" in page
    again = start(tmp_path / "out/quarantine.csv", tmp_path / "out2")  # the list is a source
    assert (again.dataset.videos, again.dataset.quarantined) == (1, 5)


@pytest.mark.usefixtures("here")
def test_damage_is_written_down(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write_video(moving_square(9, 32, 32), source / "sound.mp4")
    whole = make(tmp_path / "whole.mkv", gradient(60, 96, 96)).read_bytes()
    (source / "cut.mkv").write_bytes(whole[: len(whole) * 2 // 3])
    start(source, tmp_path / "strict")
    assert [v.source for v in manifest(tmp_path / "strict")] == ["sound.mp4"]
    outcome = start(source, tmp_path / "out", keep_going=True)
    cut, sound = manifest(tmp_path / "out")
    assert cut.damage and cut.damage.startswith("cut short") and f"{cut.frames} frames could be read" in cut.damage
    assert sound.damage is None and outcome.damaged == 1
    assert "used in part" in (tmp_path / "out/report.md").read_text()


@pytest.mark.usefixtures("here")
class TestFullDisk:
    def test_stops_with_one_line_and_goes_on_later(
        self, clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start(clips, tmp_path / "whole")
        full = OSError(errno.ENOSPC, "No space left on device")
        with monkeypatch.context() as patch:
            patch.setattr("inlay.scale.worker.WRITERS", {"tar": self.fails_at(3, full)})
            with pytest.raises(OutputError, match=r"No space left on device.*run the same command again"):
                start(clips, tmp_path / "out")
        assert not list((tmp_path / "out").rglob("*.part"))
        assert not (tmp_path / "out/dataset.json").exists()
        assert len(list((tmp_path / "out/shards").iterdir())) == 3
        start(clips, tmp_path / "out")
        assert files(tmp_path / "out") == files(tmp_path / "whole")

    def test_of_temporary_files_is_not_the_videos_fault(
        self, clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def append(self: object, tokens: object) -> None:
            from inlay.errors import InlayError

            raise InlayError("cannot write") from OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("inlay.container.TokenWriter.append", append)
        with pytest.raises(OutputError, match="TMPDIR"):
            start(clips, tmp_path / "out")

    @staticmethod
    def fails_at(number: int, error: OSError) -> Callable:
        from inlay.scale.shards import write_tar

        calls = 0

        def write(path, shard, videos):  # type: ignore[no-untyped-def]
            nonlocal calls
            calls += 1
            if calls > number:
                path.write_bytes(b"half a shard")
                raise error
            return write_tar(path, shard, videos)

        return write


def plan_of(sizes: list[int], **options: int) -> ShardPlan:
    items = tuple(SourceItem(name=str(i), address=str(i), size_bytes=size) for i, size in enumerate(sizes))
    return ShardPlan(
        config=TokenizeConfig(**TINY | options), items=items, device="cpu", threads=1, batch=1, weight_hash=""
    )  # type: ignore[arg-type]


def test_shards_hold_each_source_once_in_order() -> None:
    for count in (1, 5, 63, 64, 130, 1000):
        shards = plan_of([10] * count).shards()
        assert [item.name for s in shards for item in s.items] == [str(i) for i in range(count)]
        assert all(s.items[0].name == str(s.first) for s in shards)
    assert {len(s.items) for s in plan_of([10] * 100_000).shards()[:-1]} == {256}


def test_shards_end_at_so_many_bytes() -> None:
    assert [len(s.items) for s in plan_of([1 << 29] * 6, shard_videos=5).shards()] == [2, 2, 2]
    assert [len(s.items) for s in plan_of([1 << 40] * 3).shards()] == [1, 1, 1]


def test_a_video_at_which_workers_die_is_given_up(clips: Path, tmp_path: Path) -> None:
    """The note of a dead worker is all the next one knows of it."""
    store = open_store(str(tmp_path))
    (tmp_path / "job").mkdir()
    for _ in range(HOPELESS):
        attempts = Attempts(store, 0, "run")
        attempts.begin([1])
    attempts = Attempts(store, 0, "run")
    assert attempts.hopeless(1) and not attempts.hopeless(0) and attempts.careful
    assert not Attempts(store, 0, "another run").careful

    items = tuple(SourceItem(name=f"clip{i}.mp4", address=str(clips / f"clip{i}.mp4")) for i in range(3))
    plan = ShardPlan(
        config=TokenizeConfig(**TINY),
        items=items,
        device="cpu",
        threads=torch.get_num_threads(),
        batch=1,
        weight_hash="",
    )  # type: ignore[arg-type]
    (shard,) = ShardPlan.shards(ShardPlan(**{**vars(plan), "config": TokenizeConfig(**TINY, shard_videos=3)}))  # type: ignore[arg-type]
    task = Task(out=str(tmp_path), config=plan.config, device="cpu", threads=plan.threads, batch=1, run="run")
    record = Worker(task).run(shard)
    assert [video.source for video in record.videos] == ["clip0.mp4", "clip2.mp4"]
    assert "the worker died 6 times" in record.refused[0]["reason"]
    assert not list(tmp_path.rglob("*.attempts"))


def test_settings_of_another_kind_are_refused(tmp_path: Path) -> None:
    wrong: Any
    for wrong in ({"shard_videos": "3"}, {"shard_videos": 1.5}, {"batch": None}):
        with pytest.raises(ConfigError, match="is a number of videos, 0 for the default; got"):
            TokenizeConfig(**wrong)
    for wrong in ({"workers": "2"}, {"workers": -1}, {"threads": 0}, {"threads": "x"}):
        with pytest.raises(ConfigError, match=r"(workers|threads) is a number .+; got"):
            RunConfig(**wrong)
    wrong = ["a.mp4", "b.mp4"]
    with pytest.raises(UsageError, match=r"source is a path or an address; several go into a list .+; got list"):
        tokenize(wrong, tmp_path / "out")
    wrong = {"keep": 0.2}
    with pytest.raises(UsageError, match="by a TokenizeConfig; got dict"):
        tokenize(tmp_path, tmp_path / "out", wrong)


def test_moments_add_up() -> None:
    a = LatentMoments(count=2, sums=(1.0,), squares=(5.0,))
    assert LatentMoments() + a == a + LatentMoments() == a
    assert (a + a).mean == (0.5,) and (a + a).std == (1.5,)


def test_flags_default_to_the_librarys_defaults() -> None:
    import inspect
    from dataclasses import fields

    from inlay.cli.main import COMMANDS

    given = {name: p.default for name, p in inspect.signature(COMMANDS["tokenize"]).parameters.items()}
    for config in (TokenizeConfig, RunConfig):
        for field in fields(config):
            assert given[field.name] == field.default, field.name


@pytest.mark.parametrize(
    ("flags", "code", "text"),
    [
        (["--engine", "slurm"], 2, "unknown engine 'slurm'"),
        (["--format", "zip"], 2, "unknown shard format 'zip'"),
        (["--address", "auto"], 2, "(--address, --engine)"),
        (["--keep", "0.3", "--tau", "1"], 2, "contradict each other"),
        (["--workers", "-1"], 2, "(--workers)"),
        (["--backbone", "minni"], 2, "did you mean"),
    ],
)
def test_wrong_flags_are_refused_before_anything_is_done(
    clips: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], code: int, text: str
) -> None:
    from inlay.cli.main import main

    assert main(["tokenize", str(clips), str(tmp_path / "out"), *flags]) == code
    message = capsys.readouterr().err
    assert text in message and message.count("\n") == 1
    assert not (tmp_path / "out").exists()
