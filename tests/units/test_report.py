# SPDX-License-Identifier: Apache-2.0
"""Plots that are drawn from numbers, sections that survive JSON, films, and the page that holds them."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from inlay.errors import UsageError
from inlay.research.studies.films import film
from inlay.research.studies.plots import Panel, Series
from inlay.research.studies.report import html_report, results_page
from inlay.research.studies.sections import Figure, Finding, Section, Table, number, percent, word
from inlay.research.studies.svg import Scale, draw
from inlay.video.frames import Video
from inlay.video.webp import webp_bytes, write_webp
from tests.conftest import moving_square

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


def section(root: Path) -> Section:
    (root / "films").mkdir(exist_ok=True)
    clip = moving_square(9, 32, 32)
    (root / "films" / "a.webp").write_bytes(film(clip, clip))
    rows = tuple((word(name), number(value, 1)) for name, value in (("b", 9.0), ("c", 10.0), ("a", 1.5)))
    return Section(
        name="main",
        title="Main (Table 2)",
        text=("A <b>text</b>.",),
        tables=(Table(caption="Numbers", columns=("Name", "Value"), rows=rows),),
        figures=(Figure(file="", caption="Quality.", panels=(LINES,)), Figure(file="figures/gone.png", caption="Gone")),
        films=(Figure(file="films/a.webp", caption="A film"),),
        findings=(Finding(claim="it holds", holds=True),),
        setup={"commit": "abc123+", "tau": 0.5, "command": "inlay study main --out x"},
    )


def test_a_plot_places_points_by_their_numbers() -> None:
    drawn = ElementTree.fromstring(draw(LINES).split("<p class")[0])
    dots = [e for e in drawn.iter("path") if "dot" in e.get("class", "")]
    assert len(dots) == 5
    places = [(float(d.get("data-x", 0)), float(d.get("data-y", 0))) for d in dots]
    assert places[0][0] < places[1][0] < places[2][0], "x grows to the right"
    assert places[0][1] > places[1][1] > places[2][1], "y grows upwards"
    step = (places[1][0] - places[0][0]) / 20
    assert places[2][0] - places[1][0] == pytest.approx(40 * step, abs=0.3)
    assert dots[0].get("data-tip") == "lit\npsnr: 24 [23, 25]\nkeep rate, %: 20"
    assert dots[4].get("data-tip", "").startswith("hold & <more>") and dots[4].get("data-tip", "").endswith("tau 2")


@pytest.mark.parametrize("values", [(0.0, 1.0), (5.0, 5.0), (0.0, 0.0), (-3e-4, 7e-4), (1e6, 3e6)])
def test_ticks_are_round_and_lie_on_the_axis(values: tuple[float, float]) -> None:
    scale = Scale(values, 0, 100)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 9
    assert all(scale.low <= t <= scale.high and 0 <= scale(t) <= 100 for t in ticks)


def test_steps_and_scatter_differ_from_lines() -> None:
    line = re.search(r'class="line" d="([^"]+)"', draw(LINES))
    assert line and "L" in line[1]
    steps = Panel(title="", x_label="x", y_label="y", series=LINES.series[:1], steps=True)
    path = re.search(r'class="line" d="([^"]+)"', draw(steps))
    assert path and "H" in path[1] and "L" not in path[1]
    cloud = Panel(title="", x_label="x", y_label="y", series=LINES.series, scatter=True)
    assert 'class="line"' not in draw(cloud)
    assert draw(Panel(title="", x_label="x", y_label="y", series=())) == ""


def test_a_section_survives_json(tmp_path: Path) -> None:
    one = section(tmp_path)
    assert Section.from_record(json.loads(json.dumps(one.record()))) == one
    old = {k: v for k, v in one.record().items() if k != "films"}
    old["figures"] = [{"file": "x.png", "caption": "as records were before"}]
    assert Section.from_record(old).figures[0].panels == ()


def test_the_page_holds_everything_once(tmp_path: Path) -> None:
    one = section(tmp_path)
    text = html_report([one, one], tmp_path)
    assert text.count("data:image/webp;base64,") == 1, "a film that two sections show stands there once"
    assert text.count('<svg class="plot"') == 2 and "Gone" not in text
    assert "<b>text</b>" not in text and "&lt;b&gt;" in text
    foot = text[text.index("<footer") :]
    assert foot.count("abc123+") == 1 and "inlay study main --out x" in foot
    assert not re.search(r"(src|href)=\"(?!data:|#)", text)
    page = results_page([one])
    assert "gone.png" in page and "]()" not in page


def test_webp_keeps_times_and_thins_out_fast_films(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    slow, fast = (Video(frames=moving_square(24, 32, 32).frames, fps=Fraction(f)) for f in (12, 48))
    for video, count in ((slow, 24), (fast, 8)):
        path = write_webp([video[:5], video[5:]], tmp_path / "x.webp")
        with image.open(path) as picture:
            assert (picture.n_frames, picture.size) == (count, (32, 32))
            picture.seek(count - 2)
            picture.load()
            assert picture.info["duration"] == pytest.approx(1000 * 24 / count / float(video.fps), abs=1.5)
    assert [p.name for p in tmp_path.iterdir()] == ["x.webp"]


def test_webp_shows_what_was_filmed() -> None:
    image = pytest.importorskip("PIL.Image")
    import io

    frames = torch.zeros(3, 32, 48, 3, dtype=torch.uint8)
    frames[1, :, :, 1] = 200
    with image.open(io.BytesIO(webp_bytes(Video(frames=frames, fps=Fraction(10)), quality=90))) as picture:
        picture.seek(1)
        pixel = picture.convert("RGB").getpixel((20, 20))
    assert pixel[1] > 170 and pixel[0] < 40
    with pytest.raises(UsageError, match="no chunks"):
        webp_bytes(iter(()))


def test_the_page_begins_with_what_does_not_hold_and_why() -> None:
    found = (
        Finding(claim="a is above b", holds=True, detail="2 against 1"),
        Finding(claim="c is above d", holds=False, detail="1 against 2", why="d had more time"),
        Finding(claim="e is above f", holds=False),
        Finding(claim="g is above h", holds=None),
    )
    text = results_page([Section(name="main", title="Quality (Table 2)", findings=found)])
    head = text.split("## Quality")[0]
    assert "1 of 3 relations hold" in head and "| Quality (Table 2) | 3 | 1 |" in head
    assert "This does not hold, likely because d had more time:\n\n- Table 2: c is above d (1 against 2)." in head
    assert "This does not hold:\n\n- Table 2: e is above f." in head and "a is above b" not in head
    assert "- c is above d: does not hold (1 against 2). Likely reason: d had more time." in text
    assert "In short" not in results_page([Section(name="masks", title="Masks")])


def test_a_narrow_table_puts_intervals_below_and_leaves_out_what_says_the_same() -> None:
    row = (word("ours, a"), number(28.27, 2, 27.9, 28.6), number(3.0, 1), percent(0.62, 0.5, 0.7))
    table = Table(caption="T", columns=("Rule", "PSNR ↑", "error-level ↓", "Keep rate ↓"), rows=(row,))
    last = table.markdown(narrow=True).splitlines()[-1]
    keep = "62.0&nbsp;%<br><small>[50.0,&nbsp;70.0]</small>"
    assert last == f"| ours, a | 28.27<br><small>[27.90,&nbsp;28.60]</small> | {keep} |"
    assert table.markdown().splitlines()[-1] == "| ours, a | 28.27 [27.90, 28.60] | 3.0 | 62.0 % [50.0, 70.0] |"
