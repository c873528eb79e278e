# SPDX-License-Identifier: Apache-2.0
"""Every cache format that has a name; and how a folder's format is found out."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from inlay.caches.base import CacheFormat, Latents, write_hole
from inlay.caches.fastvideo import FastVideo, write_table
from inlay.caches.holes import CacheError
from inlay.caches.musubi import Musubi
from inlay.caches.rest import unpack_rest
from inlay.caches.torchfiles import DiffSynth, Ltx, SimpleTuner
from inlay.errors import UsageError, pick

AUTO = "auto"
FORMATS: dict[str, CacheFormat] = {
    form.name: form
    for form in (Musubi("wan"), Musubi("hv"), Musubi("hv15"), DiffSynth(), SimpleTuner(), Ltx(), FastVideo())
}
BUILDERS = {"hole": write_hole, "parquet": write_table}  # kind of rest -> what writes the file again


def find_format(root: Path, name: str = AUTO) -> tuple[CacheFormat, list[Path]]:
    """The format of a folder, and its files with latents; refuses what is no cache, or several."""
    if not root.is_dir():
        raise UsageError(f"{root}: no such folder; give the folder of a cache")
    given = {name: pick("cache format", name, FORMATS)} if name != AUTO else FORMATS
    found = [(form, files) for form in given.values() if (files := form.find(root))]
    if not found:
        kinds = "; ".join(form.about for form in given.values())
        raise UsageError(f"{root}: holds no latents of {kinds}; give the folder of a cache")
    if len(found) > 1:
        names = " and ".join(form.name for form, _ in found)
        raise UsageError(f"{root}: holds caches of {names}; name one, the other is then carried along", about="format")
    return found[0]


def rebuild(member: bytes, clips: int, latents: Latents, out: BinaryIO) -> None:
    """Write a cache file again: everything as it was, with these latents of so many clips."""
    head, rest = unpack_rest(member)
    kind = head.get("kind")
    if not isinstance(kind, str) or kind not in BUILDERS:
        raise CacheError(f"is damaged, or of a later release: the kind of its file is {ascii(kind)[:40]}")
    BUILDERS[kind](head, rest, clips, latents, out)
