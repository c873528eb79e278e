# SPDX-License-Identifier: Apache-2.0
"""Refuse requests under foreign names and for files that are not the page's; keep the server's paths out of answers."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
App = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

FILE = "/file="
SHUT = ("/proxy=", "/reverse_proxy", "/deep_link", "/monitoring", "/vibe", "/custom_component/")
EVERYWHERE = {"0.0.0.0", "::"}
FOREIGN = b"this page is not served under that name; who runs it can allow the name (--names)"
CLOSED = b"this page does not hand out that file"
GONE = b"that file is gone: it went with its visitor, or newer results took its place"


class RequestFilter:
    """A second check besides Gradio's own, whose list of allowed places may change between releases.

    Args:
        folder: where uploads and results lie. Visitors see another name of the same length in its place, both in what
            they are sent and in what they send back.
        hosts: names under which the page may be asked for.
    """

    def __init__(self, app: App, *, folder: Path, hosts: frozenset[str]) -> None:
        self.app, self.folder, self.hosts = app, folder.resolve(), hosts
        self._real = str(self.folder).encode()
        self._shown = b"/" + b"page-files".ljust(len(self._real) - 1, b"-")[: len(self._real) - 1]

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]  # to read answers
        scope = scope | {"headers": headers, "query_string": self._inwards(scope["query_string"])}
        scope |= {"path": self._inwards(scope["path"].encode()).decode()}
        if "raw_path" in scope:
            scope["raw_path"] = self._inwards(scope["raw_path"] or b"")
        found = dict(headers)
        if not self.serves(found.get(b"host", b"").decode("latin-1")):
            await self._refuse(scope, send, 421, FOREIGN)
        elif not self.allows(scope["path"]):
            await self._refuse(scope, send, 403, CLOSED)
        else:
            is_json = b"json" in found.get(b"content-type", b"")
            await self._answer(scope, self._receiving(receive) if is_json else receive, self._sending(send))

    async def _answer(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Let the page answer; a file that is taken away between its being found and its being sent is not there."""
        begun = False

        async def sending(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except (OSError, RuntimeError):
            wanted = self._wanted(scope["path"])
            if wanted is None or Path(wanted).exists():
                raise
            if not begun:
                await self._refuse(scope, send, 404, GONE)

    def serves(self, host: str) -> bool:
        """Whether the page answers under this name. An address is no name that somebody could lead elsewhere."""
        name = host.partition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
        if name.lower() in self.hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return bool(self.hosts & EVERYWHERE)

    def allows(self, path: str) -> bool:
        """Of a path as the server has decoded it, once; a second decoding must not lead elsewhere."""
        if any(word in path for word in SHUT):
            return False
        wanted = self._wanted(path)
        return wanted is None or all(self.inside(form) for form in (wanted, unquote(wanted)))

    def _wanted(self, path: str) -> str | None:
        """The file that a path asks for."""
        place = path.find("/file")
        if place < 0:
            return None
        _, found, wanted = path[place:].partition("=") if FILE in path else path[place:].partition("/file/")
        return wanted if found else None

    def inside(self, wanted: str) -> bool:
        """A relative path would be one from wherever the server was started; links are followed before judging."""
        if "\0" in wanted or "://" in wanted or not Path(wanted).is_absolute():
            return False
        try:
            return Path(wanted).resolve().is_relative_to(self.folder)
        except (OSError, RuntimeError):
            return False

    def _inwards(self, data: bytes) -> bytes:
        return data.replace(self._shown, self._real)

    def _receiving(self, receive: Receive) -> Receive:
        async def inner() -> Any:
            message = await receive()
            return message | {"body": self._inwards(message["body"])} if message.get("body") else message

        return inner

    def _sending(self, send: Send) -> Send:
        async def inner(message: Any) -> None:
            if message.get("body"):
                message = message | {"body": bytes(message["body"]).replace(self._real, self._shown)}
            await send(message)

        return inner

    async def _refuse(self, scope: dict[str, Any], send: Send, status: int, why: bytes) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": why})
