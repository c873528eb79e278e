# SPDX-License-Identifier: Apache-2.0
"""Where clips come from: folders and layouts, files, memory, AV1 through dav1d, photographs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inlay.errors import ConfigError, MissingError, UsageError, VideoError
from inlay.train import (
    ClipConfig,
    Draw,
    FileClips,
    Loader,
    MixedClips,
    PhotoClips,
    PlanarVideo,
    ResidentClips,
    Sampler,
    TrainConfig,
    ValidationSet,
    decode_ivf,
    i420_to_rgb,
    remux_to_ivf,
)
from inlay.train.index import find_videos, guess_layout
from inlay.train.ivf import parse_y4m
from tests.conftest import moving_square


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def names(place: Path, **options: str) -> list[str]:
    return [p.name for p in find_videos(place, **options).paths]


def test_any_folder_is_searched_to_its_depths(tmp_path: Path) -> None:
    touch(tmp_path / "b" / "deep" / "x.MKV", tmp_path / "a.mp4", tmp_path / "notes.txt")
    assert names(tmp_path) == ["a.mp4", "x.MKV"]


def test_a_list_names_its_videos(tmp_path: Path) -> None:
    touch(tmp_path / "v" / "a.mp4")
    (tmp_path / "some.txt").write_text("# mine\nv/a.mp4\n\nv/gone.mp4  # lost\n")
    found = find_videos(tmp_path / "some.txt")
    assert ([p.name for p in found.paths], found.absent) == (["a.mp4"], 1)


def test_ucf101_is_divided_by_its_lists(tmp_path: Path) -> None:
    videos = tmp_path / "UCF-101" / "Bowling"
    touch(videos / "v_Bowling_g01_c01.avi", videos / "v_Bowling_g08_c01.avi")
    lists = tmp_path / "ucfTrainTestlist"
    lists.mkdir()
    (lists / "trainlist01.txt").write_text("Bowling/v_Bowling_g08_c01.avi 1\n")
    (lists / "testlist01.txt").write_text("Bowling/v_Bowling_g01_c01.avi\n")
    assert guess_layout(tmp_path) == "ucf101"
    assert names(tmp_path) == ["v_Bowling_g08_c01.avi"]
    assert names(tmp_path, split="val") == ["v_Bowling_g01_c01.avi"]


def test_kinetics400_by_folder_and_by_table(tmp_path: Path) -> None:
    touch(tmp_path / "train" / "abseiling" / "abc_000001_000011.mp4", tmp_path / "val" / "abseiling" / "xyz_1.mp4")
    assert names(tmp_path, layout="kinetics400", split="val") == ["xyz_1.mp4"]
    (tmp_path / "train.csv").write_text(
        "label,youtube_id,time_start,time_end,split\nabseiling,abc,1,11,train\nabseiling,gone,5,15,train\n"
    )
    found = find_videos(tmp_path)
    assert ([p.name for p in found.paths], found.absent) == (["abc_000001_000011.mp4"], 1)


def test_no_videos_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(VideoError, match=r"no videos.*looked for \.mp4"):
        find_videos(tmp_path)
    with pytest.raises(UsageError, match="no such folder"):
        find_videos(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="needs a file"):
        find_videos(tmp_path, layout="list")
    with pytest.raises(UsageError, match="unknown layout"):
        find_videos(tmp_path, layout="coco")
    (tmp_path / "clip.bin").write_bytes(b"\xff\xd8 no text")
    with pytest.raises(UsageError, match=r"clip\.bin: not a list of videos"):
        find_videos(tmp_path / "clip.bin")
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


def test_mixed_sources_are_drawn_by_their_shares() -> None:
    a = ResidentClips([moving_square(9, 32, 32, seed=i).frames for i in range(3)])
    b = ResidentClips([moving_square(9, 32, 32, seed=9).frames])
    mixed = MixedClips([a, b], [0.25, 0.75])
    assert mixed.weights == pytest.approx((0.25 / 3, 0.25 / 3, 0.25 / 3, 0.75))
    draw = Draw(clip=3, start=0, frames=5, size=32)
    assert torch.equal(mixed.cut(draw), b.cut(replace(draw, clip=0)))
    with pytest.raises(ConfigError, match="share"):
        MixedClips([a, b], [1.0])


def test_grey_and_primaries_convert_exactly() -> None:
    def rgb(y: int, u: int, v: int, matrix: str = "bt601") -> list[int]:
        planes = (torch.full((1, 4, 4), y), torch.full((1, 2, 2), u), torch.full((1, 2, 2), v))
        x = i420_to_rgb(*(p.to(torch.uint8) for p in planes), matrix=matrix)
        return ((x[0, :, 0, 0] + 1) * 127.5).round().int().tolist()

    assert rgb(16, 128, 128) == [0, 0, 0]
    assert rgb(235, 128, 128) == [255, 255, 255]
    for got, want in ((rgb(81, 90, 240), [255, 0, 0]), (rgb(63, 102, 240, "bt709"), [255, 0, 0])):
        assert all(abs(a - b) <= 2 for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("chroma", ["bicubic", "bilinear", "nearest"])
def test_planar_crops_equal_crops_of_the_whole(chroma: str) -> None:
    g = torch.Generator().manual_seed(0)
    planes = [
        torch.randint(30, 200, s, generator=g, dtype=torch.uint8) for s in ((6, 38, 51), (6, 19, 26), (6, 19, 26))
    ]
    video = PlanarVideo(y=planes[0], u=planes[1], v=planes[2])
    whole = i420_to_rgb(video.y, video.u, video.v, chroma=chroma)
    clips = ResidentClips([video], chroma=[chroma])
    for y, x, zoom in ((0.0, 0.0, 38 / 32), (1.0, 1.0, 38 / 32), (0.4, 0.7, 38 / 24), (0.5, 0.1, 1.0)):
        size = round(38 / zoom)
        draw = Draw(clip=0, start=1, frames=5, size=size, zoom=zoom, y=y, x=x)
        top, left, side = draw.window(38, 51)
        want = whole[1:6, :, top : top + side, left : left + side].transpose(0, 1)
        torch.testing.assert_close(clips.cut(draw), want)


def test_clips_cut_together_equal_clips_cut_one_by_one() -> None:
    """At the borders, at odd places, mirrored, reversed, beside clips that must be resized, of two colour matrices."""
    g = torch.Generator().manual_seed(1)

    def planar(h: int, w: int, matrix: str) -> PlanarVideo:
        half = (9, (h + 1) // 2, (w + 1) // 2)
        y, u, v = (torch.randint(30, 200, s, generator=g, dtype=torch.uint8) for s in ((9, h, w), half, half))
        return PlanarVideo(y=y, u=u, v=v, matrix=matrix)

    videos = [planar(38, 51, "bt601"), planar(38, 44, "bt709"), planar(40, 38, "bt601")]
    planar_clips = ResidentClips(videos, chroma=("bicubic", "nearest"))
    clips = MixedClips([planar_clips, ResidentClips([moving_square(9, 38, 38).frames])], [0.5, 0.5])
    places = [(0.0, 0.0), (1.0, 1.0), (0.5, 0.3), (0.1, 0.9)]
    draws = [
        Draw(clip=c, start=s, frames=4, size=32, interval=2, zoom=z, y=y, x=x, flip=f, reverse=r, seed=c + s)
        for c in range(4)
        for (y, x), s, z, f, r in zip(
            places, (0, 1, 2, 1), (38 / 32, 38 / 32, 38 / 32, 1.0), (0, 1, 0, 1), (0, 0, 1, 1), strict=True
        )
    ]
    for draw, clip in zip(draws, clips.cut_many(draws), strict=True):
        torch.testing.assert_close(clip, clips.cut(draw))


def test_y4m_is_read_and_checked() -> None:
    frame = bytes(range(6 * 4)) + bytes(6) + bytes(6)
    video = parse_y4m(b"YUV4MPEG2 W6 H4 F25:1 C420jpeg\n" + (b"FRAME\n" + frame) * 2)
    assert repr(video) == "PlanarVideo(uint8[2, 4, 6])"
    assert video.y[1].flatten().tolist() == list(range(24))
    for data, words in (
        (b"RIFF", "not a YUV4MPEG2"),
        (b"YUV4MPEG2 W6 H4 C420p10\n", "420p10 is not supported"),
        (b"YUV4MPEG2 W6 H4\nFRAME\n" + frame[:-1], "whole number"),
    ):
        with pytest.raises(VideoError, match=words):
            parse_y4m(data)


needs_dav1d = pytest.mark.skipif(shutil.which("dav1d") is None, reason="the dav1d program is not installed")


@needs_dav1d
def test_dav1d_gives_the_frames_that_the_video_room_gives(shared: Path, tmp_path: Path) -> None:
    """One untagged clip (BT.601) and one tagged BT.709."""
    from inlay.video import read_video

    sources = [next((shared / "data" / "bench").glob(f"{name}*.mp4")) for name in ("centertrack", "droid-dataset")]
    paths = [remux_to_ivf(p, tmp_path / f"{p.stem}.ivf") for p in sources]
    for source, planar in zip(sources, decode_ivf(paths, processes=2), strict=True):
        video = read_video(source)
        assert (len(planar), *planar.y.shape[1:]) == (len(video), video.height, video.width)
        rgb = i420_to_rgb(planar.y[::16], planar.u[::16], planar.v[::16], matrix=planar.matrix)
        gap = (((rgb + 1) * 127.5).round() - video.frames[::16].permute(0, 3, 1, 2)).abs()
        assert gap.mean() < 0.05, "levels of 255"
        assert (gap > 1).float().mean() < 0.005


def test_each_draw_has_its_own_way_with_chroma() -> None:
    g = torch.Generator().manual_seed(2)
    y, u, v = (
        torch.randint(30, 200, s, generator=g, dtype=torch.uint8) for s in ((5, 32, 32), (5, 16, 16), (5, 16, 16))
    )
    ways = ("bicubic", "nearest", "bilinear")
    clips = ResidentClips([PlanarVideo(y=y, u=u, v=v)], chroma=ways)
    for seed in range(6):
        found = clips.cut(Draw(clip=0, start=0, frames=5, size=32, seed=seed))
        torch.testing.assert_close(found, i420_to_rgb(y, u, v, chroma=ways[seed % 3]).transpose(0, 1))


@needs_dav1d
def test_ivf_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.ivf").write_bytes(b"DKIF" + bytes(60))
    with pytest.raises(VideoError, match=r"bad\.ivf: dav1d cannot decode it"):
        decode_ivf([tmp_path / "bad.ivf"])
    with pytest.raises(VideoError, match="no such file"):
        decode_ivf([tmp_path / "none.ivf"])


def test_a_missing_program_and_another_codec_are_named(tmp_path: Path, folder: Path) -> None:
    touch(tmp_path / "a.ivf")
    with pytest.raises(MissingError, match="no-such-program"):
        decode_ivf([tmp_path / "a.ivf"], program="no-such-program")
    with pytest.raises(VideoError, match="only AV1"):
        remux_to_ivf(folder / "0.mp4", tmp_path / "b.ivf")


def photos(**options: float) -> PhotoClips:
    return PhotoClips([moving_square(1, 60, 90, seed=4).frames[0]], **options)  # type: ignore[arg-type]


def test_a_camera_moves_smoothly_over_a_photograph() -> None:
    draw = Draw(clip=0, start=0, frames=17, size=32, seed=11)
    clip = photos(still=0.0).cut(draw)
    assert clip.shape == (3, 17, 32, 32)
    assert clip.abs().max() <= 1
    assert torch.equal(clip, photos(still=0.0).cut(draw)), "the path belongs to the draw"
    assert not torch.equal(clip, photos(still=0.0).cut(replace(draw, seed=12)))
    steps = clip.diff(dim=1).abs().mean((0, 2, 3))
    assert steps.max() < 0.2, "no jumps"
    still = photos(still=1.0).cut(draw)
    assert torch.equal(still, still[:, :1].expand_as(still))


def test_photographs_of_a_folder(tmp_path: Path) -> None:
    from inlay.draw.images import image_bytes

    image = moving_square(1, 24, 40).frames[0]
    (tmp_path / "a.png").write_bytes(image_bytes(image))
    clips = PhotoClips.from_folder(tmp_path)
    assert torch.equal(clips.photos[0], image)
    with pytest.raises(VideoError, match="no photographs"):
        PhotoClips.from_folder(tmp_path / "none")
