# SPDX-License-Identifier: Apache-2.0
"""What our own weights learn from: clips in memory, AV1 through dav1d, photographs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from inlay.errors import ConfigError, MissingError, VideoError
from inlay.research.recipe import (
    MixedClips,
    PhotoClips,
    PlanarVideo,
    ResidentClips,
    decode_ivf,
    i420_to_rgb,
    remux_to_ivf,
)
from inlay.research.recipe.ivf import parse_y4m
from inlay.train import Draw
from tests.conftest import moving_square


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


@pytest.mark.parametrize("chroma", ["bicubic", "nearest"])
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
def test_dav1d_gives_the_frames_that_inlay_video_gives(shared: Path, tmp_path: Path) -> None:
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
    ways = ("bicubic", "nearest", "bicubic")
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


def test_a_missing_program_and_another_codec_are_named(tmp_path: Path) -> None:
    from inlay.video import write_video

    (tmp_path / "a.ivf").touch()
    write_video(moving_square(3, 40, 48), tmp_path / "a.mp4")
    with pytest.raises(MissingError, match="no-such-program"):
        decode_ivf([tmp_path / "a.ivf"], program="no-such-program")
    with pytest.raises(VideoError, match="only AV1"):
        remux_to_ivf(tmp_path / "a.mp4", tmp_path / "b.ivf")


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
    pillow = pytest.importorskip("PIL.Image")
    image = moving_square(1, 24, 40).frames[0]
    pillow.fromarray(image.numpy()).save(tmp_path / "a.png")
    clips = PhotoClips.from_folder(tmp_path)
    assert torch.equal(clips.photos[0], image)
    with pytest.raises(VideoError, match="no photographs"):
        PhotoClips.from_folder(tmp_path / "none")
