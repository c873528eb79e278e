# SPDX-License-Identifier: Apache-2.0
"""The documentation: links and pictures lead somewhere, and the site builds without a warning and without the net."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

import inlay
from tests.guard.tree import ROOT, project_files, text_files

MARKDOWN = sorted(p for p in project_files() if p.suffix == ".md")
REPOSITORY = "https://github.com/example/inlay"  # as `make docs REPOSITORY=...` names it
SCREENS = {"desk": (1280, 800), "phone": (390, 844)}
TOO_WIDE = """() => [...document.querySelectorAll("pre > code")]
    .filter(code => code.scrollWidth > code.clientWidth + 1 && !code.closest(".diagram"))
    .map(code => code.innerText.slice(0, 60))"""
LINK = re.compile(r"\]\(([^)\s]+)\)|<(?:img|source)[^>]*\ssrc(?:set)?=\"([^\"]+)\"")
PYTHON = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
FENCE = re.compile(r"^```.*?^```", re.S | re.M)
WANTED = {  # what readers were promised
    "index", "quick-start", "idea", "faq", "your-backbone", "your-data", "long-video", "budgets", "train", "results",
    "reference", "format",
}  # fmt: skip


def anchors(path: Path) -> set[str]:
    """The names that headings get."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    heads = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_pictures_lead_somewhere(path: Path) -> None:
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    for target in (one or other for one, other in LINK.findall(text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        place = (path.parent / name).resolve() if name else path
        made = {
            "model-card.md": "src/inlay/weights/MODEL_CARD.md",
            "format.md": "src/inlay/container/FORMAT.md",
            "security.md": "SECURITY.md",
        }
        if path.parent == ROOT / "docs" and name in made:  # pages that the site makes from files elsewhere
            place = ROOT / made[name]
        assert place.exists(), f"{path}: nothing at {target}"
        if anchor and place.suffix == ".md":
            assert anchor in anchors(place), f"{path}: {place.name} has no heading for #{anchor}"


@pytest.mark.parametrize("path", MARKDOWN, ids=lambda p: str(p.relative_to(ROOT)))
def test_examples_name_what_there_is(path: Path) -> None:
    """Examples are shortened, so they are not run; what they import must be there."""
    for code in PYTHON.findall(path.read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "inlay":
                module = import_module(str(node.module))
                missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                assert not missing, f"{path}: {node.module} has no {missing}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "inlay":
                assert hasattr(inlay, node.attr), f"{path}: there is no inlay.{node.attr}"


def test_the_version_is_one_and_has_release_notes() -> None:
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    notes = re.findall(r"^## (\S+)$", (ROOT / "docs" / "releases.md").read_text(encoding="utf-8"), re.M)
    assert stated == inlay.__version__ == notes[0]
    heads = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert heads[0] == "Unreleased" and set(heads[1:]) <= set(notes)


def test_guides_begin_with_the_task_of_the_reader() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("  - Guides:\n")[1].split("\n  - ")[0]
    pages = re.findall(r": ([\w-]+\.md)$", menu, re.M)
    assert len(pages) > 10
    for name in pages:
        place = ROOT / ("SECURITY.md" if name == "security.md" else f"docs/{name}")
        begin = re.sub(r"<!--.*?-->", "", place.read_text(encoding="utf-8")).split("\n\n")[1]
        assert begin.startswith("You "), f"{name} begins: {begin[:60]}"


def test_nothing_sends_users_to_an_index_that_has_no_inlay() -> None:
    for path in (p for p in text_files() if p.suffix in (".md", ".py") and p.name != "test_docs.py"):
        found = re.findall(
            r"pip install[^\n`;#]*[ \t]['\"]?inlay(?:\[[\w,]*\])?['\"]?(?! @)(?=[\s`;)]|$)",
            path.read_text(encoding="utf-8"),
        )
        assert not found, f"{path}: {found}; install from a checkout or a wheel"


def test_extras_are_listed_once_with_what_they_bring() -> None:
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    table = (ROOT / "docs" / "install.md").read_text(encoding="utf-8").split("## Extras")[1].split("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \| \S", table, re.M)) == sorted(stated)


def test_pictures_are_small_enough_for_a_page() -> None:
    pictures = [p for folder in ("pictures", "samples") for p in (ROOT / "docs" / folder).rglob("*.*")]
    assert len(pictures) > 20 and all(p.stat().st_size < 500_000 for p in pictures)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("mkdocs") is None or find_spec("material") is None or find_spec("mkdocstrings") is None:
        pytest.skip("mkdocs-material and mkdocstrings are not installed; pip install '.[docs]'")
    out = tmp_path_factory.mktemp("site")
    # without --quiet, which would hush the warnings that --strict counts
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    quiet = {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true", "INLAY_REPOSITORY": REPOSITORY}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **quiet})
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.slow
def test_the_site_builds_strictly_and_has_its_pages(site: Path) -> None:
    assert {p.stem for p in site.glob("*.html")} >= WANTED
    assert "Tokenizer" in (site / "reference.html").read_text(encoding="utf-8")
    assert "magic" in (site / "format.html").read_text(encoding="utf-8")


def test_examples_in_docstrings_are_code_on_the_site() -> None:
    pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed; pip install '.[docs]'")
    spec = spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None and spec.loader is not None
    hooks = module_from_spec(spec)
    spec.loader.exec_module(hooks)
    assert "docs/hooks.py:Examples" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    shown = hooks.fenced(inspect.cleandoc(inlay.Tokenizer.__doc__ or ""))
    assert shown.startswith("A frozen backbone") and "\n\n```python\ntokenizer = " in shown
    assert hooks.fenced(">>> 1 + 1\n2") == "```python\n>>> 1 + 1\n2\n```"
    for prose in ("Latents", "None where there is none.", "a name: what it is", "Args:\n    x: pixels"):
        assert hooks.fenced(prose) == prose


@pytest.mark.slow
def test_the_site_needs_nothing_from_the_net(site: Path) -> None:
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(https?://[^\"> ]+)", text)
        fetched += re.findall(
            r"<link\b[^>]*rel=\"?(?:stylesheet|preconnect|icon)\b[^>]*href=\"?(https?://[^\"> ]+)", text
        )
        assert not fetched, f"{page.name} fetches {fetched}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; pip install playwright")
    with api.sync_playwright() as engine:
        try:
            browser = engine.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        except api.Error as error:
            pytest.skip(f"no chromium could be started: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


@pytest.mark.slow
def test_the_site_can_be_searched_from_a_folder(site: Path, browser: Any) -> None:
    page, asked = browser.new_page(viewport={"width": 1280, "height": 800}), []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.locator(".md-search__input").click(force=True)
    page.keyboard.type("bucket")
    page.locator(".md-search-result__item").first.wait_for(timeout=20_000)
    found = [link.get_attribute("href") for link in page.locator(".md-search-result__link").all()]
    page.close()
    assert any("budgets.html" in link for link in found), found
    assert not [url for url in asked if not url.startswith(("file:", "data:"))]


@pytest.mark.slow
def test_a_search_finds_what_explains_before_numbers_and_names(site: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto((site / "index.html").as_uri())
    page.locator(".md-search__input").click(force=True)
    page.keyboard.type("keep rate")
    page.locator(".md-search-result__item").first.wait_for(timeout=20_000)
    page.wait_for_timeout(2_000)  # what the first letters found gives way to what the words did
    first = page.locator(".md-search-result__link").first.get_attribute("href")
    high = page.locator(".md-search-result__article p").evaluate_all("all => Math.max(...all.map(p => p.clientHeight))")
    page.close()
    assert not any(name in first for name in ("results", "reference", "log")), first
    assert high < 100, "no table fills the screen"


@pytest.mark.slow
@pytest.mark.parametrize("screen", SCREENS)
def test_code_fits_its_box(screen: str, site: Path, browser: Any) -> None:
    width, height = SCREENS[screen]
    page, wide = browser.new_page(viewport={"width": width, "height": height}), {}
    for place in sorted(site.glob("*.html")):
        page.goto(place.as_uri())
        wide |= {place.name: found} if (found := page.evaluate(TOO_WIDE)) else {}
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{place.name} is wider than the screen"
    page.close()
    assert not wide


@pytest.mark.slow
def test_a_remark_stands_behind_its_code_and_on_a_phone_below_it(site: Path, browser: Any) -> None:
    where = """() => {
        const gap = document.querySelector("pre .gap"), remark = gap.nextElementSibling;
        const range = document.createRange();
        range.selectNodeContents(remark);
        const text = [...range.getClientRects()].pop(), code = gap.previousSibling;
        range.selectNode(code);
        return [range.getBoundingClientRect().bottom <= text.top + 1, gap.closest("code").innerText];
    }"""
    for screen, below in (("desk", False), ("phone", True)):
        width, height = SCREENS[screen]
        page = browser.new_page(viewport={"width": width, "height": height})
        page.goto((site / "install.html").as_uri())
        found, copied = page.evaluate(where)
        page.close()
        assert found == below, screen
        assert re.match(r"pip install \. +# into", copied), "what is copied is one line all the same"


@pytest.mark.slow
def test_the_notebook_is_a_page_and_can_be_had(site: Path) -> None:
    page = (site / "tour.html").read_text(encoding="utf-8")
    assert "A tour of Inlay" in page and 'href="files/examples/tour.ipynb"' in page
    assert (site / "files" / "examples" / "tour.ipynb").is_file()
    assert 'href="tour.html"' in (site / "quick-start.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_list_goes_on_counting_after_a_picture(site: Path) -> None:
    assert '<ol start="4">' in (site / "idea.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_samples_play_and_change_their_rate(site: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto((site / "samples.html").as_uri())
    figure = page.locator("figure.sample").first
    video, buttons = figure.locator("video"), figure.locator("button")
    ready = "film => [...document.querySelectorAll('video')].some(v => v.src.endsWith(film) && v.readyState > 1)"
    page.wait_for_function(ready, arg=figure.locator("[aria-pressed=true]").get_attribute("data-film"))
    video.evaluate("v => { v.pause(); v.currentTime = 1; }")
    buttons.nth(3).click()
    page.wait_for_function(ready, arg=buttons.nth(3).get_attribute("data-film"))
    assert video.evaluate("v => v.currentTime") == pytest.approx(1, abs=0.1), "at the same time of the clip"
    assert [b.get_attribute("aria-pressed") for b in buttons.all()] == ["false", "false", "false", "true"]
    wide, shown = video.evaluate("v => [v.videoWidth, v.clientWidth]")
    assert wide == shown == 2 * 256 + 8, "in its own pixels, neither blurred nor cut"
    if folder := os.environ.get("INLAY_SHOTS"):
        page.screenshot(path=f"{folder}/samples.png", full_page=True)
    page.close()


@pytest.mark.slow
def test_every_page_links_to_the_repository_and_the_log_is_for_developers(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    assert f'href="{REPOSITORY}"' in text
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("  - Development:")[1]
    assert "log.md" in menu and "design.md" in menu


@pytest.mark.slow
def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    for page in (p for p in site.glob("*.html") if p.name != "404.html"):  # that one is served from anywhere
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"(?:href|src)=\"([^\"#?]+)[\"#?]", text):
            if not re.match(r"[a-z]+:", target) and target != ".":
                assert (page.parent / target).exists(), f"{page.name}: nothing at {target}"
