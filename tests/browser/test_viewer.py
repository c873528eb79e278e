# SPDX-License-Identifier: Apache-2.0
"""The large view in a real browser: what it opens with, wipe, zoom, play, difference, seeking, cells, settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.conftest import serving
from tests.browser.visitor import Visitor

STAGE = ".stage"


@pytest.fixture
def ann(visit: Any) -> Visitor:
    """With a square that moves over a dark ground, and the first setting reconstructed."""
    visitor: Visitor = visit(state="#clip=Moving+square&A=tau:0.2:hold")
    visitor.says("Moving square")
    return visitor


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the model that ships."""
    with serving(tmp_path_factory.mktemp("shipped"), "mini") as address:
        yield address


def reconstruct(visitor: Visitor, which: str) -> None:
    visitor.page.locator("#go").click()
    visitor.says(f"Reconstructed {which}")
    visitor.drawn()


def test_it_opens_with_a_clip_its_masks_and_thumbnails(visit: Any) -> None:
    ann = visit()
    ann.says("Mill, train and ball: 49 frames 256x256")
    ann.shoot("opened", whole=False)
    assert (ann.state("left"), ann.state("right")) == ("input", "keptA") and 0 < ann.state("data.settings.A.rate") < 1
    thumbs = ann.page.locator("#clip label").evaluate_all("all => all.map(e => getComputedStyle(e).backgroundImage)")
    assert len(set(thumbs)) == 3 and all(t.startswith('url("data:image/webp;base64,') for t in thumbs)
    stage = ann.page.locator(STAGE).bounding_box()
    assert stage["width"] > 700 and stage["height"] > 500, "large"


def test_the_wipe_shows_one_picture_on_each_side(visit: Any) -> None:
    ann = visit(state="#clip=Moving+square&A=keep:0.1:hold")
    ann.put("left", "input")
    ann.put("right", "keptA")
    ann.drag(STAGE, (0.5, 0.5), (0.9, 0.5))
    assert ann.state("wipe") == pytest.approx(0.9, abs=0.02)
    as_input = ann.colour(0.5, 0.2)
    ann.drag(STAGE, (0.9, 0.5), (0.1, 0.5))
    as_kept = ann.colour(0.5, 0.2)
    assert as_input != as_kept and max(as_kept) - min(as_kept) <= 2, "a dropped cell is grey"
    handle = ann.page.locator(".handle")
    handle.press("ArrowRight")
    assert ann.state("wipe") == pytest.approx(0.12, abs=0.02)


def test_side_by_side_shows_both_whole(ann: Visitor) -> None:
    ann.page.get_by_role("button", name="Side by side").click()
    assert ann.state("layout") == "split" and not ann.page.locator(".handle").is_visible()
    ann.put("left", "input")
    ann.put("right", "input")
    left, right = ann.colour(0.2, 0.3), ann.colour(0.7 + 4 / 833, 0.3)
    assert left == pytest.approx(right, abs=12)


def test_zoom_by_buttons_clicks_and_dragging(ann: Visitor) -> None:
    ann.page.get_by_role("button", name="zoom in").click()
    assert ann.state("zoom") == 1.5
    ann.page.get_by_role("button", name="zoom to fit").click()
    assert ann.state("zoom") == 1
    ann.page.mouse.dblclick(*ann.at(STAGE, 0.6, 0.7))
    assert ann.state("zoom") == 3
    x = ann.state("x")
    ann.drag(STAGE, (0.3, 0.8), (0.5, 0.8))
    assert ann.state("x") < x, "what is dragged to the right shows what lies to the left"
    ann.page.locator("[data-zoom=out]").click(click_count=5)
    assert ann.state("zoom") == 1 and ann.state("x") == 0.5


def test_both_sides_play_together(ann: Visitor) -> None:
    ann.put("left", "input")
    ann.put("right", "input")
    first = ann.state("frame")
    ann.page.get_by_role("button", name="play").click()
    for _ in range(3):  # and it goes on
        ann.until("frame => inlay.frame !== frame", first)
        first = ann.state("frame")
    ann.page.get_by_role("button", name="pause").click()
    assert not ann.state("playing")
    assert f"frame {ann.state('frame') + 1} of 49" in ann.page.locator(".where").inner_text()
    ann.page.locator(".inlay-view").press("ArrowRight")
    ann.page.locator(".seek").fill("7")
    assert ann.state("frame") == 7


def test_the_difference_is_dark_where_nothing_is_wrong(ann: Visitor) -> None:
    reconstruct(ann, "A")
    assert ann.state("right") == "A", "what was made comes into view"
    ann.put("right", "diffA")
    ann.put("left", "diffA")
    ann.shoot("difference", whole=False)
    for _ in range(2):  # from here on pixels are shown as they are
        ann.page.get_by_role("button", name="zoom in").click()
    ramp = ann.state("data.look.ramp")
    seen = [ann.colour(0.32 + 0.02 * i, 0.05 + 0.05 * j) for i in range(18) for j in range(18)]
    for colour in seen:
        away = min(
            sum(abs(c - (a + (b - a) * t / 20)) for c, a, b in zip(colour, low, high, strict=True))
            for low, high in itertools.pairwise(ramp)
            for t in range(21)
        )
        assert away < 40, colour
    assert len({tuple(colour) for colour in seen}) > 5


