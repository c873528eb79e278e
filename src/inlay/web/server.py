# SPDX-License-Identifier: Apache-2.0
"""Run the page: its own folder, its own port, nothing sent anywhere."""

from __future__ import annotations

import ctypes
import errno
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inlay.errors import ConfigError, UsageError, require
from inlay.scale.workers import environment
from inlay.web.limits import Limits

if TYPE_CHECKING:
    from inlay.tokenizer import Tokenizer
    from inlay.web.sessions import Sessions

QUIET = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1", "GRADIO_SHARE": "False"}
LISTEN = "Where to listen; 0.0.0.0 lets the whole network in."
NAMES = "Names under which it may be reached besides localhost and its address, with commas between."
TIDY_SECONDS = 10.0  # from one look for visitors who have gone, and memory that is free, to the next
FRESH_SECONDS = 300.0  # that an upload may wait for its turn
M_ARENA_MAX = -8  # of glibc's mallopt


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Where the page is, and how many may use it."""

    host: str = field(default="127.0.0.1", metadata={"help": LISTEN, "metavar": "ADDRESS"})
    port: int = field(default=7860, metadata={"help": "Port; 0 takes a free one."})
    waiting: int = field(default=16, metadata={"help": "Requests that may wait in the queue."})
    sessions: int = field(default=16, metadata={"help": "Visitors whose clips are kept."})
    names: str = field(default="", metadata={"help": NAMES, "metavar": "NAMES"})

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"a port is a number from 0 to 65535; got {self.port}", about="port")
        if self.waiting < 1 or self.sessions < 1:
            raise ConfigError(f"at least one visitor must fit; got {self.waiting} waiting, {self.sessions} sessions")

    @property
    def hosts(self) -> frozenset[str]:
        """The names that requests may ask for: a page elsewhere whose name leads here must not read what is here."""
        named = (name.strip().lower() for name in self.names.split(","))
        return frozenset({"localhost", "127.0.0.1", "::1", self.host.lower(), *filter(None, named)})


def free_port(config: ServeConfig) -> int:
    """The port itself, or the reason why it cannot be had; checked before a network is loaded."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return probe.getsockname()[1]
    except OSError as error:
        why = error.strerror
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(f"{config.host} is not an address of this machine ({why}); try 127.0.0.1") from error
        raise UsageError(
            f"cannot listen on {config.host}:{config.port} ({why}); choose another port, or 0 for a free one",
            about="port",
        ) from error


@contextmanager
def running(tokenizer: Tokenizer, config: ServeConfig, limits: Limits) -> Iterator[tuple[Any, str]]:
    """The page while the context is open, and its address; every file is gone afterwards."""
    port = free_port(config)
    with tempfile.TemporaryDirectory(prefix="inlay-serve-", ignore_cleanup_errors=True) as root:
        folder = Path(root).resolve()
        with environment(QUIET | {"GRADIO_TEMP_DIR": str(folder / "files")}):
            require("gradio", extra="web")
            from inlay.web import child
            from inlay.web.actions import Actions
            from inlay.web.clips import DEFAULT, EncodedClips, built_in
            from inlay.web.page import build
            from inlay.web.sessions import Sessions

            child.warm_up()
            files = folder / "files"
            files.mkdir()
            sessions = Sessions(files / "sessions", most=config.sessions, fresh_seconds=FRESH_SECONDS)
            stop = threading.Event()
            threading.Thread(target=_tidy, args=(sessions, stop), name="tidy", daemon=True).start()
            threading.Thread(target=built_in, args=(DEFAULT,), name="paint", daemon=True).start()
            clips = EncodedClips(folder=files / "clips")
            page = build(Actions(tokenizer=tokenizer, sessions=sessions, clips=clips, limits=limits, uploads=files))
            try:
                yield page, _launch(page, config, port, limits, files)
            finally:
                stop.set()
                page.close(verbose=False)
                sessions.close()
                clips.close()


def one_arena() -> None:
    """Have all threads take memory from one place; to be called before there are many.

    By default glibc gives each of a web server's many threads a place of its own, where what one request has freed
    waits for another on the same thread: the server grows with the number of its threads.
    """
    _glibc("mallopt", M_ARENA_MAX, 1)


def _glibc(name: str, *args: int) -> None:
    """Call a function of the C library, where it has it: others have no such places."""
    if sys.platform == "linux" and (function := getattr(ctypes.CDLL(None), name, None)) is not None:
        function(*args)


def _tidy(sessions: Sessions, stop: threading.Event) -> None:
    """Put away what visitors who have gone left behind, though nobody comes any more, and give memory back."""
    while not stop.wait(TIDY_SECONDS):
        sessions.tidy()
        _glibc("malloc_trim", 0)


def _launch(page: Any, config: ServeConfig, port: int, limits: Limits, files: Path) -> str:
    from gradio.themes import Default
    from starlette.middleware import Middleware

    from inlay.web.page import script, style
    from inlay.web.request_filter import RequestFilter

    plain = ["system-ui", "sans-serif"]  # fonts that every machine has: none is fetched
    page.queue(max_size=config.waiting, api_open=False)
    page.launch(
        server_name=config.host,
        server_port=port,
        share=False,
        quiet=True,
        prevent_thread_lock=True,
        inbrowser=False,
        show_error=False,
        ssr_mode=False,
        run_history=False,
        enable_monitoring=False,
        footer_links=[],
        allowed_paths=[],
        max_file_size=limits.max_bytes,
        state_session_capacity=config.sessions,
        theme=Default(primary_hue="blue", font=plain, font_mono=["ui-monospace", "monospace"]),
        css=style(),
        head=script(),
        app_kwargs={
            "middleware": [Middleware(RequestFilter, folder=files, hosts=config.hosts)],
            "docs_url": None,
            "redoc_url": None,
        },
    )
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"http://{host}:{port}/"
