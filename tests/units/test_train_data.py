# SPDX-License-Identifier: Apache-2.0
"""Where clips come from: folders and layouts, files, and what is loaded ahead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inlay.errors import UsageError, VideoError
from inlay.research.recipe import ResidentClips
from inlay.train import ClipConfig, Draw, FileClips, Loader, Sampler, TrainConfig, ValidationSet
from inlay.video.listing import TRAINING, find_videos, guess_layout
from tests.conftest import moving_square


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names(place: Path, **options: str) -> list[str]:
    return [p.name for p in find_videos(place, purpose=TRAINING, **options).paths]


def test_any_folder_is_searched_to_its_depths(tmp_path: Path) -> None:
    touch(tmp_path / "b" / "deep" / "x.MKV", tmp_path / "a.mp4", tmp_path / "notes.txt")
    assert names(tmp_path) == ["a.mp4", "x.MKV"]


def test_a_list_names_its_videos(tmp_path: Path) -> None:
    touch(tmp_path / "v" / "a.mp4")
    (tmp_path / "some.txt").write_text("# mine\nv/a.mp4\n\nv/gone.mp4  # lost\n")
    found = find_videos(tmp_path / "some.txt", purpose=TRAINING)
    assert ([p.name for p in found.paths], found.absent) == (["a.mp4"], ("v/gone.mp4",))


def test_ucf101_is_divided_by_its_lists(tmp_path: Path) -> None:
    videos = tmp_path / "UCF-101" / "Bowling"
    touch(videos / "v_Bowling_g01_c01.avi", videos / "v_Bowling_g08_c01.avi")
    lists = tmp_path / "ucfTrainTestlist"
    lists.mkdir()
    (lists / "trainlist01.txt").write_text("Bowling/v_Bowling_g08_c01.avi 1\n")
    (lists / "testlist01.txt").write_text("Bowling/v_Bowling_g01_c01.avi\n")
    assert guess_layout(tmp_path, TRAINING) == "ucf101"
    assert names(tmp_path) == ["v_Bowling_g08_c01.avi"]
    assert names(tmp_path, split="val") == ["v_Bowling_g01_c01.avi"]


def test_kinetics400_by_folder_and_by_table(tmp_path: Path) -> None:
    touch(tmp_path / "train" / "abseiling" / "abc_000001_000011.mp4", tmp_path / "val" / "abseiling" / "xyz_1.mp4")
    assert names(tmp_path, layout="kinetics400", split="val") == ["xyz_1.mp4"]
    (tmp_path / "train.csv").write_text(
        "label,youtube_id,time_start,time_end,split\nabseiling,abc,1,11,train\nabseiling,gone,5,15,train\n"
    )
    found = find_videos(tmp_path, purpose=TRAINING)
    assert ([p.name for p in found.paths], found.absent) == (["abc_000001_000011.mp4"], ("gone",))


def test_no_videos_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(VideoError, match=r"no videos; looked for \.mp4"):
        find_videos(tmp_path, purpose=TRAINING)
    with pytest.raises(UsageError, match="no such folder"):
        find_videos(tmp_path / "nowhere", purpose=TRAINING)
    with pytest.raises(UsageError, match="needs a file"):
        find_videos(tmp_path, layout="list", purpose=TRAINING)
    with pytest.raises(UsageError, match="unknown layout"):
        find_videos(tmp_path, layout="coco", purpose=TRAINING)
    (tmp_path / "clip.bin").write_bytes(b"\xff\xd8 no text")
    with pytest.raises(UsageError, match=r"clip\.bin: not a list of videos"):
        find_videos(tmp_path / "clip.bin", purpose=TRAINING)
    touch(tmp_path / "broken.mp4")
    with pytest.raises(VideoError, match=r"none of 1 videos can be read.*broken\.mp4"):
        FileClips.find(tmp_path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two lossless videos of 12 and 20 frames."""
    from inlay.video import write_video

    place = tmp_path_factory.mktemp("videos")
    for i, frames in enumerate((12, 20)):
        write_video(moving_square(frames, 40, 48, seed=i), place / f"{i}.mp4", lossless=True)
    return place


DRAWS = [
    Draw(clip=0, start=2, frames=5, size=32, interval=2, x=0.0, y=1.0),
    Draw(clip=1, start=7, frames=5, size=32, interval=3, flip=True),
    Draw(clip=1, start=0, frames=9, size=40, reverse=True),
    Draw(clip=1, start=0, frames=1, size=24, zoom=1.5),
]


def test_files_and_memory_give_the_same_clips(folder: Path) -> None:
    files, problems = FileClips.find(folder)
    assert problems == []
    assert [(e.frames, e.height, e.width) for e in files.entries] == [(12, 40, 48), (20, 40, 48)]
    memory = ResidentClips([moving_square(n, 40, 48, seed=i).frames for i, n in enumerate((12, 20))])
    for draw in DRAWS:
        clip = files.cut(draw)
        assert clip.shape == (3, draw.frames, draw.size, draw.size)
        assert torch.equal(clip, memory.cut(draw))


