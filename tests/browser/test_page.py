# SPDX-License-Identifier: Apache-2.0
"""The page by clicks, in a real browser: the whole path, what goes wrong, two visitors, a phone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import moving_square, still


def test_the_whole_path_by_clicks(visit: Any, clip: Path, tmp_path: Path) -> None:
    import inlay.container
    from inlay.cli.main import main
    from inlay.video import read_video

    ann = visit()
    ann.give("video", clip)
    ann.says("17 frames 128x128")
    first = ann.keep_rate()
    ann.slide("tau", 0)
    ann.says("at tau 0;")
    assert ann.keep_rate() == 100 > first
    ann.choose("mode", "keep rate")
    ann.slide("keep", 40)
    ann.says("(40.0%)")
    ann.choose("fill", "linear")
    ann.page.locator("#go").click()
    ann.says("Reconstructed A with linear")
    assert ann.pictures() == ["input", "keptA", "A", "diffA"] and ann.state("right") == "A"
    table = ann.page.locator("#table").inner_text()
    assert all(word in table for word in ("tokens", "bytes", "bits per pixel", "PSNR", "SSIM", ", decode "))
    ann.shoot("reconstructed")

    assert "inlay-serve-" not in ann.page.evaluate("JSON.stringify(inlay.data) + document.documentElement.outerHTML")
    tokens, film = ann.download("token-file", tmp_path), ann.download("film", tmp_path)
    assert f"{tokens.stat().st_size:,}" in table
    assert abs(inlay.container.open(tokens).keep_rate - 0.4) < 0.001
    out = tmp_path / "decoded.mkv"
    assert main(["decode", str(tokens), str(out), "--lossless", "--fill", "linear", "--quiet"]) == 0
    shown, decoded = read_video(film).frames, read_video(out).frames
    head, left = 2 * 29, 2 * (256 + 8)  # below caption and labels, the third panel; 128 pixels are shown twice as large
    panel = shown[:, head : head + 256 : 2, left : left + 256 : 2]
    assert panel.shape == decoded.shape and (panel.float() - decoded.float()).abs().mean() < 4

    ann.page.get_by_role("tab", name="Token file").click()
    ann.give("tokens", tokens)
    ann.says("Decoded")
    assert ann.pictures() == ["keptA", "A"]
    ann.drawn()
    assert all(ann.thumbs()), "nine frames beneath the curve"
    ann.shoot("token-file")


def test_the_slider_drags_and_repaints_quickly(visit: Any) -> None:
    ann = visit()
    ann.choose("clip", "Moving square")
    ann.says("Moving square: 49 frames 256x256")
    before = ann.keep_rate()
    start = ann.page.evaluate("performance.now()")
    ann.page.locator("#tau input[type=range]").press("Home")
    ann.page.wait_for_function("document.querySelector('#status').innerText.includes('at tau 0;')")
    spent = ann.page.evaluate("performance.now()") - start
    assert ann.keep_rate() == 100 > before
    assert spent < 2000, f"{spent:.0f} ms"  # a busy machine; an idle one takes a tenth


def test_a_number_beyond_the_ends_of_a_dial_is_the_end(visit: Any) -> None:
    ann = visit(state="#clip=Moving+square&A=tau:0.2:hold")
    most = float(ann.page.locator("#tau input[type=number]").get_attribute("max"))
    for typed, holds in ((50, most), (-1, 0)):
        ann.slide("tau", typed)
        ann.says(f"at tau {holds:.4g};")
        assert float(ann.number("tau")) == ann.state("data.settings.A.tau") == holds
    ann.slide("tau", 0.2)
    ann.says("at tau 0.2;")
    box = ann.page.locator("#tau input[type=number]")
    box.fill("")
    ann.says("Give a number")
    box.press("Enter")
    assert ann.number("tau") == "0.2" and ann.state("data.settings.A.tau") == 0.2
    ann.choose("mode", "keep rate")
    least = ann.page.locator("#keep input[type=number]").get_attribute("min")
    ann.slide("keep", 0.01)
    ann.says(f"({float(least):.1f}%)")
    assert float(ann.number("keep")) == float(least) > 0.01


def test_the_dial_that_appears_stands_where_the_mask_is(visit: Any) -> None:
    ann = visit(state="#clip=Moving+square&A=tau:0.2:hold")
    ann.slide("tau", 0.1)
    ann.says("at tau 0.1;")
    ann.choose("mode", "keep rate")
    ann.page.locator("#keep").wait_for()
    assert float(ann.number("keep")) == ann.keep_rate()
    ann.slide("keep", 40)
    ann.says("(40.0%)")
    ann.choose("mode", "threshold")
    ann.page.locator("#tau").wait_for()
    assert ann.number("tau") == ann.numbers("tau")[0]


def test_what_is_refused_leaves_its_box_and_no_other(visit: Any, clip: Path, tmp_path: Path) -> None:
    notes, tokens = tmp_path / "notes.mp4", tmp_path / "notes.inlay"
    for path in (notes, tokens):
        path.write_text("nothing to see")
    ann = visit()
    ann.give("video", notes)
    ann.says("is not a video")
    ann.page.locator("#video .file-name", has_text="notes").wait_for(state="detached")
    ann.give("video", clip)
    ann.says("17 frames 128x128")
    ann.page.get_by_role("tab", name="Token file").click()
    ann.give("tokens", tokens)
    ann.says("notes.inlay")
    ann.page.locator("#tokens .file-name").wait_for(state="detached")
    ann.page.get_by_role("tab", name="Clip").click()
    assert "square" in ann.page.locator("#video").inner_text()
    ann.choose("clip", "Moving square")
    ann.says("Moving square:")
    ann.page.locator("#video .file-name").wait_for(state="detached")


def test_a_file_dropped_anywhere_is_taken_and_the_page_stays(visit: Any, clip: Path, tmp_path: Path) -> None:
    other = moving_square(9, 96, 64, seed=3).save(tmp_path / "other.mkv", lossless=True)
    ann = visit()
    ann.drop("#video button", clip)
    ann.says("square.mkv: 17 frames 128x128")
    for place, path, words in (("#video", other, "other.mkv: 9 frames"), (".stage", clip, "square.mkv: 17 frames")):
        ann.drop(place, path)  # the box holds a file already
        ann.says(words)
    ann.page.locator("#go").click()
    ann.says("Reconstructed A")
    tokens = ann.download("token-file", tmp_path)
    ann.drop("#video", tokens)
    ann.says("Decoded")
    assert "square" in ann.page.locator("#tokens").inner_text()
    ann.drop("body", other)
    ann.says("other.mkv: 9 frames")


def test_what_is_not_taken_is_explained(visit: Any, clip: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.mp4"
    notes.write_text("these are not moving pictures\n" * 40)
    long = still(60, 64, 64).save(tmp_path / "long.mp4")
    wide = still(2, 64, 400).save(tmp_path / "wide.mp4")
    corrupt = tmp_path / "corrupt.inlay"
    corrupt.write_bytes(b"INLAY" + bytes(300))
    ann = visit()
    ann.give("video", clip)
    ann.says("17 frames 128x128")
    for path, words in ((notes, "is not a video"), (long, "lasts 2.5 s"), (wide, "at most 320 pixels")):
        ann.page.reload()
        ann.says("49 frames 256x256")
        ann.give("video", path)
        ann.says(words)
        assert ann.page.locator("#status [role=alert]").count() == 1
    ann.shoot("refused")
    words = tmp_path / "words.txt"
    words.write_text("no pictures")
    ann.give("video", words)
    ann.says("words.txt is not a video")
    ann.give("video", corrupt)
    ann.says("corrupt.inlay is a token file; give it under 'Token file'")
    with ann.page.expect_file_chooser():
        ann.page.locator("#video button").first.click()
    assert ann.page.locator("#video input[type=file]").get_attribute("accept").startswith("video/*")
    ann.page.get_by_role("tab", name="Token file").click()
    ann.give("tokens", clip)
    ann.says("square.mkv: not a token file")
    ann.give("tokens", corrupt)
    ann.says("corrupt.inlay")
    ann.shoot("corrupt")


def test_a_file_too_large_is_refused_on_the_way(visit: Any, tmp_path: Path) -> None:
    large = tmp_path / "large.mp4"
    large.write_bytes(b"\0\0\0\x18ftypisom" + os.urandom(3_000_000))
    ann = visit()
    ann.give("video", large)
    ann.page.get_by_text("exceed the maximum allowed size").first.wait_for()
    ann.shoot("too-large")
    assert ann.state("data.clip") == "Mill, train and ball"


def test_two_visitors_at_once(visit: Any, clip: Path, tmp_path: Path) -> None:
    other = moving_square(9, 96, 64, speed=5, seed=3).save(tmp_path / "Übung ü.mp4")
    notes = tmp_path / "notes.mp4"
    notes.write_text("nothing to see")
    ann, bob, eve = visit(), visit(), visit()
    ann.give("video", clip)
    bob.give("video", other)
    eve.give("video", notes)
    ann.says("square.mkv: 17 frames 128x128")
    bob.says("Übung ü.mp4: 9 frames 64x96")
    eve.says("is not a video")
    ann.page.locator("#go").click()
    bob.page.locator("#go").click()
    ann.says("Reconstructed A with hold")
    bob.says("Reconstructed A with hold")
    assert "17 frames 128x128" in ann.page.locator("#table").inner_text()
    assert "9 frames 64x96" in bob.page.locator("#table").inner_text()
    assert ann.page.locator(".inlay-error").count() == bob.page.locator(".inlay-error").count() == 0
    assert ann.download("token-file", tmp_path).name == "square.inlay"
    assert bob.download("token-file", tmp_path).name == "Übung-ü.inlay"


def test_an_error_goes_away_by_itself(visit: Any, tmp_path: Path) -> None:
    notes = tmp_path / "notes.mp4"
    notes.write_text("nothing to see")
    ann = visit()
    ann.page.evaluate("inlay.errorSeconds = 1")
    ann.give("video", notes)
    ann.says("is not a video")
    ann.page.locator("#status [role=alert]").wait_for(state="detached")
    ann.says("Mill, train and ball: 49 frames")


def test_a_phone_sized_window(visit: Any, clip: Path) -> None:
    ann = visit(width=360, height=740)
    ann.give("video", clip)
    ann.says("17 frames")
    ann.page.locator("#go").click()
    ann.says("Reconstructed")
    ann.page.evaluate("scrollTo(0, 0)")
    ann.shoot("phone")
    wide = ann.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0, f"{wide} pixels stand out to the right"
    for place in ("#go", "#tau", ".stage", ".transport", ".curve", "#token-file", "#film", "#code"):
        box = ann.page.locator(place).bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 360 and box["height"] >= 30, place
    cells = ann.page.locator("#table td")
    cut = "all => all.filter(e => e.scrollWidth > e.clientWidth || e.getBoundingClientRect().right > 360).length"
    assert cells.count() > 5 and cells.evaluate_all(cut) == 0, "every number of the table is there to be read"


def test_what_is_written_beneath_the_curve_holds_together_on_a_phone(visit: Any) -> None:
    ann = visit(width=380, height=750)
    ann.choose("which", "B")
    ann.says("Setting B")
    ann.choose("preset", "10 % of the tokens")
    ann.says("(10.0%")
    for place in (".curve .times > *", ".curve .key"):
        lines = "all => all.map(e => e.getBoundingClientRect().height / parseFloat(getComputedStyle(e).fontSize))"
        assert max(ann.page.locator(place).evaluate_all(lines)) < 2, "on one line"
    for side in ("left", "right"):
        room = """e => {
            const pen = document.createElement("canvas").getContext("2d");
            pen.font = getComputedStyle(e).font;
            return e.clientWidth - pen.measureText(e.selectedOptions[0].text).width;
        }"""
        assert ann.page.locator(f"[data-side={side}]").evaluate(room) > 30, "the arrow covers nothing"
    ann.shoot("phone-two-settings")


@pytest.mark.parametrize("size", [(740, 360), (720, 900)])
def test_masks_stay_in_view_where_there_is_room_for_one_column(visit: Any, size: tuple[int, int]) -> None:
    ann = visit(width=size[0], height=size[1])
    ann.page.evaluate("document.querySelector('#tau').scrollIntoView({block: 'end'})")
    stage, tau = (ann.page.locator(place).bounding_box() for place in (".stage", "#tau"))
    assert stage["y"] >= 0 and stage["y"] + stage["height"] <= tau["y"]
    ann.shoot(f"one-column-{size[0]}x{size[1]}", whole=False)


def test_masks_stay_in_view_while_tau_is_dragged_on_a_phone(visit: Any) -> None:
    ann = visit(width=390, height=844, touch=True)
    slider = ann.page.locator("#tau input[type=range]")
    slider.scroll_into_view_if_needed()
    ann.page.evaluate("document.querySelector('#tau').scrollIntoView({block: 'end'})")
    before, rate = ann.state("data.settings.A.mask"), ann.state("data.settings.A.rate")
    slider.press("Home")
    ann.until("inlay.data.settings.A.tau === 0")
    stage, tau = (ann.page.locator(place).bounding_box() for place in (".stage", "#tau"))
    assert stage["y"] >= 0 and stage["y"] + stage["height"] <= tau["y"] and tau["y"] + tau["height"] <= 845
    assert ann.page.evaluate("scrollY") > 0, "the slider lies below the first screen"
    assert ann.state("data.settings.A.mask") != before and ann.state("data.settings.A.rate") == 1 > rate
    ann.shoot("phone-tau", whole=False)


def test_a_phone_shows_work_and_errors_where_one_looks(visit: Any, tmp_path: Path) -> None:
    ann = visit(width=390, height=844, touch=True)
    ann.page.evaluate("""() => {
        const told = document.querySelector(".told");
        window.seen = [];
        new MutationObserver(() => seen.push(told.textContent)).observe(told, { childList: true, characterData: true });
    }""")
    ann.page.locator("#go").click()
    ann.says("Reconstructed")
    ann.until("document.querySelector('.told').hidden")
    assert any("Decoding" in text for text in ann.page.evaluate("seen")), "the line on top has scrolled away"
    notes = tmp_path / "notes.mp4"
    notes.write_text("these are words")
    ann.page.locator("#video").scroll_into_view_if_needed()
    ann.give("video", notes)
    ann.page.locator(".told.error").wait_for()
    stage, told = (ann.page.locator(place).bounding_box() for place in (".stage", ".told"))
    assert "is not a video" in ann.page.locator(".told").inner_text()
    assert stage["x"] <= told["x"] and told["y"] + told["height"] <= stage["y"] + stage["height"] <= 844
    ann.shoot("phone-error", whole=False)


def test_everything_to_press_is_on_the_first_screen(visit: Any) -> None:
    ann = visit(width=1280, height=900)
    go = ann.page.locator("#go").bounding_box()
    assert go["y"] + go["height"] <= 900
    for place in ("[data-layout=wipe]", "[data-layout=split]", "[data-zoom=out]", "[data-zoom=fit]", "[data-zoom=in]"):
        button, group = (ann.page.locator(f"{place}{up}").bounding_box() for up in ("", " >> xpath=.."))
        assert abs(button["height"] - group["height"]) <= 2.5, f"{place} is as high as what it is part of"
    assert ann.page.locator("[data-side=left]").evaluate("e => getComputedStyle(e).appearance") == "auto", "an arrow"
