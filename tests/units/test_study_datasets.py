# SPDX-License-Identifier: Apache-2.0
"""Data sets: every layout finds its videos; clips are cut alike from files, frame folders and arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from inlay.errors import ConfigError, UsageError, VideoError
from inlay.research.studies.datasets import ClipSpec, open_data, read_any
from inlay.video import write_video
from inlay.video.frames import Video
from inlay.video.listing import DAVIS_VAL, davis_name, find_videos, guess_layout
from tests.conftest import moving_square

SPEC = ClipSpec(frames=5, size=16)


def array(path: Path, frames: int = 6, side: int = 16, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, moving_square(frames, side, side, seed=seed).frames.numpy())
    return path


def pngs(folder: Path, video: Video) -> None:
    image = pytest.importorskip("PIL.Image")
    folder.mkdir(parents=True)
    for i, frame in enumerate(video.frames.numpy()):
        image.fromarray(frame).save(folder / f"{i:05d}.png")


def test_val_split_has_thirty_names_and_prefixes_are_no_part_of_them() -> None:
    assert len(set(DAVIS_VAL)) == 30
    assert [davis_name(n) for n in ("davis17_dog", "480p/dog", "dog", "davis-2017-dog")] == ["dog"] * 4


def test_davis_as_arrays_splits_and_says_what_is_absent(tmp_path: Path) -> None:
    for name in ("dog", "bear", "goat"):
        array(tmp_path / f"davis17_{name}.npy")
    assert guess_layout(tmp_path) == "davis"
    val = open_data(tmp_path, split="val", spec=SPEC)
    assert [c.name for c in val.clips] == ["dog", "goat"]
    assert len(val.absent) == 28
    assert [c.name for c in open_data(tmp_path, split="train", spec=SPEC).clips] == ["bear"]
    whole = open_data(tmp_path, spec=SPEC)
    assert len(whole) == 3 and len(whole.only(DAVIS_VAL, "val")) == 2


def test_davis_official_tree_of_pictures(tmp_path: Path) -> None:
    pngs(tmp_path / "JPEGImages" / "480p" / "dog", moving_square(6, 32, 48))
    pngs(tmp_path / "JPEGImages" / "480p" / "bear", moving_square(6, 32, 48))
    (tmp_path / "ImageSets" / "2017").mkdir(parents=True)
    (tmp_path / "ImageSets" / "2017" / "val.txt").write_text("dog\nshooting\n")
    data = open_data(tmp_path, split="val", spec=SPEC)
    assert (data.layout, [c.name for c in data.clips], data.absent) == ("davis", ["dog"], ("shooting",))
    assert data.clips[0].load().frames.shape == (5, 16, 16, 3)


def test_frame_folder_equals_the_video_it_was_made_from(tmp_path: Path) -> None:
    video = moving_square(6, 24, 24)
    pngs(tmp_path / "a" / "clip", video)
    write_video(video, tmp_path / "a.mkv", lossless=True)
    spec = ClipSpec(frames=3, size=0, interval=2)
    from_folder, from_file = (read_any(tmp_path / p, spec).frames for p in ("a/clip", "a.mkv"))
    assert torch.equal(from_folder, video.frames[::2])
    assert torch.equal(from_file, from_folder)


def test_tokenbench_list_with_sections_and_frame_folders(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(
        "# licence\n### BDD100K\naaa.mov\nbbb.mov\n### Bridge\nkit/traj0/images0\n"
        "### Panda-70M\nccc.mp4,0,10,a caption\n"
    )
    write_video(moving_square(6, 16, 16), tmp_path / "aaa.mp4")
    pngs(tmp_path / "Bridge" / "kit" / "traj0" / "images0", moving_square(6, 16, 16))
    write_video(moving_square(6, 16, 16), tmp_path / "ccc.mp4")
    for place in (tmp_path, tmp_path / "list.txt"):
        data = open_data(place, spec=SPEC)
        assert data.layout == "tokenbench"
        assert [c.name.split("/")[0] for c in data.clips] == ["BDD100K", "Bridge", "Panda-70M"]
        assert data.absent == ("bbb.mov",)


def test_ucf101_and_kinetics_use_their_lists(tmp_path: Path) -> None:
    ucf, kinetics = tmp_path / "ucf", tmp_path / "k400"
    for name in ("A/v_A_g01_c01", "A/v_A_g02_c01"):
        _made(ucf / "UCF-101" / f"{name}.avi").write_bytes(b"not opened here")
    (ucf / "testlist01.txt").write_text("A/v_A_g01_c01.avi\nA/v_gone.avi\n")
    listing = find_videos(ucf)
    assert (listing.layout, listing.split, [n for n, _ in listing.videos]) == ("ucf101", "test", ["A/v_A_g01_c01"])
    array(kinetics / "val" / "abseiling" / "0123456789a_000001_000011.npy")
    (kinetics / "val.csv").write_text("label,youtube_id,time_start,time_end\nx,0123456789a,1,11\nx,gonegonegon,1,11\n")
    listing = find_videos(kinetics)
    assert (listing.layout, listing.split, len(listing.videos)) == ("kinetics400", "val", 1)
    assert listing.absent == ("gonegonegon",)


def test_a_split_that_is_not_there_is_refused_and_the_one_found_is_recorded(tmp_path: Path) -> None:
    array(tmp_path / "plain" / "dog.npy")
    array(tmp_path / "parted" / "val" / "dog.npy")
    for layout in ("folder", "davis", "ucf101", "kinetics400"):
        assert find_videos(tmp_path / "plain", layout=layout).split == "all"  # nothing there divides it
        with pytest.raises(UsageError, match="finds no split 'vall'"):
            find_videos(tmp_path / "plain", layout=layout, split="vall")
    with pytest.raises(UsageError, match="finds no split 'val'"):
        find_videos(tmp_path / "plain" / "dog.npy", split="val")
    assert find_videos(tmp_path / "plain", layout="davis", split="val").split == "val"
    parted = find_videos(tmp_path / "parted", split="val")
    assert (parted.layout, parted.split) == ("folder", "val")


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_what_cannot_be_used_is_listed_and_choices_are_recorded(tmp_path: Path) -> None:
    array(tmp_path / "good.npy", frames=12)
    array(tmp_path / "short.npy", frames=3)
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    said: list[str] = []
    data = open_data(tmp_path, spec=ClipSpec(frames=5, size=16, clips=3), tell=said.append)
    assert [c.name for c in data.clips] == ["good@0", "good@1"]
    assert torch.equal(data.clips[1].load().frames, read_any(tmp_path / "good.npy", data.spec, start=5).frames)
    assert len(data.left_out) == len(said) == 2 and "3 frames" in " ".join(data.left_out)
    record = data.record()
    assert record["spec"] == {"frames": 5, "size": 16, "interval": 1, "clips": 3}
    assert "centre crop" in record["resize"] and record["clips"] == ["good@0", "good@1"]
    assert data.digest != open_data(tmp_path, spec=SPEC).digest


def test_lists_name_videos_beside_them(tmp_path: Path) -> None:
    array(tmp_path / "x" / "one.npy")
    (tmp_path / "some.txt").write_text("x/one.npy  # the only one\nx/two.npy\nx/one.npy\n")
    data = open_data(tmp_path / "some.txt", spec=SPEC)
    assert (data.name, [c.name for c in data.clips], data.absent) == ("some", ["x/one"], ("x/two.npy",))


def test_one_video_or_one_frame_folder_is_a_data_set(tmp_path: Path) -> None:
    array(tmp_path / "a" / "clip.npy", frames=6)
    data = open_data(tmp_path / "a" / "clip.npy", spec=SPEC)
    assert [c.name for c in data.clips] == ["clip"] and data.clips[0].load().frames.shape[0] == SPEC.frames
    pngs(tmp_path / "shots", Video(frames=torch.from_numpy(np.load(tmp_path / "a" / "clip.npy"))))
    pictures = open_data(tmp_path / "shots", spec=SPEC)
    assert [c.name for c in pictures.clips] == ["shots"]
    assert torch.equal(pictures.clips[0].load().frames, data.clips[0].load().frames)


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder or list"):
        open_data(tmp_path / "none")
    with pytest.raises(VideoError, match="no videos"):
        open_data(tmp_path)
    with pytest.raises(UsageError, match="unknown layout 'davs'; did you mean 'davis'"):
        open_data(tmp_path, layout="davs")
    with pytest.raises(ConfigError, match="count from 1"):
        ClipSpec(frames=0)
    array(tmp_path / "a.npy", side=24)
    with pytest.raises(VideoError, match="not resized"):
        open_data(tmp_path, spec=SPEC).clips[0].load()


def test_the_shared_davis_has_the_val_clips_but_one(shared: Path) -> None:
    listing = find_videos(shared / "data" / "davis", split="val")
    assert (listing.layout, listing.split, len(listing.videos)) == ("davis", "val", 29)
    assert listing.absent == ("shooting",)
