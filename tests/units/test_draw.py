# SPDX-License-Identifier: Apache-2.0
"""Pictures: lit cells, labels, files, contact sheets, plots that are drawn from numbers."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from inlay.codec.quality import frame_errors, frame_psnr
from inlay.draw.animated import avif_bytes, webp_bytes
from inlay.draw.images import data_uri, fitted, image_bytes, label, strip
from inlay.draw.lighting import EDGE, LUMA, difference, light
from inlay.draw.plots import Panel, Series, png, svg
from inlay.draw.sheet import MaskRow, mask_rows, mask_sheet
from inlay.errors import ShapeError, UsageError
from inlay.masking import MaskConfig
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video
from inlay.video.synthetic import demo_clip
from tests.conftest import moving_square

Animated = Callable[[Video | Iterable[Video]], bytes]
LINES = Panel(
    title="PSNR",
    x_label="keep rate, %",
    y_label="psnr",
    series=(
        Series(label="lit", x=(20.0, 40.0, 80.0), y=(24.0, 27.5, 29.0), low=(23.0, 27.0, None), high=(25.0, 28.0, None),
        ),
        Series(label="hold & <more>", x=(20.0, 40.0), y=(22.0, 26.0), notes=("tau 1", "tau 2")),
    ),
)  # fmt: skip


def opened(data: bytes) -> torch.Tensor:
    with Image.open(io.BytesIO(data)) as picture:
        return torch.tensor(list(picture.convert("RGB").tobytes()), dtype=torch.uint8).view(*picture.size[::-1], 3)


def test_kept_cells_stay_and_dropped_ones_turn_dark() -> None:
    frame = torch.tensor([200, 100, 50], dtype=torch.uint8).expand(1, 30, 35, 3)  # not whole cells: the grid is cropped
    keep = torch.zeros(1, 4, 5, dtype=torch.bool)
    keep[0, 0] = True
    out = light(frame, keep, 8)[0]
    assert out[:8].equal(frame[0, :8]) and (out[8] == EDGE).all()
    assert out[9:].max() < 60 and out[9:].int().diff(dim=-1).abs().max() == 0


def test_a_difference_brightens_steadily() -> None:
    ramp = torch.arange(80, dtype=torch.uint8)[None, :, None].expand(1, 80, 3)
    luma = (difference(torch.zeros_like(ramp), ramp).float() @ LUMA)[0]
    assert (luma.diff() >= -1).all() and luma[-1] > luma[0] + 100


def test_a_picture_comes_back_and_anything_else_is_refused() -> None:
    image = moving_square(1, 24, 40).frames[0]
    assert opened(image_bytes(image)).equal(image)
    for kind in ("jpeg", "webp"):
        assert (opened(image_bytes(image, kind)).float() - image.float()).abs().mean() < 4
        assert data_uri(image_bytes(image, kind), kind).startswith(f"data:image/{kind};base64,")
    with pytest.raises(ShapeError, match="uint8"):
        image_bytes(image.float())


def test_scaling_keeps_small_cells_crisp_and_large_pictures_small() -> None:
    frames = moving_square(2, 20, 30).frames
    large = fitted(frames, 50, 100)
    assert large.shape[1:3] == (60, 90) and large[:, ::3, ::3].equal(frames)
    assert fitted(frames, 10, 10).shape[1:3] == (10, 15) and fitted(frames, 10, 30) is frames
    assert strip(frames, short=20).shape == (20, 2 * 30 + 4, 3)
    assert fitted(moving_square(1, 40, 300).frames, 240, 480).shape[1:3] == (160, 1200), "a flat one stays in bounds"
    assert fitted(moving_square(1, 40, 1500).frames, 240, 480).shape[1:3] == (40, 1500)


def test_labels_differ_and_are_cut_at_the_edge() -> None:
    one, other = (label(text, 29, 200, 17) for text in ("kept cells 41%", "kept cells 14%"))
    assert one.shape == (29, 200, 3) and not one.equal(other) and one.max() > 200
    assert label("a label that is much too long", 29, 40, 17).shape == (29, 40, 3)


def test_letters_beyond_ascii_are_drawn_and_a_script_without_a_font_is_no_warning() -> None:
    accented = [label(letter, 24, 40, 16) for letter in "\u00dc\u00e9\u0416"]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(accented, 2)), "not one box for all of them"
    foreign = replace(LINES, title="\u65e5\u672c")
    assert png((foreign,)).startswith(b"\x89PNG") and "<svg" in svg(foreign)


def test_a_sheet_shows_what_each_threshold_keeps(tiny_tokenizer: Tokenizer) -> None:
    clip = moving_square(9, 64, 96)
    rows = mask_rows(clip, tiny_tokenizer, [MaskConfig(tau=tau) for tau in (0.0, 0.1, 1e6)])
    assert rows[0].keep_rate == 1 > rows[1].keep_rate > rows[2].keep_rate == pytest.approx(1 / 3)
    sheet = mask_sheet(clip, rows, tiny_tokenizer.spec, title="clip")
    dark = MaskRow(tau=0.1, keep_Thw=torch.zeros_like(rows[0].keep_Thw))
    other = mask_sheet(clip, [*rows[:2], dark], tiny_tokenizer.spec, title="clip")
    assert sheet.shape == other.shape and sheet.shape[1] > 3 * 192 and other.float().mean() < sheet.float().mean()


def dots(panel: Panel) -> list[ElementTree.Element]:
    return [e for e in ElementTree.fromstring(svg(panel).replace("xlink:", "")).iter() if e.get("class") == "dot"]


def test_a_plot_places_points_by_their_numbers() -> None:
    found = dots(LINES)
    assert len(found) == 5
    places = [(float(d.get("cx", 0)), float(d.get("cy", 0))) for d in found]
    assert places[0][0] < places[1][0] < places[2][0], "x grows to the right"
    assert places[0][1] > places[1][1] > places[2][1], "y grows upwards"
    step = (places[1][0] - places[0][0]) / 20
    assert places[2][0] - places[1][0] == pytest.approx(40 * step, abs=0.3)
    assert found[0].get("data-tip") == "lit\npsnr: 24 [23, 25]\nkeep rate, %: 20"
    assert found[4].get("data-tip", "").startswith("hold & <more>") and found[4].get("data-tip", "").endswith("tau 2")


def test_a_plot_has_labels_the_pages_ink_and_nothing_from_elsewhere() -> None:
    drawn = svg(LINES)
    assert all(word in drawn for word in ("keep rate, %", "psnr", "PSNR", "hold &amp; &lt;more&gt;", "currentColor"))
    assert "http" not in drawn and "<style" not in drawn and drawn == svg(LINES)
    assert svg(Panel(title="", x_label="x", y_label="y", series=())) == ""


def test_lines_steps_and_scatter_are_different_pictures() -> None:
    kinds: list[dict[str, bool]] = [{}, {"steps": True}, {"scatter": True}]
    panels = [Panel(title="", x_label="x", y_label="y", series=LINES.series, **kind) for kind in kinds]
    assert len({png([p]) for p in panels}) == 3 and png(panels) == png(panels)
    marked = Panel(title="", x_label="x", y_label="y", series=(Series(label="a", x=(1, 2), y=(1, 2), mark=1.5),))
    assert svg(marked) and png([marked]) != png([replace(marked, series=(replace(marked.series[0], mark=None),))])


@pytest.mark.parametrize(("animated", "fast_count"), [(webp_bytes, 8), (avif_bytes, 12)])
def test_an_animation_keeps_times_and_thins_out_fast_films(animated: Animated, fast_count: int) -> None:
    slow, fast = (Video(frames=moving_square(24, 64, 64).frames, fps=Fraction(f)) for f in (12, 48))
    for video, count in ((slow, 24), (fast, fast_count)):
        with Image.open(io.BytesIO(animated([video[:5], video[5:]]))) as picture:
            assert (picture.n_frames, picture.size) == (count, (64, 64))
            picture.seek(count - 2)
            picture.load()
            assert picture.info["duration"] == pytest.approx(1000 * 24 / count / float(video.fps), abs=1.5)


@pytest.mark.parametrize("animated", [webp_bytes, avif_bytes])
def test_an_animation_shows_what_was_filmed(animated: Animated) -> None:
    frames = torch.zeros(3, 64, 96, 3, dtype=torch.uint8)
    frames[1, :, :, 1] = 200
    with Image.open(io.BytesIO(animated(Video(frames=frames, fps=Fraction(10))))) as picture:
        picture.seek(1)
        pixel = picture.convert("RGB").getpixel((20, 20))
    assert pixel[1] > 170 and pixel[0] < 40
    with pytest.raises(UsageError, match="no chunks"):
        animated(iter(()))


@pytest.mark.parametrize("animated", [webp_bytes, avif_bytes])
def test_an_animation_shows_the_input_as_it_is(animated: Animated) -> None:
    video = demo_clip(3, 128, 128)
    with Image.open(io.BytesIO(animated(replace(video, fps=Fraction(10))))) as picture:
        seen = torch.from_numpy(np.array(picture.convert("RGB")))
    grey = [(x.float() @ LUMA).round().to(torch.uint8)[None, ..., None] for x in (video.frames[0], seen)]
    assert frame_psnr(frame_errors(*grey)[0]).item() > 40, "colours are halved, brightness is not"


def test_avif_is_smaller_than_webp_and_leaves_the_thread_as_it_was() -> None:
    video, seen = demo_clip(9, 128, 128), []

    def chunks() -> Iterator[Video]:  # networks run between one chunk and the next
        for first in range(0, 9, 3):
            seen.append(os.sched_getscheduler(0) if sys.platform == "linux" else 0)
            yield video[first : first + 3]

    made = avif_bytes(chunks())
    assert len(set(seen)) == 1 and len(seen) == 3, "SVT-AV1 gives root's threads real-time priority"
    assert "SVT_LOG" not in os.environ
    assert len(made) < 0.6 * len(webp_bytes(replace(video, fps=Fraction(10))))


def test_avif_is_written_in_silence() -> None:
    """In a process of its own: SVT-AV1 asks once how much it may say, and another test may have been first."""
    program = "from inlay.draw.animated import avif_bytes; from inlay.video.synthetic import demo_clip; "
    program += "print(len(avif_bytes(demo_clip(3, 64, 64))))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 100 and done.stderr == ""