@pytest.mark.parametrize("place", [".curve svg", ".strip"])
def test_a_click_on_curve_or_strip_seeks(ann: Visitor, place: str) -> None:
    for share, frame in ((0.1, 4), (0.9, 44)):
        ann.page.mouse.click(*ann.at(place, share, 0.5))
        assert ann.state("frame") == frame


def test_pointing_at_a_cell_tells_its_score_and_age(ann: Visitor) -> None:
    ann.page.mouse.click(*ann.at(".curve svg", 0.5, 0.5))
    tip = ann.page.locator(".tip")
    ann.page.mouse.move(*ann.at(STAGE, 0.4, 0.15))
    assert tip.inner_text().startswith("cell ") and "score " in tip.inner_text() and "tau 0.2" in tip.inner_text()
    script = """() => {
        const { data, frame } = inlay, setting = data.settings.A, slot = data.slots[frame];
        const kept = (cell, back) => setting.kept[(slot - back) * data.cells + cell];
        return [...Array(data.cells).keys()].map(cell => [kept(cell, 0), kept(cell, 1)]);
    }"""
    history = ann.page.evaluate(script)
    texts, box = set(), ann.page.locator(STAGE).bounding_box()
    for row in range(2, 30, 5):
        for column in range(2, 30, 5):
            x = 0.5 + (column + 0.5 - 16) / 32 * box["height"] / box["width"]  # the picture is square, the stage wide
            ann.page.mouse.move(*ann.at(STAGE, x, (row + 0.5) / 32))
            text = tip.inner_text()
            past = history[32 * row + column]
            assert text.startswith(f"cell {row}, {column} of slot ")
            assert ("age 0" in text) == bool(past[0]) and (past[0] or not past[1] or "age 1 slot" in text)
            texts.add(text.splitlines()[-1])
    assert len(texts) > 1, "cells of several ages"
    ann.page.mouse.click(*ann.at(".curve svg", 0.001, 0.5))
    ann.page.mouse.move(*ann.at(STAGE, 0.4, 0.2))
    assert "kept whole" in tip.inner_text()
    ann.page.mouse.move(5, 5)
    assert not tip.is_visible()


def test_two_settings_side_by_side(ann: Visitor) -> None:
    reconstruct(ann, "A")
    ann.choose("which", "B")
    ann.says("Setting B")
    assert (ann.state("left"), ann.state("right")) == ("A", "keptB")
    ann.choose("preset", "10 % of the tokens")
    ann.says("(10.0%")
    ann.choose("fill", "linear")
    ann.says("linear")
    reconstruct(ann, "B")
    ann.page.get_by_role("button", name="Side by side").click()
    ann.shoot("two-settings")
    assert ann.pictures() == ["input", "keptA", "A", "diffA", "keptB", "B", "diffB"]
    assert (ann.state("left"), ann.state("right")) == ("A", "B")
    assert ann.page.locator(".curve .line").count() == 2
    settings = ann.state("data.settings")
    assert settings["A"]["fill"] == "hold" and settings["B"]["fill"] == "linear" and settings["B"]["keep"] == 0.1
    ann.choose("which", "A")
    ann.says("Setting A")
    assert ann.page.locator("#tau input[type=number]").input_value() == "0.2"
    assert ann.page.locator("#fill input:checked").input_value() == "hold"


def test_the_address_holds_what_is_shown(ann: Visitor, visit: Any) -> None:
    ann.choose("which", "B")
    ann.says("Setting B")
    ann.choose("preset", "what the paper keeps")
    ann.says("(62.0%")
    ann.page.mouse.click(*ann.at(".curve svg", 0.3, 0.5))
    ann.page.get_by_role("button", name="Side by side").click()
    ann.put("left", "keptB")
    ann.put("right", "input")
    ann.until("location.hash.includes('keptB%2Cinput')")
    bob = visit(state=ann.page.evaluate("location.hash"))
    bob.says("Moving square")
    for name in ("frame", "layout", "left", "right", "data.active", "data.clip", "data.settings"):
        assert bob.state(name) == ann.state(name), name
    assert bob.page.locator("#which input:checked").input_value() == "B"
    assert bob.page.locator("#keep input[type=number]").input_value() == "62"


