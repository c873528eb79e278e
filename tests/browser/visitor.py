# SPDX-License-Identifier: Apache-2.0
"""A visitor of the page, in a browser window with nothing shared with others."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

PATIENCE = 60_000  # milliseconds

DROP = """([selector, name, content]) => {
  const files = new DataTransfer();
  files.items.add(new File([Uint8Array.from(atob(content), c => c.charCodeAt(0))], name));
  const sent = (kind) => document.querySelector(selector)
    .dispatchEvent(new DragEvent(kind, { dataTransfer: files, bubbles: true, cancelable: true }));
  return ["dragenter", "dragover", "drop"].map(sent).slice(1).every(stays => !stays);
}"""


class Visitor:
    """What a person does and sees; `state` is what the viewer knows."""

    def __init__(
        self, browser: Any, address: str, *, width: int = 1280, height: int = 1000, state: str = "", touch: bool = False
    ) -> None:
        size = {"width": width, "height": height}
        self.context = browser.new_context(viewport=size, accept_downloads=True, has_touch=touch)
        self.context.set_default_timeout(PATIENCE)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address.rstrip("/"))
        self.page = self.context.new_page()
        self.foreign: list[str] = []
        self.broken: list[str] = []
        self.page.on("request", lambda r: self.foreign.append(r.url) if self._elsewhere(r.url, address) else None)
        self.page.on("pageerror", lambda error: self.broken.append(str(error)))
        self.page.goto(address + state)
        self.until("window.inlay && inlay.data")
        self.drawn()

    @staticmethod
    def _elsewhere(url: str, address: str) -> bool:
        return not url.startswith((address, "data:", "blob:"))

    # --- waiting -----------------------------------------------------------------------------------------------------

    def until(self, script: str, arg: Any = None) -> None:
        self.page.wait_for_function(script, arg=arg, timeout=PATIENCE)

    def says(self, words: str) -> None:
        self.until("words => document.querySelector('#status')?.innerText.includes(words)", words)

    def drawn(self) -> None:
        """Until the pictures have come and stand on the stage."""
        self.until("inlay.drawn()")

    # --- doing -------------------------------------------------------------------------------------------------------

    def give(self, place: str, path: Path) -> None:
        self.page.locator(f"#{place} input[type=file]").set_input_files(path)

    def drop(self, selector: str, path: Path) -> None:
        """A file from the desk onto an element; a browser left to itself would leave the page for it."""
        content = [selector, path.name, base64.b64encode(path.read_bytes()).decode()]
        assert self.page.evaluate(DROP, content), "the page takes the file, not the browser"

    def slide(self, place: str, value: float) -> None:
        box = self.page.locator(f"#{place} input[type=number]")
        box.fill(str(value))
        box.press("Enter")

    def choose(self, place: str, name: str) -> None:
        self.page.locator(f"#{place} label").filter(has_text=name).first.click()

    def put(self, side: str, picture: str) -> None:
        self.page.locator(f"[data-side={side}]").select_option(picture)
        self.drawn()

    def download(self, place: str, folder: Path) -> Path:
        with self.page.expect_download() as waiting:
            self.page.locator(f"#{place}").click()
        path = folder / waiting.value.suggested_filename
        waiting.value.save_as(path)
        return path

    def drag(self, selector: str, start: tuple[float, float], end: tuple[float, float]) -> None:
        """From one place of an element to another, in shares of its size."""
        self.page.mouse.move(*self.at(selector, *start))
        self.page.mouse.down()
        self.page.mouse.move(*self.at(selector, *end), steps=4)
        self.page.mouse.up()

    # --- seeing ------------------------------------------------------------------------------------------------------

    def at(self, selector: str, x: float, y: float) -> tuple[float, float]:
        place = self.page.locator(selector)
        place.scroll_into_view_if_needed()
        box = place.bounding_box()
        return box["x"] + x * box["width"], box["y"] + y * box["height"]

    def state(self, name: str) -> Any:
        return self.page.evaluate(f"inlay.{name}")

    def colour(self, x: float, y: float) -> list[int]:
        """Of the stage, at a place in shares of its size."""
        script = """([x, y]) => {
            const c = document.querySelector(".picture");
            return [...c.getContext("2d").getImageData(Math.floor(x * c.width), Math.floor(y * c.height), 1, 1).data];
        }"""
        return self.page.evaluate(script, [x, y])[:3]

    def keep_rate(self) -> float:
        return float(self.numbers("keep rate")[0].removesuffix("%"))

    def numbers(self, name: str) -> list[str]:
        """A column of the table, from the first setting to the last."""
        return self.page.locator(f"#table td[data-label='{name}']").all_inner_texts()

    def pictures(self) -> list[str]:
        return self.page.locator("[data-side=left] option").evaluate_all("all => all.map(o => o.value)")

    def number(self, place: str) -> str:
        """What a dial's box says."""
        return self.page.locator(f"#{place} input[type=number]").input_value()

    def thumbs(self) -> list[bool]:
        """Of the strip: whether there is a picture in each place."""
        script = """places => {
            const c = document.querySelector(".strip");
            const at = i => c.getContext("2d").getImageData((i + 0.5) * c.width / places, c.height / 2, 1, 1).data[3];
            return [...Array(places).keys()].map(i => at(i) > 0);
        }"""
        return self.page.evaluate(script, 9)

    def shoot(self, name: str, *, whole: bool = True) -> None:
        if folder := os.environ.get("INLAY_SHOTS"):
            self.page.wait_for_timeout(400)
            self.page.screenshot(path=f"{folder}/{name}.png", full_page=whole)
