# SPDX-License-Identifier: Apache-2.0
"""Many visitors of one page at once: good uploads, bad ones, sliders, reconstructions, foreign names, foreign files."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inlay.cli.main import main as inlay
from inlay.video import write_video
from tests.browser.test_request_filter import ask, listen, upload
from tests.conftest import moving_square

if TYPE_CHECKING:
    from tests.hunt.soak import Soak

LIMITS = ["--max-seconds", "1", "--max-mb", "2", "--max-side", "320", "--waiting", "100", "--sessions", "8"]
ACTIONS = {
    "upload": 3, "tokens": 1, "bad upload": 2, "clip": 1, "tau": 6, "fill": 1, "switch": 1, "preset": 1, "see": 1,
    "go": 2, "page": 2, "foreign": 1, "file": 1,
}  # fmt: skip
BEYOND = "is greater than maximum value"  # a frame that the slider does not have, before there is a clip
FLAT_MB = 48  # that the server may grow by, once every visitor has a clip
LEAKS = ("inlay-serve-", "Traceback", "site-packages", "Something went wrong")


class Visitor:
    """One browser, more or less."""

    def __init__(
        self, number: int, address: str, calls: dict[str, int], files: dict[str, bytes], dice: random.Random
    ) -> None:
        self.number, self.address, self.calls, self.files, self.dice = number, address, calls, files, dice
        self.session = f"visitor{number}{dice.getrandbits(64):x}"
        self.seen, self.wrong, self.seconds = Counter[str](), list[str](), list[float]()

    def act(self) -> None:
        action = self.dice.choices(list(ACTIONS), list(ACTIONS.values()))[0]
        start = time.perf_counter()
        try:
            self._check(action, *getattr(self, f"_{action.replace(' ', '_')}")())
        except Exception as error:
            self.wrong.append(f"{action}: {error!r}")
        self.seen[action] += 1
        self.seconds.append(time.perf_counter() - start)

    def _check(self, action: str, status: int, body: str, wanted: tuple[str, ...]) -> None:
        if status >= 500 or not any(word in body for word in wanted) or any(word in body for word in LEAKS):
            said = re.findall(r"inlay-status[^>]*>([^<]*)", body)
            self.wrong.append(f"{action}: {status}, wanted one of {wanted}, got {said or body[-600:]}")

    def _event(self, name: str, data: list[Any]) -> tuple[int, str]:
        event = {"data": data, "fn_index": self.calls[name], "session_hash": self.session, "trigger_id": None}
        status, body = ask(self.address, "/gradio_api/queue/join", json.dumps(event).encode())
        return (status, listen(self.address, self.session, seconds=600)) if status == 200 else (status, body)

    def _sent(self, name: str, content: bytes) -> dict[str, Any]:
        status, body = upload(self.address, name, content)
        if status != 200:
            raise ValueError(f"upload: {status} {body[:300]}")
        return {"path": json.loads(body)[0], "meta": {"_type": "gradio.FileData"}, "orig_name": name}

    def _upload(self) -> tuple[int, str, tuple[str, ...]]:
        """The clip of this visitor has a width of its own: another one's would show."""
        name = f"clip{self.number}.mp4"
        answer = self._event("video", [self._sent(name, self.files[name]), "hold"])
        return *answer, (f"9 frames {32 + 8 * (self.number % 8)}x32",)

    def _tokens(self) -> tuple[int, str, tuple[str, ...]]:
        name = f"clip{self.number % 8}.inlay"
        return *self._event("tokens", [self._sent(name, self.files[name]), "hold"]), ("Decoded clip",)

    def _bad_upload(self) -> tuple[int, str, tuple[str, ...]]:
        content = bytearray(self.files["clip0.mp4"])
        for _ in range(20):
            content[self.dice.randrange(len(content))] = self.dice.randrange(256)
        content = content[: self.dice.randrange(1, len(content))]
        return *self._event("video", [self._sent("bad.mp4", bytes(content)), "hold"]), ("inlay-status",)

    def _tau(self) -> tuple[int, str, tuple[str, ...]]:
        data = [self._which(), "threshold (tau)", self.dice.random(), 100]
        return *self._event("tau", data), ("cells kept", "there is no clip yet", "decoded as it is", BEYOND)

    def _clip(self) -> tuple[int, str, tuple[str, ...]]:
        return *self._event("clip", ["Moving square", "hold"]), ("49 frames 256x256",)

    def _fill(self) -> tuple[int, str, tuple[str, ...]]:
        return *self._event("fill", [self._which(), "linear"]), ("with linear", "there is no clip yet")

    def _preset(self) -> tuple[int, str, tuple[str, ...]]:
        wanted = ("cells kept", "there is no clip yet", "decoded as it is")
        return *self._event("preset", [self._which(), "10 % of the tokens"]), wanted

    def _switch(self) -> tuple[int, str, tuple[str, ...]]:
        return *self._event("which", [self._which()]), ("Setting ", "there is no clip yet")

    def _see(self) -> tuple[int, str, tuple[str, ...]]:
        wanted = ("latents of slot", "there is no clip yet", "decoded as it is")
        return *self._event("see", [self.dice.randrange(12)]), wanted

    def _go(self) -> tuple[int, str, tuple[str, ...]]:
        wanted = ("Reconstructed", "there is no clip yet", "reconstruct once more")
        return *self._event("go", [self._which(), self.dice.choice(["hold", "linear"])]), wanted

    def _which(self) -> str:
        return self.dice.choice("AAAB")

    def _page(self) -> tuple[int, str, tuple[str, ...]]:
        return *ask(self.address, "/"), ("<html", "<!doctype")

    def _foreign(self) -> tuple[int, str, tuple[str, ...]]:
        return *ask(self.address, "/config", host="evil.example"), ("--names",)

    def _file(self) -> tuple[int, str, tuple[str, ...]]:
        return *ask(self.address, "/gradio_api/file=/etc/passwd"), ("does not hand out",)


