# SPDX-License-Identifier: Apache-2.0
"""A PyTorch file that will not load in, the name of the tensor where it is broken out."""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

from inlay.errors import UsageError

RECORD = re.compile(rb"PK\x03\x04.{22}(..)(..)[^/]+/(data\.pkl|data/(\d+))", re.DOTALL)


def check_sums(path: Path) -> None:
    """Refuse an archive with a wrong byte: PyTorch's own reader does not look."""
    bad = _first_bad(path)
    if bad is not None:
        raise UsageError(f"{path} is damaged{broken_storage(path) or f': its part {bad}'}; fetch it again")


def broken_storage(path: Path) -> str | None:
    """`: tensor NAME is cut off` (or is damaged), as far as the file still tells."""
    data = path.read_bytes()
    records = list(RECORD.finditer(data))
    keys = [m.group(4).decode() for m in records if m.group(4)]
    head = next((m for m in records if not m.group(4)), None)
    if head is None or not keys:
        return None
    bad, how = _first_bad(path), "damaged"
    if bad is None:
        bad, how = keys[-1], "cut off"  # a file without its end stops inside the last record that began
    start = head.start() + 30 + sum(int.from_bytes(head.group(i), "little") for i in (1, 2))
    names = _names(data[start:])
    return f": tensor {names[bad]} is {how}" if bad in names else None


def _first_bad(path: Path) -> str | None:
    """The record whose checksum is wrong, if the archive has its end."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = archive.testzip()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return None
    return found.rsplit("/", 1)[-1] if found else None


def _names(data: bytes) -> dict[str, str]:
    """Storage key -> name of the tensor that lies there. Nothing of the pickle is run: its names are stand-ins."""
    found: dict[str, str] = {}
    try:
        _collect(_Names(io.BytesIO(data)).load(), "", found)
    except Exception:  # a crafted or broken pickle can fail in any way, and then there is no name to tell
        return found
    return found


class _Stand(dict[Any, Any]):
    """Stands for any class or function, and for what it returns; remembers the storage among its arguments."""

    key: str | None = None

    def __call__(self, *args: Any) -> Any:
        stand = _Stand()
        inside = (item for a in args if isinstance(a, tuple) for item in a)
        for item in (*args, *inside):
            if isinstance(item, _Stand) and item.key is not None:
                stand.key = item.key
        return stand

    def __setstate__(self, state: Any) -> None:
        return

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


class _Names(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        class Stand(_Stand):
            def __new__(cls, *args: Any) -> Any:
                return _Stand()(*args)

        return Stand

    def persistent_load(self, pid: Any) -> Any:
        stand = _Stand()
        stand.key = str(pid[2])
        return stand


def _collect(tree: Any, name: str, found: dict[str, str]) -> None:
    if isinstance(tree, _Stand) and tree.key is not None:
        found.setdefault(tree.key, name)
        return
    if isinstance(tree, dict):
        for key, value in tree.items():
            _collect(value, f"{name}.{key}" if name else str(key), found)