def test_another_address_in_the_same_window(ann: Visitor) -> None:
    other = "#clip=Scene+cut&A=tau:0.3:hold&B=keep:0.4:linear&on=B&frame=48&view=split,keptB,input"
    ann.page.get_by_text("Latents of one slot").click()
    ann.page.locator("#see").click()
    ann.page.locator("#latents img").first.wait_for()
    ann.until("location.hash.includes('frame')")
    ann.page.evaluate("address => { location.hash = address; }", other)
    ann.says("in setting B")
    ann.until("inlay.frame === 48")
    assert [ann.state(name) for name in ("data.clip", "layout", "left")] == ["Scene cut", "split", "keptB"]
    assert "frame 49 of 49" in ann.page.locator(".where").inner_text()
    ann.page.locator("#latents img").first.wait_for(state="detached")
    ann.page.go_back()
    ann.until("inlay.data.clip === 'Moving square' && inlay.frame === 24")
    ann.page.go_forward()
    ann.until("inlay.data.clip === 'Scene cut' && inlay.frame === 48")
    ann.page.wait_for_timeout(600)  # longer than the page takes to write its address
    assert ann.state("data.active") == "B" and "clip=Scene+cut" in ann.page.url and "frame=48" in ann.page.url


def test_the_step_of_two_settings(chromium: Any, shipped: str) -> None:
    """Steps need gains, which calibration measures."""
    ann = Visitor(chromium, shipped, state="#clip=Moving+square&A=tau:0.5:hold:fine")
    ann.says("Moving square")
    assert ann.page.locator("#step input:checked").input_value() == "fine"
    reconstruct(ann, "A")
    ann.choose("which", "B")
    ann.says("Setting B")
    ann.choose("step", "small")
    ann.says("step small")
    assert "--step small" in ann.page.locator("#code").inner_text()
    reconstruct(ann, "B")
    ann.page.get_by_role("button", name="Side by side").click()
    ann.shoot("steps")
    names = ann.page.locator(".stage .name").all_inner_texts()
    assert ["step fine" in names[0], "step small" in names[1]] == [True, True], names
    one, two = map(float, ann.numbers("bits per pixel"))
    assert two < 0.7 * one, "coarser steps cost fewer bits"
    ann.until("location.hash.includes('small')")
    bob = Visitor(chromium, shipped, state=ann.page.evaluate("location.hash"))
    bob.says("Moving square")
    assert [bob.state(f"data.settings.{name}.step") for name in "AB"] == ["fine", "small"]
    assert bob.page.locator("#step input:checked").input_value() == "small"
    for visitor in (ann, bob):
        assert not visitor.foreign and not visitor.broken
        visitor.context.close()


def test_a_cell_that_was_never_kept_says_so(chromium: Any, shipped: str) -> None:
    """Its key slots are thinned out where cells are counted."""
    ann = Visitor(chromium, shipped, state="#clip=Moving+square&A=keep:0.1:hold&frame=0")
    ann.says("Moving square")
    cell = ann.page.evaluate("[...Array(inlay.data.cells).keys()].find(cell => !inlay.data.settings.A.kept[cell])")
    assert cell is not None
    box = ann.page.locator(STAGE).bounding_box()
    x = 0.5 + (cell % 32 + 0.5 - 16) / 32 * box["height"] / box["width"]
    ann.page.mouse.move(*ann.at(STAGE, x, (cell // 32 + 0.5) / 32))
    assert ann.page.locator(".tip").inner_text().endswith("dropped: never kept so far")
    ann.context.close()


@pytest.mark.parametrize(
    ("name", "rate"), [("10 % of the tokens", 10.0), ("what the paper keeps", 62.0), ("every cell", 100)]
)
def test_presets(ann: Visitor, name: str, rate: float) -> None:
    ann.choose("preset", name)
    ann.says(f"({rate:.1f}%")
    assert ann.keep_rate() == rate


def test_the_lines_can_be_copied(ann: Visitor) -> None:
    ann.page.locator("#code [data-copy]").first.click()
    ann.page.get_by_role("button", name="Copied").wait_for()
    copied = ann.page.evaluate("navigator.clipboard.readText()")
    assert "inlay encode Moving-square.mkv --tau 0.2 --backbone mini-untrained" in copied
    ann.page.locator("#code [data-copy]").last.click()
    ann.until("navigator.clipboard.readText().then(text => text.startsWith('import inlay'))")


def test_latents_of_a_slot_as_a_picture(ann: Visitor) -> None:
    ann.page.mouse.click(*ann.at(".strip", 0.6, 0.5))
    slot = ann.page.evaluate("inlay.data.slots[inlay.frame]")
    ann.page.get_by_text("Latents of one slot").click()
    ann.page.locator("#see").click()
    ann.page.locator("#latents img").first.wait_for()
    ann.shoot("latents")
    assert f"latents of slot {slot}: 16 channels of 32x32 cells" in ann.page.locator("#latents").inner_text()
    sizes = ann.page.locator("#latents img").evaluate_all("all => all.map(i => [i.naturalWidth, i.naturalHeight])")
    assert sizes == [[32, 32], [4 * 33 - 1, 4 * 33 - 1]]
