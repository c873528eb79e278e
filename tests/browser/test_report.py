# SPDX-License-Identifier: Apache-2.0
"""The report in a browser: tables sort, plots speak, films play, nothing is fetched, a phone can read it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from inlay.draw.animated import avif_bytes, webp_bytes
from inlay.draw.images import data_uri
from inlay.research.studies.report import html_report
from inlay.video.frames import Video
from tests.units.test_report import section

CHROMIUM = os.environ.get("INLAY_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; pip install playwright")
    with api.sync_playwright() as engine:
        try:
            chosen = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        except api.Error as error:
            pytest.skip(f"no chromium could be started: {str(error).splitlines()[0]}")
        yield chosen
        chosen.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    path = root / "report.html"
    path.write_text(html_report([section(root)], root), encoding="utf-8")
    return path


@pytest.fixture
def page(browser: Any, report: Path) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    tab = context.new_page()
    tab.asked: list[str] = []
    tab.on("request", lambda request: tab.asked.append(request.url))
    tab.wrong: list[str] = []
    tab.on("pageerror", lambda error: tab.wrong.append(str(error)))
    tab.on("console", lambda message: tab.wrong.append(message.text) if message.type == "error" else None)
    tab.goto(report.as_uri())
    yield tab
    outside = [url for url in tab.asked if not url.startswith(("data:", report.as_uri()))]
    assert not outside, "the page asks for nothing else"
    assert not tab.wrong
    context.close()


def column(page: Any, at: int) -> list[str]:
    return page.locator(f"tbody td:nth-child({at})").all_inner_texts()


def test_a_click_sorts_by_number_and_a_second_one_turns_it(page: Any) -> None:
    assert column(page, 2) == ["9.0", "10.0", "1.5"]
    head = page.locator("thead th").nth(1)
    head.click()
    assert column(page, 2) == ["1.5", "9.0", "10.0"], "as numbers, not as text"
    assert column(page, 1) == ["a", "b", "c"], "rows stay whole"
    assert head.get_attribute("aria-sort") == "ascending"
    head.click()
    assert column(page, 2) == ["10.0", "9.0", "1.5"]
    page.locator("thead th").first.press("Enter")
    assert column(page, 1) == ["a", "b", "c"] and head.get_attribute("aria-sort") is None


def test_pointing_at_a_plot_tells_the_value(page: Any) -> None:
    tip = page.locator("#tip")
    assert not tip.is_visible()
    dot = page.locator(".dot").nth(1)
    box = dot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2 + 2, box["y"] + box["height"] / 2 + 2)
    assert tip.is_visible() and tip.inner_text() == "lit\npsnr: 27.5 [27, 28]\nkeep rate, %: 40"
    assert "on" in dot.get_attribute("class").split()
    page.mouse.move(5, 5)
    assert not tip.is_visible()


def test_arrow_keys_walk_along_a_plot(page: Any) -> None:
    plot = page.locator("svg.plot").first
    plot.focus()
    plot.press("ArrowRight")
    plot.press("ArrowRight")
    assert page.locator("#tip").inner_text().startswith("lit\npsnr: 27.5")
    plot.press("Escape")
    assert not page.locator("#tip").is_visible()


def test_the_film_is_there_and_has_its_size(page: Any) -> None:
    shape = page.locator("#films img").evaluate("i => [i.complete, i.naturalWidth, i.naturalHeight]")
    assert shape[0] and shape[1] > 300 and shape[2] > 100


def test_a_film_has_its_colours(browser: Any) -> None:
    """Browsers look for the range of colours in the stream, other readers in the file around it: both must agree."""
    shades = torch.tensor([[24, 24, 24], [235, 235, 235], [200, 40, 60], [40, 90, 220]], dtype=torch.uint8)
    frame = shades.repeat_interleave(32, 0).expand(64, -1, -1)
    video = Video(frames=frame.expand(3, -1, -1, -1).contiguous(), fps=Fraction(10))
    script = """async address => {
        const image = new Image(), canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
        image.src = address;
        await image.decode();
        [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
        pen.drawImage(image, 0, 0);
        return [16, 48, 80, 112].map(x => [...pen.getImageData(x, 32, 1, 1).data].slice(0, 3));
    }"""
    for made, kind in ((avif_bytes(video), "avif"), (webp_bytes(video), "webp")):
        page = browser.new_page()
        seen = torch.tensor(page.evaluate(script, data_uri(made, kind)))
        page.close()
        assert (seen - shades).abs().max() <= 10, kind  # the wrong range is off by 16


def test_the_foot_names_commit_and_configuration(page: Any) -> None:
    foot = page.locator("footer").inner_text()
    assert "abc123+" in foot and "0.5" in foot and "inlay study main --out x" in foot


def test_a_phone_shows_it_without_sideways_scrolling(page: Any) -> None:
    page.set_viewport_size({"width": 375, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    dot = page.locator(".dot").nth(2)
    dot.scroll_into_view_if_needed()
    box = dot.bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + 3)
    tip = page.locator("#tip").bounding_box()
    assert tip["x"] >= 0 and tip["x"] + tip["width"] <= 375


def test_a_link_unfolds_its_study(browser: Any, tmp_path: Path) -> None:
    sections = [replace(section(tmp_path), name=name, title=name) for name in ("one", "two", "three")]
    path = tmp_path / "many.html"
    path.write_text(html_report(sections, tmp_path), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(path.as_uri())
    assert (
        page.locator(".lead").inner_text().startswith("3 of 3 relations")
        and page.locator("svg.plot:visible").count() == 1
    )
    assert not page.locator("section table").first.is_visible()
    page.get_by_role("link", name="two").click()
    page.locator("#two table").wait_for()
    assert not page.locator("#one table").is_visible()
    page.goto(f"{path.as_uri()}#three")
    page.locator("#three table").wait_for()
    page.close()