def visit(soak: Soak, requests: int, visitors: int) -> dict[str, Any]:
    """Start the page as a user does, send everybody there at once, and end it."""
    home = soak.folder / "server"
    home.mkdir()
    files = make_files(soak.folder, visitors)
    command = [sys.executable, "-m", "inlay", "serve", "--port", "0", "--backbone", "mini-untrained", *LIMITS]
    with (soak.folder / "server.log").open("w") as errors:
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | {"TMPDIR": str(home)}
        )
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found, (soak.folder / "server.log").read_text()
        calls = numbers(json.loads(ask(found[0], "/config")[1]))
        crowd = [Visitor(n, found[0], calls, files, soak.dice("page", n)) for n in range(visitors)]
        sizes: list[float] = []
        threads = [
            threading.Thread(target=stay, args=(one, len(range(one.number, requests, visitors)))) for one in crowd
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            sizes.append(resident_mb(server.pid))
            time.sleep(0.5)
        kept = len(list(home.glob("*/files/sessions/*")))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)
    for one in crowd:
        for wrong in one.wrong:
            soak.found("page", one.number, wrong)
    if left := [path.name for path in home.iterdir()]:
        soak.found("page", -1, f"the server left {left}")
    half = max(len(sizes) // 2, 1)
    early, late = max(sizes[:half]), max(sizes[half:] or sizes)  # what is freed is given back every few seconds
    if late > early + FLAT_MB:
        soak.found("page", -1, f"the server grew from {early:.0f} to {late:.0f} MB")
    seconds = sorted(second for one in crowd for second in one.seconds)
    return {
        "requests": len(seconds),
        "visitors": visitors,
        "actions": dict(sum((one.seen for one in crowd), Counter[str]())),
        "median seconds": round(seconds[len(seconds) // 2], 3),
        "slowest seconds": round(seconds[-1], 3),
        "server MB": {"early": round(early, 1), "late": round(late, 1), "most": round(max(sizes), 1)},
        "sessions kept": kept,
    }


def stay(visitor: Visitor, requests: int) -> None:
    for _ in range(requests):
        visitor.act()


def make_files(folder: Path, visitors: int) -> dict[str, bytes]:
    """A video of each visitor, and a few token files."""
    files = {}
    for n in range(visitors):
        path = write_video(moving_square(9, 32, 32 + 8 * (n % 8), seed=n), folder / f"clip{n}.mp4", force=True)
        files[path.name] = path.read_bytes()
        if n < 8:
            words = ["encode", str(path), "--tau", "0.1", "--quiet", "--force", "--device", "cpu"]
            assert inlay([*words, "--backbone", "mini-untrained"]) == 0
            files[f"clip{n}.inlay"] = path.with_suffix(".inlay").read_bytes()
    return files


def numbers(config: dict[str, Any]) -> dict[str, int]:
    """What a control is called -> the number of its event."""
    names = {part["id"]: part["props"].get("elem_id") for part in config["components"]}
    found = {}
    for call in config["dependencies"]:
        for target, event in call["targets"]:
            if event in ("upload", "input", "click"):
                found[names.get(target)] = call["id"]
    return found


def resident_mb(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except FileNotFoundError:
        return 0.0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
