# SPDX-License-Identifier: Apache-2.0
"""Fetch files of a repository on the Hugging Face hub: cached, resumed, checked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from inlay.errors import MissingError, require

PIECE = 2**20


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where weights are published: all of `files` make one model."""

    repo: str
    files: tuple[str, ...]
    subfolder: str = ""
    gated: bool = False
    md5: dict[str, str] = field(default_factory=dict)  # as published beside the files

    def path(self, file: str) -> str:
        return f"{self.subfolder}/{file}" if self.subfolder else file


def cached(source: Source) -> Path | None:
    """The folder that has all files, if they were fetched before; never asks the network."""
    hub = require("huggingface_hub", extra="hf")
    places = [hub.try_to_load_from_cache(source.repo, source.path(file)) for file in source.files]
    return Path(places[0]).parent if all(isinstance(p, str) for p in places) else None


def fetch(source: Source, *, force: bool = False) -> Path:
    """The folder that has all files; what is not there is downloaded, with progress, going on where it stopped."""
    hub = require("huggingface_hub", extra="hf")
    if not force and (folder := cached(source)) is not None:
        return folder
    paths = [_download(hub, source, file, force=force) for file in source.files]
    return paths[0].parent


def show_progress(wanted: bool) -> None:
    """Whether downloads draw a bar on the terminal."""
    bars = require("huggingface_hub.utils", extra="hf")
    (bars.enable_progress_bars if wanted else bars.disable_progress_bars)()


def _download(hub: Any, source: Source, file: str, *, force: bool) -> Path:
    errors = require("huggingface_hub.errors", extra="hf")  # loaded by nobody else on every path
    name = source.path(file)
    try:
        digest = _bring(hub, source.repo, name, force=force)
        path = Path(hub.hf_hub_download(source.repo, name))  # finds the bytes, and gives them their name
        _check(path, source.md5.get(file), want=digest)
    except errors.GatedRepoError as error:
        raise MissingError(
            f"{source.repo} is gated: open its page on the hub, accept its licence with your account, then log in "
            "with `hf auth login` (or set HF_TOKEN) and try again"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise MissingError(
            f"the hub has no repository {source.repo}, or it is private; log in: hf auth login"
        ) from error
    except errors.EntryNotFoundError as error:
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise MissingError(_unreachable(source, name)) from error
        raise MissingError(f"{source.repo} has no file {name}; give local files", about="weights") from error
    except (errors.HfHubHTTPError, errors.OfflineModeIsEnabled, OSError) as error:
        raise MissingError(_unreachable(source, name)) from error
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("httpx", "httpx2", "httpcore", "httpcore2", "requests"):
            raise
        raise MissingError(_unreachable(source, name)) from error
    return path


def _unreachable(source: Source, name: str) -> str:
    constants = require("huggingface_hub.constants", extra="hf")
    if constants.HF_HUB_OFFLINE:
        return (
            f"{source.repo}/{name} is not in the cache and HF_HUB_OFFLINE is set; fetch it while online, or give files"
        )
    return f"{source.repo}/{name} could not be fetched from {constants.ENDPOINT}; try again, or give files"


def _bring(hub: Any, repo: str, name: str, *, force: bool) -> str | None:
    """Download a file to its place in the hub's cache, going on from what an earlier run left; the hub's own digest.

    That digest is the SHA-256 of large files and git's SHA-1 of small ones. Recent versions of `huggingface_hub` begin
    anew in every process, so the bytes are brought here, by its own means.
    """
    files, tools = (require(f"huggingface_hub.{part}", extra="hf") for part in ("file_download", "utils"))
    constants = require("huggingface_hub.constants", extra="hf")
    url = hub.hf_hub_url(repo, name)
    facts = hub.get_hf_file_metadata(url)
    blobs = Path(constants.HF_HUB_CACHE) / files.repo_folder_name(repo_id=repo, repo_type="model") / "blobs"
    blob, part = blobs / str(facts.etag), blobs / f"{facts.etag}.part"
    blobs.mkdir(parents=True, exist_ok=True)
    headers = tools.build_hf_headers()
    if urlsplit(facts.location).netloc != urlsplit(url).netloc:  # a store elsewhere has no business with the token
        headers = {k: v for k, v in headers.items() if k.lower() != "authorization"}
    with tools.WeakFileLock(str(part) + ".lock"):
        if force:
            blob.unlink(missing_ok=True)
            part.unlink(missing_ok=True)
        if not blob.exists():
            with part.open("ab") as file:
                have = file.tell()
                files.http_get(facts.location, file, resume_size=have, headers=headers, expected_size=facts.size)
            part.replace(blob)
    return facts.etag


def _check(path: Path, md5: str | None, *, want: str | None) -> None:
    """Refuse a file whose bytes are not the published ones, and take it out of the cache."""
    kind = {64: "sha256", 40: "git"}.get(len(want or ""), "")
    for name, wanted in ((kind, want), ("md5", md5)):
        if name and wanted and (found := _digest(path, name)) != wanted:
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise MissingError(f"{path.name} has {name} {found}, not {wanted}: a damaged download; fetch it again")


def _digest(path: Path, kind: str) -> str:
    """`git` is the SHA-1 of a file as git stores it."""
    digest = hashlib.new("sha1" if kind == "git" else kind, usedforsecurity=False)
    if kind == "git":
        digest.update(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()