def test_a_clip_is_what_the_draw_says() -> None:
    frames = moving_square(20, 40, 40).frames
    x = ResidentClips([frames]).cut(Draw(clip=0, start=3, frames=5, size=40, interval=2, flip=True, reverse=True))
    want = frames[3:12:2].flip(0).flip(2).permute(3, 0, 1, 2).float() / 127.5 - 1
    torch.testing.assert_close(x, want)


@pytest.mark.parametrize(("side", "size"), [(40, 24), (24, 40)])
def test_resizing_equals_bicubic_with_antialiasing(side: int, size: int) -> None:
    frames = moving_square(2, side, side).frames
    x = ResidentClips([frames]).cut(Draw(clip=0, start=0, frames=2, size=size))
    pixels = frames.permute(0, 3, 1, 2).float() / 127.5 - 1
    want = torch.nn.functional.interpolate(pixels, (size, size), mode="bicubic", antialias=True).clamp(-1, 1)
    torch.testing.assert_close(x, want.transpose(0, 1), atol=1e-5, rtol=0)


def test_a_file_that_lost_frames_is_named(folder: Path) -> None:
    files, _ = FileClips.find(folder)
    with pytest.raises(VideoError, match=r"0\.mp4: 2 frames could be read from frame 10.*5 were promised"):
        files.of(files.entries[:1]).cut(Draw(clip=0, start=10, frames=5, size=32))


def test_the_next_video_stands_in_for_one_that_broke(folder: Path) -> None:
    """Which one depends on the draw alone, so that a resumed run sees the same clips."""
    files, _ = FileClips.find(folder)
    lost = replace(files.entries[0], frames=90)  # the file has 12
    clips = files.of([lost, replace(lost, name="short.mp4", frames=3), files.entries[1]])
    instead = clips.cut(Draw(clip=0, start=60, frames=5, size=32, interval=2))
    assert torch.equal(instead, clips.cut(Draw(clip=2, start=11, frames=5, size=32, interval=2)))
    clips.cut(Draw(clip=0, start=70, frames=5, size=32))
    (line,) = clips.problems
    assert line == f"{lost.name}: has no frame 60 to start at; clips of the next video take its place"
    assert clips.problems is files.problems


def test_videos_are_held_out_for_validation(folder: Path) -> None:
    files, _ = FileClips.find(folder)
    rest, held = files.split(1)
    assert {e.name for e in rest.entries} | {e.name for e in held.entries} == {e.name for e in files.entries}
    assert len(held.entries) == 1
    with pytest.raises(VideoError, match="cannot hold out 2 of 2"):
        files.split(2)
    rest, held = files.of([files.entries[0], files.entries[1], files.entries[1]]).split(1, shortest=13)
    assert [e.frames for e in held.entries] == [20]
    assert [e.frames for e in rest.entries] == [12, 20]


def test_videos_too_short_to_validate_on_are_an_error(folder: Path) -> None:
    files, _ = FileClips.find(folder)
    config = TrainConfig(validate_interval=5, clips=ClipConfig(frames=5, size=32))
    with pytest.raises(VideoError, match=r"too short: clips of 5 frames at interval 5 need 21"):
        ValidationSet.of(files, config)
    assert not ValidationSet.of(files, replace(config, validate_clips=0)).draws


def test_a_run_may_be_resumed_from_another_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert FileClips.find(f"../{folder.parent.name}/{folder.name}")[0].entries == FileClips.find(folder)[0].entries


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_the_order_does_not_depend_on_workers(workers: int) -> None:
    clips = ResidentClips([moving_square(20, 32, 32, seed=i).frames for i in range(3)])
    sampler = Sampler(clips.entries, ClipConfig(frames=5, size=32, interval=(1, 2)), seed=3)
    want = [torch.stack([clips.cut(d) for d in sampler.step(s, 2)]) for s in range(2, 6)]
    clips.workers = workers
    got = list(Loader(clips, lambda step: sampler.step(step, 2)).batches(2, 6))
    assert all(torch.equal(a, b.pixels) for a, b in zip(want, got, strict=True))
    halves = list(got[0].parts(2))
    assert torch.equal(torch.cat([h.pixels for h in halves]), got[0].pixels)


def test_an_error_in_a_worker_reaches_the_loop() -> None:
    class Broken(ResidentClips):
        def cut(self, draw: Draw) -> torch.Tensor:
            raise VideoError("this one is broken")

    clips = Broken([moving_square(9, 32, 32).frames])
    clips.workers = 2
    draw = Draw(clip=0, start=0, frames=5, size=32)
    with pytest.raises(VideoError, match="broken"):
        list(Loader(clips, lambda step: [draw]).batches(0, 3))
