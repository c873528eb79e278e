# SPDX-License-Identifier: Apache-2.0
"""What the film shows: the right cells dark, at the right frames, however the pieces were cut."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from inlay.codec import slot_of_frame
from inlay.container import TokenWriter, to_bytes
from inlay.container.tokens import Tokens
from inlay.draw.caption import Caption, line_picture
from inlay.draw.film import Shot, compose, film, frame_keep_rates, lit, shots, side_by_side
from inlay.draw.lighting import EDGE
from inlay.draw.running import LINE, NOW, RunningCurve
from inlay.errors import ShapeError
from inlay.measure import compare
from inlay.types import Recipe, Span, VideoInfo
from inlay.video.frames import Video
from tests.conftest import moving_square, still


def make_tokens(mask_THW: torch.Tensor, *, frames: int, height: int, width: int, key: bool = True) -> Tokens:
    return Tokens(
        values=torch.zeros(int(mask_THW.sum()), 16),
        mask=mask_THW,
        info=VideoInfo(width=width, height=height, fps=moving_square(1, 8, 8).fps, frames=frames),
        recipe=Recipe(backbone="x", weight_hash="x", tau=0.1),
        spans=(Span(slots=len(mask_THW), frames=frames, key=key),),
    )


def left_half(slots: int) -> torch.Tensor:
    """Slot 0 kept whole, afterwards only the left of two columns."""
    mask = torch.ones(slots, 2, 2, dtype=torch.bool)
    mask[1:, :, 1] = False
    return mask


def test_slot_0_of_a_key_chunk_shows_one_frame() -> None:
    key = make_tokens(left_half(3), frames=9, height=16, width=16)
    assert slot_of_frame(key).tolist() == [0, 1, 1, 1, 1, 2, 2, 2, 2]
    carried = make_tokens(left_half(2), frames=7, height=16, width=16, key=False)
    assert slot_of_frame(carried).tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert frame_keep_rates(key).tolist() == [1.0] + [0.5] * 8


def test_dropped_cells_turn_dark_and_kept_ones_stay() -> None:
    video = Video(frames=torch.full((5, 15, 13, 3), 200, dtype=torch.uint8))  # odd: the grid is cropped
    out = lit(video.frames, make_tokens(left_half(2), frames=5, height=15, width=13))
    assert out[0].equal(video.frames[0])
    assert out[1:, :, :8].equal(video.frames[1:, :, :8])
    assert (out[1:, :, 8] == EDGE).all()
    assert (out[1:, :, 9:] == 80).all()


def test_shots_do_not_depend_on_how_the_pieces_are_cut() -> None:
    video = moving_square(14, 16, 16)
    size = {"height": 16, "width": 16}
    tokens = [make_tokens(left_half(3), frames=9, **size), make_tokens(left_half(2), frames=5, **size)]
    whole = list(shots(tokens, [video], [video]))
    cut = list(shots(tokens, [video[:4], video[4:]], [video[:1], video[1:11], video[11:]]))
    for a, b in zip(whole, cut, strict=True):
        assert compose(a).frames.equal(compose(b).frames)
    assert [len(compose(s)) for s in whole] == [9, 5]


def test_a_shorter_video_is_refused() -> None:
    tokens = [make_tokens(left_half(3), frames=9, height=16, width=16)]
    with pytest.raises(ShapeError, match="original video has 2 frames fewer"):
        list(shots(tokens, [moving_square(9, 16, 16)], [moving_square(7, 16, 16)]))


@pytest.mark.parametrize(("height", "width"), [(16, 16), (15, 13), (300, 400), (601, 777)])
def test_film_sides_are_even_and_legible(height: int, width: int) -> None:
    video = moving_square(1, height, width)
    mask = torch.ones(1, -(-height // 8), -(-width // 8), dtype=torch.bool)
    made = compose(next(shots([make_tokens(mask, frames=1, height=height, width=width)], [video], [video])))
    assert made.width % 2 == made.height % 2 == 0
    assert 240 <= made.height <= 600


def test_the_curve_runs_beneath_and_does_not_depend_on_the_cut() -> None:
    video = moving_square(14, 16, 16)
    size = {"height": 16, "width": 16}
    tokens = [make_tokens(left_half(3), frames=9, **size), make_tokens(left_half(2), frames=5, **size)]
    caption = Caption()

    def filmed(originals: list[Video], caption: Caption | None = None) -> torch.Tensor:
        made = film(shots(tokens, [video], originals), frames=14, caption=caption)
        return torch.cat([chunk.frames for chunk in made])

    whole = filmed([video], caption)
    assert whole.equal(filmed([video[:4], video[4:]]))
    assert (caption.kept.frames, caption.kept.tokens) == (14, sum(map(len, tokens)))
    panels = compose(next(iter(shots(tokens, [video], [video]))), caption=Caption()).height
    beneath = whole[:, panels:]
    assert whole.shape[1] > panels and whole.shape[2] == compose(next(iter(shots(tokens, [video], [video])))).width
    drawn = (beneath == torch.tensor(LINE, dtype=torch.uint8)).all(-1).flatten(1).sum(1)
    assert drawn[0] < drawn[6] < drawn[13], "it grows with the film"
    now = [(f == torch.tensor(NOW, dtype=torch.uint8)).all(-1).any(0).nonzero().float().mean().item() for f in beneath]
    assert now == sorted(now) and len(set(now)) == 14


def test_the_caption_tells_what_a_file_of_the_same_chunks_would(tmp_path: Path) -> None:
    video = moving_square(14, 16, 16)
    darker = Video(frames=video.frames - video.frames.clamp(max=4), fps=video.fps)
    size = {"height": 16, "width": 16}
    tokens = [make_tokens(left_half(3), frames=9, **size), make_tokens(left_half(2), frames=5, **size)]
    with TokenWriter(tmp_path / "a.inlay", info=tokens[0].info, recipe=tokens[0].recipe) as writer:
        for part in tokens:
            writer.append(part)
    bits = 8 * (tmp_path / "a.inlay").stat().st_size / (14 * 16 * 16)
    caption = Caption(title="a.mp4")
    first, last = [caption.add(s.tokens, s.original, s.result) for s in shots(tokens, [darker], [video])]
    kept, db = 14 / 20, compare(video, darker, ("psnr",))["psnr"]
    assert last.split("  |  ") == [
        "a.mp4", "tau 0.1", f"{100 * kept:.1f} % kept", f"{bits:.3f} bits a pixel", f"PSNR {db:.1f} dB",
    ]  # fmt: skip
    alone = 8 * len(to_bytes(tokens[0])) / (9 * 16 * 16)
    assert "66.7 % kept" in first and f"{alone:.3f} bits" in first, "both up to the chunk that is shown"
    without = Caption(title="a.inlay").add(tokens[0], None, video[:9])
    assert without.startswith("a.inlay") and "PSNR" not in without
    counted = Caption(bits_per_pixel=0.25).add(tokens[0], None, video[:9])
    assert "0.250 bits a pixel" in counted, "as the table beneath says it"


def test_the_caption_is_as_wide_as_the_film_and_fits() -> None:
    text = "a-rather-long-name-of-a-clip.mp4  |  tau 0.123  |  12.3 % kept  |  0.123 bits a pixel  |  PSNR 30.1 dB"
    wide, narrow = line_picture(text, 900, 17), line_picture(text, 560, 17)
    assert wide.shape[1:] == (900, 3) and narrow.shape[1:] == (560, 3) and narrow.shape[0] < wide.shape[0]
    for picture in (wide, narrow):
        ink = (picture > 100).all(-1).any(0).nonzero()
        assert picture.shape[1] - int(ink[-1]) > 5, "nothing is cut off"


def test_the_curve_of_a_long_film_shows_the_last_seconds_and_forgets_the_rest() -> None:
    curve = RunningCurve()
    for start in range(0, 60, 6):
        seconds = [start + i / 4 for i in range(24)]
        picture = curve.draw(seconds, [0.5] * 24, width=400, size=17)
    assert picture.shape[:3] == (24, round(1.7 * 17) + 68 + round(1.5 * 17), 400)
    assert len(curve.seconds) < 50 and curve.seconds[0] <= curve.seconds[-1] - 10


def test_the_curve_of_a_film_of_one_frame_is_that_frame() -> None:
    video, tokens = still(1, 16, 16), make_tokens(left_half(1), frames=1, height=16, width=16)
    whole = next(film(shots([tokens], [video], [video]), frames=1)).frames[0]
    line = (whole == torch.tensor(LINE, dtype=torch.uint8)).all(-1)
    assert int(line.sum(1).max()) > 0.5 * whole.shape[1], "as long as the axis"


def test_a_higher_rate_stands_higher() -> None:
    def top_of(rate: float) -> int:
        picture = RunningCurve(duration=1.0).draw([0.0, 0.9], [rate, rate], width=300, size=17)[-1]
        line = (picture == torch.tensor(LINE, dtype=torch.uint8)).all(-1)
        return int(line.any(1).nonzero()[0])

    assert top_of(1.0) < top_of(0.5) < top_of(0.1)


def test_a_film_without_original_has_two_panels_and_each_its_label() -> None:
    video, tokens = still(2, 240, 240), make_tokens(torch.ones(1, 30, 30).bool(), frames=2, height=240, width=240)
    two = compose(Shot(original=None, tokens=tokens, result=video))
    three = compose(Shot(original=video, tokens=tokens, result=video))
    assert (two.width, three.width) == (2 * 240 + 8, 3 * 240 + 16) and two.height == three.height
    one, other = (side_by_side([([text] * 2, video.frames)]) for text in ("kept cells 41%", "kept cells 14%"))
    assert not one.equal(other) and one[:, 29 : 29 + 240].equal(video.frames)


def test_the_curve_is_drawn_faster_than_a_film_plays() -> None:
    curve, count = RunningCurve(duration=10.0), 240
    start = time.process_time()
    curve.draw([i / 24 for i in range(count)], [0.3] * count, width=800, size=17)
    assert (time.process_time() - start) / count < 1 / 24
