# SPDX-License-Identifier: Apache-2.0
"""Refuse requests for files outside the server's own folder, and for anything fetched from elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

FILE = "/file="
SHUT = ("/proxy=", "/reverse_proxy", "/deep_link", "/monitoring", "/vibe", "/custom_component/")


class RequestFilter:
    """A second check besides Gradio's own, whose list of allowed places may change between releases."""

    def __init__(self, app: App, *, folder: Path) -> None:
        self.app, self.folder = app, folder.resolve()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self.allows(scope["path"]):
            await self.app(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": b"this page does not hand out that file"})

    def allows(self, path: str) -> bool:
        """Of a path as the server has decoded it, once; a second decoding must not lead elsewhere."""
        if any(word in path for word in SHUT):
            return False
        place = path.find("/file")
        if place < 0:
            return True
        _, found, wanted = path[place:].partition("=") if FILE in path else path[place:].partition("/file/")
        return not found or all(self.inside(form) for form in (wanted, unquote(wanted)))

    def inside(self, wanted: str) -> bool:
        """A relative path would be one from wherever the server was started; links are followed before judging."""
        if "\0" in wanted or "://" in wanted or not Path(wanted).is_absolute():
            return False
        try:
            return Path(wanted).resolve().is_relative_to(self.folder)
        except (OSError, RuntimeError):
            return False
