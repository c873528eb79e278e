# SPDX-License-Identifier: Apache-2.0
"""Download an archive from the package index that pip is configured for, without pip.

`pip download` would run the archive's own build script to learn its metadata; here an archive is bytes to be checked,
and nothing of it is run. So the index page is read here.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import os
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit

from inlay.errors import MissingError

BY_HAND = "or put the archive into a folder and name that folder"
PIECE = 2**20
TIMEOUT_SECONDS = 60.0


def download(project: str, archive: str, target: Path, *, size: int, index_url: str | None = None) -> None:
    """Fetch `archive` of `project`, which has `size` bytes, to `target`, from the first index that lists it.

    What an earlier call has left at `target` is gone on from.
    """
    settings = pip_settings()
    context = _certificates(settings)
    indexes = [index_url] if index_url else index_urls(settings)
    trouble = []
    for index in indexes:
        page = f"{index.rstrip('/')}/{project}/"
        try:
            link = find_link(page, archive, context)
            if link is not None:
                _save(link, target, size, context)
                return
            trouble.append(f"{_shown(page)} does not list it")
        except (OSError, ValueError) as error:
            trouble.append(f"{_shown(page)}: {error}")
    raise MissingError(f"{archive} could not be fetched ({'; '.join(trouble)}); try again, {BY_HAND}")


def check_sha256(path: Path, want: str) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise MissingError(f"{path} cannot be read ({error.strerror})") from error
    if found != want:
        raise MissingError(f"{path.name} has sha256 {found}, not {want}; it is another file, or damaged")


def find_link(page: str, archive: str, context: ssl.SSLContext) -> str | None:
    """The address of `archive` on a project's page of the simple index."""
    if page.startswith("file:"):
        page += "index.html"
    with _open(page, context) as answer:
        base = answer.geturl()
        links = _Links()
        links.feed(answer.read(8 * PIECE).decode("utf-8", "replace"))
    for href in links.found:
        link = urldefrag(urljoin(base, href)).url
        if unquote(urlsplit(link).path).rsplit("/", 1)[-1] == archive:
            return link
    return None


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def pip_settings() -> dict[str, str]:
    """What pip is configured with, by the last part of each key: index-url, extra-index-url, cert, proxy."""
    settings = {}
    for line in _pip("config", "list").splitlines():
        key, _, value = line.partition("=")
        try:
            settings[key.rsplit(".", 1)[-1]] = str(ast.literal_eval(value))
        except (ValueError, SyntaxError):
            continue
    for key in ("index-url", "extra-index-url", "cert"):  # the environment wins, as it does for pip
        if given := os.environ.get("PIP_" + key.replace("-", "_").upper()):
            settings[key] = given
    return settings


def index_urls(settings: dict[str, str]) -> list[str]:
    """The configured index, else pip's own default, then the extra ones."""
    first = settings.get("index-url") or _default_index()
    urls = [first] if first else []
    urls += settings.get("extra-index-url", "").split()
    if not urls:
        raise MissingError(f"no package index is known, as pip is not here; set PIP_INDEX_URL, {BY_HAND}")
    return urls


def _default_index() -> str | None:
    """pip's help names the index it uses when none is configured."""
    words = " ".join(_pip("download", "--help").split())
    found = re.search(r"--index-url <url> .*?\(default (https?://[^\s)]+)\)", words)
    return found.group(1) if found else None


@lru_cache  # each call starts a program
def _pip(*words: str) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def _certificates(settings: dict[str, str]) -> ssl.SSLContext:
    cert = settings.get("cert")
    try:
        return ssl.create_default_context(cafile=cert if cert and Path(cert).is_file() else None)
    except ssl.SSLError as error:
        raise MissingError(f"pip's certificate file {cert} cannot be read ({error})") from error


def _open(url: str, context: ssl.SSLContext, begin: int = 0) -> Any:
    """Open an address; a user name inside it becomes a header, as urllib would take it for the host."""
    parts = urlsplit(url)
    headers = {"Accept": "text/html, */*;q=0.1", "User-Agent": "inlay"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
    if parts.username:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
    request = urllib.request.Request(_shown(url), headers=headers)
    return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS, context=context)


def _shown(url: str) -> str:
    """An address without the password in it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1]))


def _save(url: str, target: Path, size: int, context: ssl.SSLContext) -> None:
    have = target.stat().st_size if target.exists() else 0
    if have >= size:  # a whole archive whose use was interrupted, or not ours: the digest will tell
        return
    with _open(url, context, have) as answer, target.open("ab" if answer.status == 206 else "wb") as file:
        while piece := answer.read(PIECE):
            if file.tell() + len(piece) > size:
                file.truncate(0)
                raise ValueError(f"the file is longer than the {size} bytes it should have")
            file.write(piece)
        if file.tell() < size:
            raise OSError(f"the connection ended after {file.tell():,} of {size:,} bytes")
