# SPDX-License-Identifier: Apache-2.0
"""A server as a user starts it, a headless browser, and clips made by code."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import inlay
from tests.browser.visitor import Visitor
from tests.conftest import moving_square

LIMITS = ["--max-seconds", "1", "--max-mb", "2", "--max-side", "320"]


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where `inlay serve` listens."""
    with serving(tmp_path_factory.mktemp("server"), "mini-untrained") as found:
        yield found


@contextmanager
def serving(home: Path, backbone: str) -> Iterator[str]:
    """The address of a server; its folder must be gone once it is told to end."""
    pytest.importorskip("gradio", reason="the page needs Gradio; pip install '.[web]'")
    log = home / "log"
    command = [sys.executable, "-m", "inlay", "serve", "--port", "0", "--backbone", backbone, *LIMITS]
    environment = os.environ | {"TMPDIR": str(home)}
    with log.open("w") as errors:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, cwd=home)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, f"{line}{log.read_text()}"
        yield found[0]
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=20)
    ours = str(Path(inlay.__file__).parent) + os.sep  # Gradio's own refusals are tracebacks there; ours are not
    assert ours not in log.read_text(), log.read_text()
    assert list(home.iterdir()) == [log], "the server left files behind"


@pytest.fixture(scope="module")  # playwright runs once at a time in a process, and other files have browsers too
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="browser tests need playwright; pip install playwright"
    )
    program = os.environ.get("INLAY_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("browser tests need Chromium; apt-get install chromium")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seventeen frames of 128x128, stored exactly."""
    return moving_square(17, 128, 128).save(tmp_path_factory.mktemp("clips") / "square.mkv", lossless=True)


@pytest.fixture
def visit(chromium: Any, address: str) -> Iterator[Any]:
    visitors: list[Visitor] = []

    def enter(**settings: Any) -> Visitor:
        visitors.append(Visitor(chromium, address, **settings))
        return visitors[-1]

    yield enter
    for visitor in visitors:
        assert not visitor.foreign, f"the page asked others for {visitor.foreign}"
        assert not visitor.broken, visitor.broken
        visitor.context.close()
